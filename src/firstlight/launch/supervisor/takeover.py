"""What the guardian does once the supervisor was killed: tells it, ends the engine, proves it, and writes the run's end."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from . import procfs, trust
from .children import Children
from .ending import remove_tree
from .leftover import FINAL, claim_of, end_all, read_record
from .records import EventFile, give_up_reserve, write_json

GRACE_SECONDS = 3.0  # the kernel has asked the engine to leave at the moment of the supervisor's death
LOCK_SECONDS = 2.0
REASON = "supervisor-died"


def take_over(folder: str, pid: int, code: int) -> int:
    """pid, code: the supervisor's, and how it ended (negative: a signal). Nothing is touched where another one has the run."""
    options = trust.mapping(read_record(folder, "supervise.json").get("options"))
    if options.get("on_supervisor_death") == "keep" or hold(folder, LOCK_SECONDS) is None:
        return 0
    record = read_record(folder, "supervisor.json")
    if record.get("state") in FINAL:
        remove_tree(trust.runtime(record.get("runtime"), folder))
    else:
        hook = options.get("on_event")
        words = hook if isinstance(hook, list) and all(isinstance(word, str) for word in hook) else None
        _end(folder, record, words, {"pid": pid, "returncode": code, "signal": _signal_name(-code)})
    give_up_reserve(folder)
    return 0


def _end(folder: str, record: Mapping[str, Any], hook: list[str] | None, death: Mapping[str, Any]) -> None:
    claim = claim_of(folder)._replace(supervisor=os.getpid())
    events, children = EventFile(os.path.join(folder, "supervisor.jsonl")), Children(claim.run)

    def tell(kind: str, data: Mapping[str, Any]) -> None:
        events.write(kind, data)
        children.hook(hook, kind, data)

    tell(REASON, {**death, "grace_seconds": GRACE_SECONDS})
    me = procfs.process(os.getpid())
    boss = {"pid": os.getpid(), "start_ticks": me.start_ticks if me else 0, "boot_id": procfs.boot_id()}
    now = {**record, "run": claim.run, "state": "stopping", "reason": REASON, "supervisor": boss, "guardian": boss}
    write_json(os.path.join(folder, "supervisor.json"), now)
    found = end_all(folder, claim, grace=GRACE_SECONDS, asked=True, state="failed")
    tell("ended", {"state": "failed", "reason": REASON, "clean": found["clean"], "proof": found})


def hold(folder: str, patience: float) -> int | None:
    """The run's lock, for as long as this process lives; None where another has it. Who only looks at it has it for a moment.

    -1: there is no lock any more, so no other supervisor either.
    """
    until = time.monotonic() + patience
    try:
        lock = os.open(os.path.join(folder, "supervisor.lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    while not lock_now(lock):
        if time.monotonic() > until:
            os.close(lock)
            return None
        time.sleep(0.02)
    return lock


def lock_now(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signal_name(number: int) -> str | None:
    return signal.Signals(number).name if number in set(signal.Signals) else None
