"""Mounts, free space, /dev/shm."""

import re
from collections.abc import Sequence

from msgspec import Struct

from firstlight.core.machine import Storage
from firstlight.probe.fact import Fact, shell


class Space(Struct, frozen=True):
    """One `df` row in bytes. asked: the path that was asked about; resolved: it or its nearest existing parent, links followed."""

    asked: str
    resolved: str
    device: str | None = None
    total: int | None = None
    free: int | None = None
    mount: str | None = None


class Mount(Struct, frozen=True):
    path: str
    filesystem: str
    source: str
    options: list[str] = []


_DF_SCRIPT = """
for p in "$@"; do q=$p
  while [ ! -e "$q" ] && [ "$q" != / ] && [ -n "$q" ]; do n=${q%/*}; [ "$n" = "$q" ] && n=.; q=${n:-/}; done
  r=$(readlink -f -- "$q" 2>/dev/null || echo "$q")
  printf 'path\\t%s\\t%s\\n' "$p" "$r"; df -kP -- "$q" 2>/dev/null | tail -n 1
done
"""


def parse_space(text: str) -> list[Space]:
    """Pairs of a `path<TAB>asked<TAB>resolved` line and its POSIX `df -kP` row."""
    found: list[Space] = []
    for line in text.splitlines():
        if line.startswith("path\t"):
            _, asked, resolved = [*line.split("\t"), ""][:3]
            found.append(Space(asked, resolved or asked))
        elif found and (row := re.match(r"(.+?)\s+(\d+)\s+\d+\s+(\d+)\s+\S+\s+(/.*)$", line)):
            last = found[-1]
            found[-1] = Space(last.asked, last.resolved, row[1], int(row[2]) * 1024, int(row[3]) * 1024, row[4])
    return found


def space(paths: Sequence[str]) -> Fact[list[Space]]:
    return shell("space", _DF_SCRIPT, parse_space, arguments=paths)


def _plain(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), text)


def parse_mounts(text: str) -> list[Mount]:
    """/proc/self/mountinfo: `… mount-point options [tags] - type source super-options`."""
    mounts = []
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split()
        if separator and len(fields) >= 6 and len(rest) >= 2:
            mounts.append(Mount(_plain(fields[4]), rest[0], _plain(rest[1]), fields[5].split(",")))
    return mounts


MOUNTS = Fact("mounts", ("cat", "/proc/self/mountinfo"), parse_mounts)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount a resolved path lies on: the longest prefix, the last mounted of equals."""
    best: Mount | None = None
    for mount in mounts:
        prefix = mount.path.rstrip("/") + "/"
        inside = path == mount.path or (path.rstrip("/") + "/").startswith(prefix)
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def storage(spaces: Sequence[Space], mounts: Sequence[Mount]) -> list[Storage]:
    """Each asked path with the file system below it."""
    rows = []
    for item in spaces:
        mount = mount_of(item.resolved, mounts)
        rows.append(Storage(path=item.asked, filesystem=mount.filesystem if mount else None, total_bytes=item.total, free_bytes=item.free))
    return rows


STORAGE_FACTS = (MOUNTS,)
