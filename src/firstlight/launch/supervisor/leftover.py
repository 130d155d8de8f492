"""What a killed supervisor left behind: found from its records and from the marker in the environment, then ended with proof."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any

from . import procfs, trust
from .ending import proof, send, sweep, wake
from .engine import signal_number
from .members import MARKER, Claim, members, own_cgroup
from .records import read_json, write_json

FINAL = ("stopped", "failed")
GUARDIAN_SECONDS = 15.0
LONGEST_GRACE = 600.0


def supervised(folder: str) -> bool:
    """Whether a supervisor lives: it holds the lock for as long as it does."""
    try:
        lock = os.open(os.path.join(folder, "supervisor.lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def lock_holder(folder: str) -> int | None:
    """The pid that holds the run's lock: the supervisor, whatever the records say."""
    try:
        inode = os.stat(os.path.join(folder, "supervisor.lock")).st_ino
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    return next((int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode)), None)


def read_record(folder: str, name: str) -> dict[str, Any]:
    try:
        return read_json(os.path.join(folder, name))
    except (OSError, ValueError):
        return {}


def claim_of(folder: str) -> Claim:
    """The run's claim from whatever records are readable; a record of another boot names no process of this one."""
    record, engine = read_record(folder, "supervisor.json"), read_record(folder, "engine.json")
    run = _text(record.get("run")) or _text(read_record(folder, "supervise.json").get("run")) or os.path.basename(folder.rstrip("/"))
    place = os.path.realpath(folder)
    ref = trust.mapping(record.get("engine"))
    if ref and ref.get("boot_id") not in (None, "", procfs.boot_id()):
        return Claim(run, folder=place)
    pid, ticks = trust.process(ref) or trust.process(engine) or (None, None)
    group = trust.cgroup(record.get("cgroup")) or trust.cgroup(engine.get("cgroup"))
    return Claim(run, pid, ticks, group, trust.processes(record.get("members")), None, place)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def find(folder: str) -> dict[str, Any]:
    """supervised; state as last written; the supervisor's process, and every living process of the run with its proof."""
    folder = os.path.abspath(folder)
    record, claim = read_record(folder, "supervisor.json"), claim_of(folder)
    alive = procfs.same(claim.engine_pid, claim.engine_ticks) if claim.engine_pid and claim.engine_ticks else None
    holder = lock_holder(folder)
    boss = procfs.process(holder) if holder else None
    return {
        "run": claim.run,
        "supervised": supervised(folder),
        "supervisor_state": boss.state if boss else None,
        "supervisor_pid": boss.pid if boss else None,
        "recorded_state": record.get("state"),
        "engine": {"pid": claim.engine_pid, "start_ticks": claim.engine_ticks, "cgroup": claim.cgroup} if alive else None,
        "processes": [
            {"pid": m.process.pid, "proof": m.proof, "state": m.process.state, "command": procfs.command(m.process.pid)}
            for m in members(claim)
        ],
    }


def find_all() -> list[dict[str, Any]]:
    """Every process on the machine that carries a run's marker, whatever became of the run's folder."""
    found = []
    for process in procfs.processes():
        run = procfs.environment(process.pid).get(MARKER)
        if run and process.state not in "ZX":
            found.append({"run": run, "pid": process.pid, "start_ticks": process.start_ticks, "command": procfs.command(process.pid)})
    return found


def sweep_now(folder: str, *, grace: float | None = None) -> dict[str, Any]:
    """Ends everything of a run that has no supervisor (a hung one is killed first), and returns the proof."""
    folder = os.path.abspath(folder)
    state = find(folder)
    if state["supervised"] and state["supervisor_pid"]:
        if (done := _by_guardian(folder, state["supervisor_pid"])) is not None:
            return done
        send([state["supervisor_pid"]], 9)
    send(_guardian(folder), 9)  # one that somebody stopped would stay
    return end_all(folder, claim_of(folder), grace=grace)


def _by_guardian(folder: str, holder: int) -> dict[str, Any] | None:
    """The proof of the guardian, where it is that which holds the run and ends it just now; None where it comes to no end."""
    if _guardian(folder) != [holder]:
        return None
    until = time.monotonic() + GUARDIAN_SECONDS
    while supervised(folder) and time.monotonic() < until:
        time.sleep(0.05)
    found = read_record(folder, "exit.json").get("proof")
    return found if isinstance(found, dict) and not find(folder)["processes"] and not supervised(folder) else None


def _guardian(folder: str) -> list[int]:
    """The guardian's pid, where the process of the record still is it. Its care is not wanted when a run is ended on purpose."""
    ref = trust.process(read_record(folder, "supervisor.json").get("guardian"))
    return [ref[0]] if ref is not None and procfs.same(*ref) else []


def end_all(folder: str, claim: Claim, *, grace: float | None = None, asked: bool = False, state: str = "stopped") -> dict[str, Any]:
    """Ends the members of the claim, gracefully first, and writes the run's end down; returns the proof.

    asked: the engine has its stop signal already. state: what the run's record shall say.
    """
    spec, record = trust.mapping(read_record(folder, "supervise.json").get("spec")), read_record(folder, "supervisor.json")
    shm = recorded_memory(record)
    found = members(claim)
    for member in found:
        shm |= procfs.shared_memory(member.process.pid)
        claim = claim._replace(cgroup=claim.cgroup or own_cgroup(member.process.pid))
    claim = claim._replace(known=claim.known | {(m.process.pid, m.process.start_ticks) for m in found})
    _ask_to_leave(claim, spec, grace, asked)
    for wait in sweep(claim):
        time.sleep(wait)
    port, gpu = trust.number(spec.get("port")) or 0, trust.gpu_memory(record.get("gpu_memory"))
    result = proof(claim, port=port, shm=shm, gpu_before=gpu, runtime=trust.runtime(record.get("runtime"), folder))
    result["ended"] = [m.process.pid for m in found]
    _write_end(folder, {"run": claim.run, **record}, result, state)
    return result


def recorded_memory(record: dict[str, Any]) -> set[str]:
    """Segments that the supervisor saw in its members before everything was killed; {} for a record of another boot."""
    same_boot = trust.mapping(record.get("supervisor")).get("boot_id") == procfs.boot_id()
    return trust.shared_memory(record.get("shared_memory")) if same_boot else set()


def _ask_to_leave(claim: Claim, spec: dict[str, Any], grace: float | None, asked: bool) -> None:
    if not claim.engine_pid or not claim.engine_ticks or not procfs.same(claim.engine_pid, claim.engine_ticks):
        return
    if not asked:
        send([claim.engine_pid], signal_number(spec))
    wake(members(claim))
    until = time.monotonic() + (_grace(spec) if grace is None else grace)
    while procfs.same(claim.engine_pid, claim.engine_ticks) and time.monotonic() < until:
        time.sleep(0.05)


def _grace(spec: dict[str, Any]) -> float:
    seconds = spec.get("stop_grace_seconds")
    return min(float(seconds), LONGEST_GRACE) if isinstance(seconds, int | float) and seconds > 0 else 15.0


def _write_end(folder: str, record: dict[str, Any], result: dict[str, Any], state: str) -> None:
    if not os.path.isdir(folder):
        return
    exit_record = {**read_record(folder, "exit.json"), "proof": result, "time": time.time()}
    exit_record.setdefault("reason", "supervisor-died")
    write_json(os.path.join(folder, "exit.json"), exit_record)
    if record.get("state") not in FINAL:
        last = {**record, "state": state, "reason": "supervisor-died", "exit": exit_record}
        write_json(os.path.join(folder, "supervisor.json"), last)
