"""Following a run that somebody else started: the same events, the same board, nothing changed by looking."""

import asyncio

from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.progress import choose_progress
from firstlight.app.reconcile import reconcile
from firstlight.app.session import Session, UpOptions
from firstlight.app.stages import watching
from firstlight.app.stages.failing import EngineFailed
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.run import TERMINAL, LaunchSpec
from firstlight.launch.client import SupervisorClient
from firstlight.probe.hosts import open_host

LOOK_SECONDS = 0.2


def refuse_over(folder: RunFolder) -> None:
    """Raises UsageError `run-is-over` where nothing runs and nobody is at work on it."""
    now = reconcile(folder)
    if now.state in TERMINAL and not RunStore().claimed(now.name):
        why = f"it is {now.state}{f' ({now.reason})' if now.reason else ''}"
        hint = f"firstlight up {now.model} --name {now.name} starts it anew; firstlight describe {folder.path.name} tells what it was"
        raise UsageError("run-is-over", f"{now.name!r} does not run any more", evidence=(why,), hint=hint)


async def follow(folder: RunFolder, *, from_byte: int = 0) -> int:
    """Until the run is ready (0) or over (raises EngineFailed); from one attempt to the next where an `up` is healing it."""
    session = _session(folder)
    progress = choose_progress("human", f"firstlight attach {session.name}", ["watch"])
    session.emitter.listeners.append(progress)
    session.emitter.stage = "watch"
    with progress:
        session.emitter.emit("stage-started")
        try:
            summary = await _follow(session, folder, from_byte)
        except (FirstlightError, asyncio.CancelledError) as e:
            session.emitter.emit("stage-failed", summary=str(e) or "interrupted")
            raise
        session.emitter.emit("stage-finished", summary=summary)
    return Exit.OK


async def _follow(session: Session, folder: RunFolder, from_byte: int) -> str:
    while True:
        await _launched(session, folder)
        try:
            return await watching.watch(session, from_byte=from_byte, mine=False)
        except EngineFailed as e:
            if not await _next_attempt(session, folder):
                raise
            session.emitter.emit("say", text=f"attempt {session.attempt} failed: {e.code}: {e.message}; following the next one")
            _renew(session, folder)
            from_byte = 0


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
    session.launch = folder.try_load(LaunchSpec, "launch.json")
    session.supervisor = SupervisorClient(session.host, folder.attempt_there)


def _session(folder: RunFolder) -> Session:
    """A session that only reads: its events are shown here and not written into the run's stream."""
    run = folder.run
    host = open_host(run.host)
    session = Session(
        intent=folder.try_load(Intent, "intent.json") or Intent(model=run.model),  # `launch` plans nothing
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
