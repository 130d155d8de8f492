"""Runs here and on other hosts: what model folders hold, and what of them is in use. `cached.py WORK FOLDER...` prints a JSON list."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from typing import Any


def children(folder: str) -> list[str]:
    """Real folders below, sorted; none where it cannot be read."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names]
    return [p for p in paths if os.path.isdir(p) and not os.path.islink(p)]


def describe(folder: str, work: str) -> dict[str, Any]:
    """bytes on the disk; last_used: newest access that the file system recorded, `work` folders aside. Links are counted elsewhere."""
    size, last, complete = 0, None, True
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            complete = complete and not name.endswith((".part", ".incomplete"))
            if not stat.S_ISREG(found.st_mode):
                continue
            size += found.st_blocks * 512
            if work not in os.path.relpath(place, folder).split(os.sep):
                last = max(last or 0.0, found.st_atime, found.st_mtime)
    revisions = [os.path.basename(p) for p in children(os.path.join(folder, "snapshots"))]
    return {"path": folder, "bytes": size, "last_used": last, "complete": complete, "revisions": revisions}


def is_fetched(folder: str, work: str) -> bool:
    """Whether a fetch holds the folder's lock now."""
    try:
        handle = os.open(os.path.join(folder, work, "lock"), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


def holders(folder: str) -> list[int]:
    """Processes, of those that we may look at, that have a file of the folder open or mapped."""
    inside, found = os.path.realpath(folder) + os.sep, []
    for name in os.listdir("/proc"):
        if name.isdigit() and _holds("/proc/" + name, inside):
            found.append(int(name))
    return found


def _holds(process: str, inside: str) -> bool:
    try:
        links = [os.readlink(os.path.join(process, "fd", n)) for n in os.listdir(os.path.join(process, "fd"))]
        with open(os.path.join(process, "maps"), errors="replace") as file:
            return any(link.startswith(inside) for link in links) or any(inside in line for line in file)
    except OSError:
        return False


def main() -> None:
    work, folders = sys.argv[1], sys.argv[2:]
    found = [describe(child, work) for folder in folders for child in children(folder)]
    for row in found:
        row.update(fetched=is_fetched(row["path"], work), holders=holders(row["path"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
