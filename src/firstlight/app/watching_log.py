"""What `watch` reads: a run, a log file, or standard input; live or replayed."""

import asyncio
import os
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.app.log_text import is_packed, log_pieces, stdin_pieces
from firstlight.app.reading import read_rate, weight_files
from firstlight.app.where import chosen_host
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, HostError, InputError
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.ports import Host
from firstlight.core.run import TERMINAL, LaunchSpec
from firstlight.probe.hosts import open_host
from firstlight.probe.patient import open_patient_host
from firstlight.watch.eta import Eta
from firstlight.watch.follow import Beat, Follower, follow_chunks, follow_file
from firstlight.watch.sampler import Sampler
from firstlight.watch.state import EngineLog, LogEvent

CHUNK = 1 << 20
OVER_SECONDS = 2.0
INTERRUPTIBLE_SECONDS = 0.2
HISTORY = 5
Take = Callable[[LogEvent | Beat], None]


class Target(Struct, frozen=True, kw_only=True):
    """Where the log is. pid: of the engine, where it is a run that is alive. path None: standard input.

    history: phase times of earlier runs of the same model here; checkpoint_bytes: what loading reads, from weight_files, at
    read_bytes_per_second as this machine's storage was measured.
    """

    name: str
    path: str | None
    host: str = "local"
    pid: int | None = None
    engine: str = "auto"
    version: str | None = None
    live: bool = False
    history: list[dict[str, float]] = []
    checkpoint_bytes: int | None = None
    weight_files: list[str] = []
    read_bytes_per_second: float | None = None


def find_target(name: str) -> Target:
    """`-`, an existing file, else a run. Raises InputError `log-not-found`, UsageError of the store."""
    from firstlight.app.store import RunStore

    if name == "-":
        return Target(name="stdin", path=None, live=True)
    there = chosen_host()
    if there and not open_host(there).is_local and name.startswith("/"):
        return Target(name=Path(name).name, path=name, host=there)
    if os.path.isfile(name):
        return Target(name=Path(name).name, path=str(Path(name).absolute()))
    if Path(name).is_dir():
        raise InputError("log-not-found", f"{name} is a folder", hint="name the log file in it")
    if "/" in name or name.endswith((".log", ".txt")):
        raise InputError("log-not-found", f"there is no log {name}", hint="name a log file, a run, or - for standard input")
    store = RunStore()
    folder = store.find(name)
    run = folder.run
    checkpoint = folder.try_load(Checkpoint, "checkpoint.json")
    others = [f for f, r in store.scan()[0] if (r.model, r.host) == (run.model, run.host) and r.id != run.id]
    launch = folder.try_load(LaunchSpec, "launch.json")
    install = folder.try_load(EngineInstall, "engine-install.json")
    return Target(
        name=run.name,
        path=folder.log_there,
        host=run.host,
        pid=run.engine_process.pid if run.engine_process and run.state not in TERMINAL else None,
        engine=launch.engine if launch else run.engine or "auto",
        version=install.version if install else None,
        live=run.state not in TERMINAL,
        history=[times for f in others[:HISTORY] if (times := f.phase_seconds())][::-1],
        checkpoint_bytes=checkpoint.file_bytes if checkpoint else None,
        weight_files=weight_files(checkpoint),
        read_bytes_per_second=read_rate(checkpoint, folder.try_load(Machine, "machine.json")),
    )


async def watch_target(target: Target, take: Take, *, replay: bool) -> EngineLog:
    """Reads to the end (a replay, a finished run, a pipe that closes) or follows until the start is over."""
    host = open_patient_host(target.host)
    replay = replay or (target.path is not None and not target.live and target.name != "stdin" and _finished(host, target.path))
    log = EngineLog(target.engine, target.version, stamped=replay)
    if replay:
        await replay_file(log, target, take)
        return log
    engine = target.engine if target.engine != "auto" else "vllm"
    eta = Eta(
        engine,
        history=target.history,
        checkpoint_bytes=target.checkpoint_bytes,
        read_bytes_per_second=target.read_bytes_per_second,
    )
    follower = Follower(log, eta, samples=_sampler(host, target))
    over = _over(host, target)
    async for item in follow_file(follower, host, target.path, over=over) if target.path else follow_chunks(follower, stdin_chunks()):
        take(item)
    for event in log.close(time.time()):
        take(event)
    return log


def _over(host: Host, target: Target) -> Callable[[], bool]:
    """Whether a run's supervisor, or the guardian in its place, has written the end: the engine's last line may not tell."""

    looked = time.monotonic()

    def over() -> bool:
        nonlocal looked
        if time.monotonic() - looked < OVER_SECONDS:
            return False
        looked = time.monotonic()
        try:
            record = msgspec.json.decode(host.read(str(Path(target.path or "").with_name("supervisor.json"))))
        except (HostError, msgspec.DecodeError):
            return False
        return isinstance(record, dict) and record.get("state") in ("stopped", "failed")

    return over if target.live and target.path else lambda: False


def _sampler(host: Host, target: Target) -> Sampler | None:
    return Sampler(host, target.pid, time.time, target.weight_files) if target.pid else None


def _finished(host: Host, path: str) -> bool:
    """A file that nobody has written for a minute is read and not followed."""
    found = host.stat(path)
    if host.is_local and is_packed(path):
        return True
    return found is None or time.time() - (found.modified or 0.0) > 60


async def replay_file(log: EngineLog, target: Target, take: Take) -> None:
    """Every event of a file, with the times that its lines carry; Ctrl-C is heard between two pieces."""
    for chunk in file_chunks(target):
        for event in log.feed(chunk, 0.0):
            take(event)
        await asyncio.sleep(0)
    for event in log.close(0.0):
        take(event)


def file_chunks(target: Target) -> Iterator[bytes]:
    """A file (or standard input) in pieces: constant memory, whatever its size. Raises InputError `log-unreadable`."""
    if target.path is None:
        yield from stdin_pieces(sys.stdin.fileno())
        return
    if target.host != "local":
        yield from _pieces_there(open_patient_host(target.host), target.path)
        return
    try:
        yield from log_pieces(target.path)
    except OSError as e:
        raise InputError("log-unreadable", f"{target.path} cannot be read", evidence=(str(e.strerror),)) from None


def _pieces_there(host: Host, path: str) -> Iterator[bytes]:
    position = 0
    while piece := host.read(path, position, CHUNK):
        position += len(piece)
        yield piece


async def stdin_chunks() -> AsyncIterator[bytes]:
    """Standard input as it comes. Nothing blocks in reading: Ctrl-C ends a pipe that is silent, too."""
    descriptor = sys.stdin.fileno()
    while True:
        readable, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], INTERRUPTIBLE_SECONDS)
        if not readable:
            continue
        if not (chunk := os.read(descriptor, CHUNK)):
            return
        yield chunk


def exit_of(log: EngineLog) -> int:
    """A start that was watched live (a run, a file that grows, a pipe) and failed is an engine failure; reading an old log never is."""
    return Exit.ENGINE_FAILED if log.phase == "failed" and not log.stamped else Exit.OK


def ending_of(target: Target) -> tuple[int | None, dict[str, Any]]:
    """How a run's engine ended, from its supervisor's record: exit status, and whether the kernel counted an OOM kill.

    Nothing for a log file and for an engine that runs.
    """
    if target.path is None:
        return None, {}
    try:
        data = msgspec.json.decode(open_host(target.host).read(str(Path(target.path).with_name("exit.json"))))
    except (HostError, msgspec.DecodeError):
        return None, {}
    if not isinstance(data, dict):
        return None, {}
    status = data.get("returncode")
    return (status if isinstance(status, int) else None), ({"cgroup_oom_kills": 1} if data.get("oom_killed") else {})
