"""`supervisor.pyz FOLDER` supervises the run in FOLDER; `find FOLDER` and `sweep FOLDER` look for what a killed one left.

`take-over FOLDER PID CODE` is the guardian's own: the supervisor PID ended with CODE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .guardian import ALREADY, guarded


def supervise(folder: str, guardian: int | None) -> int:
    """Status 1, and why on stderr, where the request is not there or not readable. guardian: who waits for our end."""
    try:
        return _supervise(folder, guardian)
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        print(f"supervisor-cannot-start: {type(e).__name__}: {e}", file=sys.stderr)
        return 1


def _supervise(folder: str, guardian: int | None) -> int:
    import fcntl

    from .kernel import become_subreaper
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
    return Supervisor(folder, request, guardian).serve()


def look(verb: str, folder: str) -> int:
    import json

    from .leftover import find, sweep_now

    print(json.dumps(find(folder) if verb == "find" else sweep_now(folder)))
    return 0


def look_everywhere() -> int:
    import json

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
    if len(argv) == 4 and argv[0] == "take-over":
        from .takeover import take_over

        return take_over(argv[1], int(argv[2]), int(argv[3]))
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    return guarded(os.path.abspath(argv[0]), supervise)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
