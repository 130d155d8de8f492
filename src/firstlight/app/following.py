"""Following a run that somebody else started: the same events, the same board, nothing changed by looking."""

import asyncio
from typing import TypeVar

import msgspec

from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.progress import choose_progress
from firstlight.app.reconcile import reconcile
from firstlight.app.session import Session, UpOptions
from firstlight.app.stages import watching
from firstlight.app.stages.failing import EngineFailed
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import Exit, FirstlightError, HostError, InputError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.run import TERMINAL, LaunchSpec
from firstlight.launch.client import SupervisorClient
from firstlight.probe.hosts import open_host

LOOK_SECONDS = 0.2
T = TypeVar("T", bound=msgspec.Struct)


def refuse_over(folder: RunFolder) -> None:
    """Raises UsageError `run-is-over` where nothing runs and nobody is at work on it."""
    now = reconcile(folder)
    if now.state in TERMINAL and not RunStore().claimed(now.name):
        why = f"it is {now.state}{f' ({now.reason})' if now.reason else ''}"
        hint = f"firstlight up {now.model} --name {now.name} starts it anew; firstlight describe {folder.path.name} tells what it was"
        raise UsageError("run-is-over", f"{now.name!r} does not run any more", evidence=(why,), hint=hint)


def life(client: SupervisorClient) -> tuple[int, int]:
    """(byte of the supervisor's events, byte of the log) where the engine's present life begins, or the next one that is awaited."""
    begun = [e for e in client.past_events() if e.kind in ("engine-started", "engine-adopted", "restarting", "stopping")]
    if not begun:
        return 0, 0
    offset = begun[-1].data.get("log_offset")
    return begun[-1].byte, offset if isinstance(offset, int) else end_of_log(client)


def end_of_log(client: SupervisorClient) -> int:
    try:
        found = client.host.stat(f"{client.folder}/engine.log")
    except HostError:
        return 0
    return found.size if found is not None else 0


async def follow(folder: RunFolder, *, since: tuple[int, int] | None = None) -> int:
    """Until the run is ready (0) or over (raises EngineFailed); from one attempt to the next where an `up` is healing it.

    since: bytes of events and log as of `life`, which says where to begin when they are not given.
    """
    session = _session(folder)
    progress = choose_progress("human", f"firstlight attach {session.name}", ["watch"])
    session.emitter.listeners.append(progress)
    session.emitter.stage = "watch"
    with progress:
        session.emitter.emit("stage-started")
        try:
            summary = await _follow(session, folder, since)
        except (FirstlightError, asyncio.CancelledError) as e:
            session.emitter.emit("stage-failed", summary=str(e) or "interrupted")
            raise
        session.emitter.emit("stage-finished", summary=summary)
    return Exit.OK


async def _follow(session: Session, folder: RunFolder, since: tuple[int, int] | None) -> str:
    while True:
        await _launched(session, folder)
        began = await asyncio.to_thread(life, session.supervisor) if since is None else since
        try:
            return await watching.watch(session, from_byte=began[0], log_from=began[1], mine=False)
        except EngineFailed as e:
            if not await _next_attempt(session, folder):
                raise
            session.emitter.emit("say", text=f"attempt {session.attempt} failed: {e.code}: {e.message}; following the next one")
            _renew(session, folder)
            since = None


async def _launched(session: Session, folder: RunFolder) -> None:
    """Until the attempt has a supervisor; what the `up` that is at work does meanwhile is shown. Raises UsageError `run-is-over`."""
    shown = ""
    while not _supervised(session):
        await asyncio.to_thread(refuse_over, folder)
        if (state := str(folder.run.state)) != shown:
            shown = state
            session.emitter.emit("phase", name=state)
        await asyncio.sleep(LOOK_SECONDS)
        _renew(session, folder)


def _supervised(session: Session) -> bool:
    try:
        session.supervisor.status()
    except FirstlightError as e:
        if e.code != "never-supervised":
            raise
        return False
    return True


async def _next_attempt(session: Session, folder: RunFolder) -> bool:
    """Whether another attempt follows this one: the `up` that is at work says so by starting it, or by being over."""
    while RunStore().claimed(session.name):
        if folder.run.attempt > session.attempt:
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return folder.run.attempt > session.attempt


def _renew(session: Session, folder: RunFolder) -> None:
    """The session looks at the attempt that the run is at now."""
    run = folder.run
    session.attempt, session.endpoint = run.attempt, run.endpoint
    session.launch = _readable(folder, LaunchSpec, "launch.json")
    session.supervisor = SupervisorClient(session.host, folder.attempt_there)


def _readable(folder: RunFolder, kind: type[T], name: str) -> T | None:
    """What is not there or damaged is not needed to look on."""
    try:
        return folder.try_load(kind, name)
    except InputError:
        return None


def _session(folder: RunFolder) -> Session:
    """A session that only reads: its events are shown here and not written into the run's stream."""
    run = folder.run
    host = open_host(run.host)
    session = Session(
        intent=_readable(folder, Intent, "intent.json") or Intent(model=run.model),  # `launch` plans nothing
        options=UpOptions(),
        host=host,
        adapters=[],
        store=RunStore(),
        consent=Consent(),
        emitter=Emitter(None, []),
        name=run.name,
        folder=folder,
    )
    _renew(session, folder)
    return session
