"""From the first line of the engine's log to ready, or to the first cause of its end."""

import asyncio
import json
import time
from typing import Any

from firstlight.app.reading import read_rate, weight_files
from firstlight.app.recording import check_kv_cache, close_records
from firstlight.app.session import Session
from firstlight.app.stages.failing import failed, port_stolen
from firstlight.app.stages.hearing import Pauses, stopped_meanwhile, supervisor_events, supervisor_gone
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.run import RunState
from firstlight.core.units import format_seconds
from firstlight.watch.eta import Eta, phase_seconds
from firstlight.watch.follow import Beat, Beats, Follower
from firstlight.watch.sampler import Sampler
from firstlight.watch.stall import Stall
from firstlight.watch.state import EngineLog

LOOK_SECONDS = 0.02
LOOK_SECONDS_ELSEWHERE = 0.5  # every look at another host is a command there
LOST = frozenset({"host-unreachable", "command-timeout"})
STATES = {
    "loading": RunState.LOADING,
    "compiling": RunState.COMPILING,
    "capturing": RunState.CAPTURING,
    "warming": RunState.WARMING,
    "ready": RunState.READY,
}


class LogTail:
    """Reads what the log has gained since the last look; a rotated log is read again from its beginning."""

    def __init__(self, session: Session, path: str, position: int = 0) -> None:
        self.host, self.path, self.position = session.host, path, position

    def read(self) -> bytes:
        try:
            info = self.host.stat(self.path)
            if info is None or info.size == self.position:
                return b""
            if info.size < self.position:
                self.position = 0
            data = self.host.read(self.path, self.position, 8 << 20)
        except HostError as e:
            if e.code not in LOST:
                raise
            return b""  # a lost connection: read on from the same byte
        self.position += len(data)
        return data


async def watch(session: Session, *, from_byte: int = 0, log_from: int = 0, mine: bool = True) -> str:
    """Waits on the supervisor's events from `from_byte` on; the log's lines become events of the run meanwhile. Raises EngineFailed.

    log_from: the byte of the log where this life of the engine begins.

    mine: the run may be ended here, where its port went to a stranger; who only looks on waits for what its owner does.
    """
    if session.folder is None or session.supervisor is None:
        raise FirstlightError("no-launch", "nothing has been launched", hint="run the launch stage first")
    follower = make_follower(session)
    beats = Beats(follower)
    try:
        return await _watch(session, LogTail(session, session.log_there, log_from), follower, beats, from_byte=from_byte, mine=mine)
    finally:
        beats.close()
        close_records(session)


async def _watch(session: Session, tail: LogTail, follower: Follower, beats: Beats, *, from_byte: int, mine: bool) -> str:
    queue, pauses = supervisor_events(session, from_byte), Pauses(session)
    look = LOOK_SECONDS if session.host.is_local else LOOK_SECONDS_ELSEWHERE
    while True:
        try:
            async with asyncio.timeout(look):  # not wait_for: on Python 3.11 it can swallow a Ctrl-C
                event = await queue.get()
        except TimeoutError:
            await _read_log(session, tail, follower)
            if beat := beats.next():
                _tell_beat(session, beat)
            await pauses.look()
            continue
        await _read_log(session, tail, follower, drain=True)
        if event is None:
            raise supervisor_gone(session)
        if event.kind == "ready":
            await check_kv_cache(session)
            return _ready(session, event.data, follower)
        if event.kind == "port-stolen" and mine:
            raise await port_stolen(session, event.data)
        if event.kind == "ended" and event.data.get("state") == "stopped":
            raise stopped_meanwhile(session)
        if event.kind in ("died", "ended", "failed"):
            raise await failed(session, event.data)


def make_follower(session: Session) -> Follower:
    """The log's state machine with an ETA from this machine's earlier runs and samples of the engine's processes."""
    engine = session.launch.engine if session.launch else "auto"
    checkpoint, process = session.checkpoint, session.folder and session.folder.run.engine_process
    eta = Eta(
        engine,
        history=past_phases(session),
        checkpoint_bytes=checkpoint.file_bytes if checkpoint else None,
        read_bytes_per_second=read_rate(checkpoint, session.machine),
    )
    samples = Sampler(session.host, process.pid, time.time, weight_files(checkpoint)) if process else None
    return Follower(EngineLog(engine, session.install.version if session.install else None), eta, samples=samples)


def past_phases(session: Session, *, most: int = 5) -> list[dict[str, float]]:
    """Phase times of earlier starts of this model on this host, oldest first."""
    past: list[dict[str, float]] = []
    for folder, run in session.store.scan()[0]:
        if session.folder is not None and folder.path == session.folder.path:
            continue
        if (run.model, run.host) == (session.intent.model, session.host.name) and (times := folder.phase_seconds()):
            past.insert(0, times)
        if len(past) == most:
            break
    return past


def _tell_beat(session: Session, beat: Beat) -> None:
    """The ETA, how much is loaded where the log is silent, and a verdict on silence or on a wait when it changes."""
    if beat.unit == "bytes":
        session.emitter.emit("progress", done=beat.done, total=beat.total, unit="bytes", what="loading")
    if beat.remaining.known:
        session.emitter.emit(
            "eta", seconds=beat.remaining.mid, low=beat.remaining.low, high=beat.remaining.high, because=beat.remaining.because
        )
    if beat.verdict.state is Stall.STALLED and beat.stacks is not None:
        session.emitter.emit("stacks", text=beat.stacks)
    if beat.verdict.state is Stall.STALLED and session.stalled_at != beat.phase:
        session.stalled_at = beat.phase
        session.emitter.emit("stalled", phase=beat.phase, because=beat.verdict.because)
        session.emitter.emit("say", text=f"stalled in {beat.phase}: {beat.verdict.because}")
    if beat.wait is not None and session.wait_told != (beat.phase, beat.verdict.state):
        session.wait_told = (beat.phase, beat.verdict.state)
        session.emitter.emit("say", text=beat.wait)


async def _read_log(session: Session, tail: LogTail, follower: Follower, *, drain: bool = False) -> None:
    for record in session.records.drain() if session.records else ():
        for event in follower.record(record):
            _tell(session, event)
    while data := await asyncio.to_thread(tail.read):
        for event in follower.take(data):
            _tell(session, event)
        if not drain:
            return


def _tell(session: Session, event: Any) -> None:
    """A log event as an event of the run: phases move the run's state, progress moves the bar."""
    if event.kind == "phase":
        name = event.data["name"]
        if session.folder and name in STATES and name != "ready":
            session.folder.update(state=STATES[name])
        session.emitter.emit("phase", name=name)
    elif event.kind != "worker-phase":
        session.emitter.emit(event.kind, line=event.line, worker=event.worker, **event.data)


def _ready(session: Session, data: dict[str, Any], follower: Follower) -> str:
    if session.folder:
        session.folder.update(state=RunState.READY)
        session.folder.write("phases.json", json.dumps(phase_seconds(follower.log)).encode())
    session.emitter.emit("ready", **data)
    seconds = data.get("seconds")
    return f"ready after {format_seconds(seconds)}" if seconds is not None else "ready"
