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

from firstlight.app.log_text import UNPACK, is_packed, is_stream, log_pieces, packing_of, stdin_pieces, stream_pieces, text_of
from firstlight.app.output import say
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
READ_ONCE = "a pipe is read once: what came is read to its end, and cannot be watched again"
INTERRUPTIBLE_SECONDS = 0.2
HISTORY = 5
Take = Callable[[LogEvent | Beat], None]


class Target(Struct, frozen=True, kw_only=True):
    """Where the log is. pid: of the engine, where it is a run that is alive. path None: standard input. stream: a FIFO or a device.

    history: phase times of earlier runs of the same model here; checkpoint_bytes: what loading reads, from weight_files, at
    read_bytes_per_second as this machine's storage was measured.
    """

    name: str
    path: str | None
    stream: bool = False
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
    if is_stream(name):
        return Target(name=Path(name).name, path=str(Path(name).absolute()), stream=True, live=True)
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
    async for item in _items(follower, host, target, over):
        take(item)
    for event in follower.end_line():
        take(event)
    if target.stream:
        take(follower.note(READ_ONCE))
    return log


def _items(follower: Follower, host: Host, target: Target, over: Callable[[], bool]) -> AsyncIterator[LogEvent | Beat]:
    if target.path is None:
        return follow_chunks(follower, stream_chunks(sys.stdin.fileno()))
    if target.stream:
        return follow_chunks(follower, opened_chunks(target.path))
    return follow_file(follower, host, target.path, over=over)


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
        yield from stream_pieces(target.path, say) if target.stream else log_pieces(target.path)
    except OSError as e:
        raise InputError("log-unreadable", f"{target.path} cannot be read", evidence=(str(e.strerror),)) from None


def _pieces_there(host: Host, path: str) -> Iterator[bytes]:
    return text_of(_raw_pieces_there(host, path), path)


def _raw_pieces_there(host: Host, path: str) -> Iterator[bytes]:
    position = 0
    while piece := host.read(path, position, CHUNK):
        position += len(piece)
        yield piece


async def stream_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Standard input or a pipe as it comes. Nothing blocks in reading: Ctrl-C ends a pipe that is silent, too.

    Raises InputError `log-packed` where it begins like an archive: a live view is of text.
    """
    first = True
    while True:
        readable, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], INTERRUPTIBLE_SECONDS)
        if not readable:
            continue
        if not (chunk := os.read(descriptor, CHUNK)):
            return
        if first and (kind := packing_of(chunk)):
            hint = f"unpack it on the way: `{UNPACK[kind]} | firstlight watch -`"
            raise InputError("log-packed", f"the stream is packed with {kind}", hint=hint)
        first = False
        yield chunk


async def opened_chunks(path: str) -> AsyncIterator[bytes]:
    """A FIFO or a device as it comes; one that nobody writes yet is waited for. Raises InputError `log-unreadable`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        raise InputError("log-unreadable", f"{path} cannot be read", evidence=(str(e.strerror),)) from None
    try:
        async for chunk in stream_chunks(descriptor):
            yield chunk
    finally:
        os.close(descriptor)


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
