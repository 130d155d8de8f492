"""Ends what belongs to a run, step by step, and proves that nothing is left. A generator: it yields seconds to wait."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Generator, Iterable
from typing import Any, NamedTuple

from . import procfs
from .members import Claim, Member, members, owner_line, remove_cgroup

Wait = Generator[float, None, None]
GPU_QUERY = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
CLOSING_SECONDS = 1.0  # a socket whose process has just ended may be seen in nobody's hands
_HELPERS = ("resource_tracker", "forkserver")


class Holder(NamedTuple):
    """Who listens on a port. pid: None where no process that can be looked into holds the socket. text: for people."""

    pid: int | None
    uid: int
    text: str


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def is_helper(member: Member) -> bool:
    """Python's resource tracker removes shared memory of dead processes once they are gone: it is the last to be killed."""
    text = procfs.command(member.process.pid)
    return any(word in text for word in _HELPERS)


def wake(found: Iterable[Member]) -> None:
    """A stopped process takes no signal but SIGKILL until it is continued."""
    send([m.process.pid for m in found if m.process.state in "Tt"], signal.SIGCONT)


def sweep(claim: Claim, *, patience: float = 2.0) -> Wait:
    """Kills every member: first all but the helpers, then, when these had `patience` seconds to clean up, the rest."""
    deadline = time.monotonic() + patience
    while left := members(claim):
        workers = [m for m in left if not is_helper(m)]
        send([m.process.pid for m in workers], signal.SIGKILL)
        if not workers and time.monotonic() > deadline:
            send([m.process.pid for m in left], signal.SIGKILL)
        if time.monotonic() > deadline + 15:
            return  # in uninterruptible sleep: the proof says so
        yield 0.02


def proof(claim: Claim, *, port: int, shm: set[str], gpu_before: dict[str, int] | None, runtime: str | None) -> dict[str, Any]:
    """What is left of the run, looked at and not assumed. `clean` is True where nothing is; a stranger on its port is nothing of it."""
    left = members(claim)
    removed, kept = remove_shared_memory(shm)
    remove_tree(runtime) if runtime else None
    gone = remove_cgroup(claim.cgroup)
    ours, others = whose_port(port, {m.process.pid for m in left})
    found = {
        "processes": [{"pid": m.process.pid, "command": procfs.command(m.process.pid), "state": m.process.state} for m in left],
        "port": port,
        "port_free": not ours and not others,
        "port_holders": ours,
        "port_of_others": others,
        "shared_memory_removed": removed,
        "shared_memory_left": kept,
        "cgroup_removed": gone,
        "gpu_memory": gpu_memory_report(gpu_before),
    }
    found["clean"] = not left and not ours and not kept and gone
    return found


def whose_port(port: int, living: Collection[int]) -> tuple[list[str], list[str]]:
    """Who holds the port after the end: (of the run or perhaps of it, strangers). living: pids of the run that are still there.

    What nobody seems to hold is waited for: it is being closed, or its owner cannot be looked into, and then it may be ours.
    """
    until = time.monotonic() + CLOSING_SECONDS
    while any(map(_unseen, found := holders_of(port))) and time.monotonic() < until:
        time.sleep(0.02)
    ours = [h for h in found if h.pid in living or _unseen(h)]
    return [h.text for h in ours], [h.text for h in found if h not in ours]


def _unseen(holder: Holder) -> bool:
    return holder.pid is None and holder.uid == os.geteuid()


def port_holders(port: int) -> list[str]:
    """Who listens on the port, for people."""
    return [h.text for h in holders_of(port)]


def holders_of(port: int) -> list[Holder]:
    """Every process that listens on the port; all processes are only looked through where somebody does."""
    table = procfs.listeners(port) if port else None
    if not table:
        return []
    found = procfs.holders({listener.inode for listener in table}, [p.pid for p in procfs.processes()])
    seen = [Holder(pid, uid, owner_line(pid)) for pid in found if (uid := procfs.owner(pid)) is not None]
    return seen or [Holder(None, uid, f"a process of uid {uid} that cannot be looked into") for uid in sorted({t.uid for t in table})]


def remove_shared_memory(paths: set[str]) -> tuple[list[str], list[str]]:
    """Removes segments that were seen in our processes and that nobody has open now. Returns (removed, still in use)."""
    present = {path for path in paths if os.path.exists(path)}
    if not present:
        return [], []
    used = set().union(*(procfs.shared_memory(p.pid) for p in procfs.processes()))
    removed = []
    for path in sorted(present - used):
        try:
            os.unlink(path)
            removed.append(path)
        except OSError:
            continue
    return removed, sorted(present - set(removed))


def remove_tree(path: str) -> None:
    import shutil  # brings every compressor along: not before an engine is started

    shutil.rmtree(path, ignore_errors=True)


def has_nvidia_smi() -> bool:
    places = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(place, "nvidia-smi"), os.X_OK) for place in places if place)


def gpu_memory() -> dict[str, int] | None:
    """GPU index -> MiB in use as the driver says; None without nvidia-smi."""
    if not has_nvidia_smi():
        return None
    try:
        return read_gpu_memory(subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL).stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def read_gpu_memory(text: str) -> dict[str, int]:
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    return {index.strip(): int(used) for index, used in rows if used.strip().isdigit()}


def gpu_memory_report(before: dict[str, int] | None) -> dict[str, dict[str, int | None]] | None:
    """MiB before the engine started and now; waits up to 5 s for the driver to give memory back."""
    if before is None:
        return None
    deadline = time.monotonic() + 5
    now = gpu_memory()
    while now is not None and any(now.get(i, 0) > used + 16 for i, used in before.items()) and time.monotonic() < deadline:
        time.sleep(0.1)
        now = gpu_memory()
    return {index: {"before": used, "after": None if now is None else now.get(index)} for index, used in before.items()}
