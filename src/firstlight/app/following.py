"""Following a run that somebody else started: the same events, the same board, nothing changed by looking."""

import asyncio

from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.progress import choose_progress
from firstlight.app.session import Session, UpOptions
from firstlight.app.stages import watching
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.intent import Intent
from firstlight.core.run import LaunchSpec
from firstlight.launch.client import SupervisorClient
from firstlight.probe.hosts import open_host


async def follow(folder: RunFolder, *, from_byte: int = 0) -> int:
    """Until the run is ready (0) or over (raises EngineFailed)."""
    session = _session(folder)
    progress = choose_progress("human", f"firstlight attach {session.name}", ["watch"])
    session.emitter.listeners.append(progress)
    session.emitter.stage = "watch"
    with progress:
        session.emitter.emit("stage-started")
        try:
            summary = await watching.watch(session, from_byte=from_byte, mine=False)
        except (FirstlightError, asyncio.CancelledError) as e:
            session.emitter.emit("stage-failed", summary=str(e) or "interrupted")
            raise
        session.emitter.emit("stage-finished", summary=summary)
    return Exit.OK


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
        attempt=run.attempt,
    )
    session.launch = folder.try_load(LaunchSpec, "launch.json")
    session.endpoint = run.endpoint
    session.supervisor = SupervisorClient(host, folder.attempt_there)
    return session
