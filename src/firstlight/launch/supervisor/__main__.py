"""`supervisor.pyz FOLDER` supervises the run in FOLDER; `find FOLDER` and `sweep FOLDER` look for what a killed one left."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Sequence

ALREADY = 75


def supervise(folder: str) -> int:
    """Raises OSError, ValueError, KeyError where the request is not there or not readable."""
    from .engine import become_subreaper
    from .records import read_json
    from .supervisor import Supervisor

    os.umask(0o077)
    lock = os.open(os.path.join(folder, "supervisor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"already-supervised: another supervisor holds {folder}", file=sys.stderr)
        return ALREADY
    request = read_json(os.path.join(folder, "supervise.json"))
    become_subreaper()
    return Supervisor(folder, request).serve()


def look(verb: str, folder: str) -> int:
    from .leftover import find, sweep_now

    print(json.dumps(find(folder) if verb == "find" else sweep_now(folder)))
    return 0


def look_everywhere() -> int:
    from .leftover import find_all

    print(json.dumps(find_all()))
    return 0


def main(argv: Sequence[str]) -> int:
    """Each way in imports only what it needs: `find` is asked often."""
    if len(argv) == 2 and argv[0] in ("find", "sweep"):
        return look(*argv)
    if len(argv) == 2 and argv[0] == "read-ahead":
        from .readahead import main as read_ahead

        return read_ahead(argv[1])
    if list(argv) == ["find-all"]:
        return look_everywhere()
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return supervise(os.path.abspath(argv[0]))
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        print(f"supervisor-cannot-start: {type(e).__name__}: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
