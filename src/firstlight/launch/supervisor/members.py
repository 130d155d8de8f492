"""Which processes belong to a run, and the proof for each. What is not proven is never touched."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from . import procfs
from .procfs import Process

MARKER = "FIRSTLIGHT_RUN"
FOLDER = "FIRSTLIGHT_FOLDER"
PREFIX = "firstlight-"
HOOK = "FIRSTLIGHT_NAME"  # stands in the environment of the user's own commands, which are no part of the run


class Claim(NamedTuple):
    """What a run knows of its processes. engine: pid and start ticks of the engine's main process, which leads its own session.

    known: (pid, start ticks) of members seen before. supervisor: its pid, to which the engine's orphans come. folder: the run's own.
    """

    run: str
    engine_pid: int | None = None
    engine_ticks: int | None = None
    cgroup: str | None = None
    known: frozenset[tuple[int, int]] = frozenset()
    supervisor: int | None = None
    folder: str | None = None


class Member(NamedTuple):
    """proof: `engine`, `cgroup`, `session`, `known`, `orphan`, `marker` or `child`."""

    process: Process
    proof: str


def members(claim: Claim) -> list[Member]:
    """Every living process of the run, zombies left out.

    The proofs: the recorded start time; the run's own cgroup; the engine's session (its number is not given out again while a
    process holds it, and nothing older than the engine can be in it); a member seen before; an orphan that came to the supervisor;
    the marker in the environment. Children of those are ours too.
    """
    everyone = {p.pid: p for p in procfs.processes() if p.state not in "ZX"}
    in_cgroup = cgroup_pids(claim.cgroup)
    found = {pid: proof for pid, p in everyone.items() if (proof := _proof(claim, p, in_cgroup)) is not None}
    _add_children(found, everyone)
    found.pop(os.getpid(), None)
    return [Member(everyone[pid], proof) for pid, proof in sorted(found.items())]


def _proof(claim: Claim, process: Process, in_cgroup: frozenset[int]) -> str | None:
    if process.pid == claim.engine_pid and process.start_ticks == claim.engine_ticks:
        return "engine"
    if process.pid in in_cgroup:
        return "cgroup"
    if claim.engine_ticks is not None and process.sid == claim.engine_pid and process.start_ticks >= claim.engine_ticks:
        return "session" if not _reused(claim) else None
    if (process.pid, process.start_ticks) in claim.known:
        return "known"
    environment = procfs.environment(process.pid)
    if process.ppid == claim.supervisor and HOOK not in environment:
        return "orphan"
    marked = environment.get(MARKER) == claim.run or (claim.folder is not None and environment.get(FOLDER) == claim.folder)
    return "marker" if marked else None


def _reused(claim: Claim) -> bool:
    """Whether the engine's number now belongs to another process."""
    leader = procfs.process(claim.engine_pid or 0)
    return leader is not None and leader.start_ticks != claim.engine_ticks


def _add_children(found: dict[int, str], everyone: dict[int, Process]) -> None:
    grown = True
    while grown:
        new = {p.pid: "child" for p in everyone.values() if p.ppid in found and p.pid not in found}
        found.update(new)
        grown = bool(new)


def cgroup_pids(path: str | None) -> frozenset[int]:
    if path is None:
        return frozenset()
    try:
        with open(os.path.join(path, "cgroup.procs")) as file:
            return frozenset(int(line) for line in file if int(line))
    except (OSError, ValueError):
        return frozenset()


def own_cgroup(pid: int) -> str | None:
    """The cgroup that `make_cgroup` made for the run of this process; None where it is in another."""
    root, path = _cgroup_mount(), _cgroup_of(f"/proc/{pid}/cgroup")
    made = root is not None and path is not None and os.path.basename(path).startswith(PREFIX)
    return os.path.join(root or "", (path or "").lstrip("/")) if made else None


def make_cgroup(run: str) -> str | None:
    """A cgroup of the run's own beneath ours (version 2); None where that is not allowed."""
    root, own = _cgroup_mount(), _cgroup_of("/proc/self/cgroup")
    if root is None or own is None:
        return None
    path = os.path.join(root, own.lstrip("/"), f"{PREFIX}{run}"[:200])
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return None
    return path if os.access(os.path.join(path, "cgroup.procs"), os.W_OK) else None


def remove_cgroup(path: str | None, *, patience: float = 2.0) -> bool:
    """True where nothing is left of it. A process that is being torn down keeps it busy for a moment."""
    until = time.monotonic() + patience
    while path is not None:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True
    return True


def _cgroup_mount() -> str | None:
    try:
        with open("/proc/self/mountinfo") as file:
            rows = [line.split(" - ") for line in file]
    except OSError:
        return None
    return next((row[0].split()[4] for row in rows if len(row) == 2 and row[1].startswith("cgroup2 ")), None)


def _cgroup_of(file_path: str) -> str | None:
    try:
        with open(file_path) as file:
            return next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        return None


def owner_line(pid: int) -> str:
    """Who holds something, for people: pid, user and command."""
    uid = procfs.owner(pid)
    return f"pid {pid}" if uid is None else f"pid {pid}, uid {uid}: {procfs.command(pid)}"
