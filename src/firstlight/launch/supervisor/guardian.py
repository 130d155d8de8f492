"""The supervisor's parent: waits for its end and costs nothing; when the supervisor was killed, it ends what that leaves behind.

The kernel tells an engine's main process that its supervisor died, not the children, and an engine that loads may not listen. Orphans of
the supervisor come to the guardian (it is a subreaper), so that not one can leave the run. Killed itself, it takes nothing along.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from .kernel import become_subreaper

ALREADY = 75  # exit status: the run has a supervisor
REGULAR = frozenset({0, 5, ALREADY})
NAME = "firstlight-guardian"


def guarded(folder: str, supervise: Callable[[str, int | None], int]) -> int:
    """Runs `supervise(folder, guardian's pid)` in a child with a session of its own; returns its exit status.

    After a death that was none of its own ways to end, this process becomes `supervisor.pyz take-over`, from the archive that it has
    held open, so that a removed run folder changes nothing. Where no process can be made, the supervisor runs unguarded.
    """
    become_subreaper()
    archive, guardian = os.open(sys.argv[0], os.O_RDONLY | os.O_CLOEXEC), os.getpid()
    try:
        child = os.fork()
    except OSError:
        return supervise(folder, None)
    if child == 0:
        os.close(archive)
        os.setsid()
        return supervise(folder, guardian)
    code = _wait(child, f"{NAME} of {folder}")
    told_why = code > 0 and not os.path.exists(os.path.join(folder, "supervisor.json"))  # it could not even start
    if code not in REGULAR and not told_why:
        os.set_inheritable(archive, True)
        os.execv(sys.executable, [sys.executable, "-I", "-S", f"/proc/self/fd/{archive}", "take-over", folder, str(child), str(code)])
    return code


def _wait(child: int, title: str) -> int:
    """Its exit code, negative for a signal. What asks this process to end is for the supervisor."""
    _rename(title)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _rename(title: str) -> None:
    """What `ps` shows: nobody shall take it for a second supervisor. The kernel keeps the words in our own memory."""
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(NAME.encode())
        with open("/proc/self/stat", "rb") as file:
            start, end = (int(word) for word in file.read().rpartition(b")")[2].split()[45:47])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(os.fsencode(title)[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError):
        return  # a name is a courtesy
