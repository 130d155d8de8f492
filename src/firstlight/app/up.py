"""`up`: the pipeline with its surroundings: one name one run, signals, the last word."""

import asyncio
import os
from contextlib import suppress
from functools import partial

import msgspec

from firstlight.app import flow, heal
from firstlight.app.elsewhere import folder_there
from firstlight.app.reconcile import reconcile
from firstlight.app.session import Session
from firstlight.app.stages import start, watching
from firstlight.app.stages.failing import EngineFailed
from firstlight.app.stages.hearing import STOPPED_MEANWHILE, stopped_meanwhile, was_stopped
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.plan import PlanSet
from firstlight.core.run import TERMINAL, LaunchSpec, Run, RunState
from firstlight.deploy.notify import Notifier
from firstlight.launch.client import SupervisorClient

AGAIN = ("verify", "report")


async def up(session: Session) -> None:
    """Takes the session's intent to a verified endpoint. Raises FirstlightError, or CancelledError after Ctrl-C."""
    if session.options.dry_run:
        await flow.run_stages(session, flow.stages_between("inspect", "plan"))
        session.launch = start.make_launch(session)
        return
    with session.store.claim(session.name):
        if not await _verified_again(session):
            await _fresh(session)
    if session.options.foreground:
        serving = session.endpoint.base_url if session.endpoint else ""
        Notifier.from_environment(os.environ, os.getpid()).send(patience=30.0, READY=1, STATUS=f"serving {session.name} at {serving}")
        await _stay(session)


async def _verified_again(session: Session) -> bool:
    """Whether this very plan runs already: then it is verified again, once ready. Raises UsageError `name-in-use` for another plan."""
    running = [(folder, run) for folder, _ in session.store.active(session.name) if (run := reconcile(folder)).state not in TERMINAL]
    if not running:
        return False
    folder, run = running[0]
    if run.endpoint is None or not _same(session.intent, folder.load(Intent, "intent.json")):
        raise _name_in_use(run)
    await flow.run_stages(session, flow.stages_between("inspect", "probe"))
    if start.plan_digest(session, session.intent) != run.plan_digest:
        raise _name_in_use(run)
    session.folder = session.emitter.folder = folder
    session.endpoint, session.plan_set = run.endpoint, folder.try_load(PlanSet, "plan.json")
    session.supervisor, session.attempt = _supervisor(session), run.attempt
    session.launch = folder.try_load(LaunchSpec, "launch.json")
    await flow.run_stages(session, [*_to_ready(session), *(s for s in flow.STAGES if s.name in AGAIN)])
    return True


def _to_ready(session: Session) -> list[flow.Stage]:
    """Where the run still loads, because the `up` that had started it was killed or its terminal closed: what is left of its start."""
    assert session.supervisor is not None
    if session.supervisor.status().state == "ready":
        return []
    began = [event.byte for event in session.supervisor.past_events() if event.kind == "engine-started"]
    rest = partial(watching.watch, from_byte=began[-1] if began else 0)
    return [stage._replace(run=rest) for stage in flow.STAGES if stage.name == "watch"]


def _same(mine: Intent, theirs: Intent) -> bool:
    """Whether two requests mean the same; a port that is not said may be any."""
    port_agrees = mine.port in (None, theirs.port)
    return port_agrees and msgspec.structs.replace(mine, port=None) == msgspec.structs.replace(theirs, port=None)


def _name_in_use(run: Run) -> UsageError:
    serves = run.endpoint.base_url if run.endpoint else "nothing yet"
    return UsageError(
        "name-in-use",
        f"{run.name!r} runs already, with another plan",
        evidence=(f"run {run.id} is {run.state}", f"model {run.model}", f"serves {serves}"),
        hint=f"firstlight down {run.name} stops it; --name OTHER starts this one beside it",
    )


async def _fresh(session: Session) -> None:
    """A new run: its folder first, so that whatever happens is on record."""
    session.folder = session.emitter.folder = session.store.create(name=session.name, model=session.intent.model, host=session.host.name)
    asked = session.intent
    session.save(asked, "intent.json")
    try:
        if not session.host.is_local:
            session.folder.update(host_folder=folder_there(session.host, session.folder.path.name))
        await flow.run_stages(session, flow.stages_between("inspect", "fetch"))
        session.folder.update(plan_digest=start.plan_digest(session, asked))
        await heal.start_with_remedies(session)
        await flow.run_stages(session, flow.on_request(session, flow.stages_between("verify", "report")))
    except FirstlightError as e:
        told = await asyncio.to_thread(_as_stopped, session, e)
        _close(session, told)
        if told is e:
            raise
        raise told from None
    except asyncio.CancelledError:
        await _interrupted(session)
        raise


def _as_stopped(session: Session, error: FirstlightError) -> FirstlightError:
    """What is found at an endpoint that somebody has just stopped says nothing of it; the trials of `--blame` stop it themselves."""
    settled = isinstance(error, EngineFailed) or error.code == STOPPED_MEANWHILE or session.options.blame
    return error if settled or not was_stopped(session) else stopped_meanwhile(session, "was verified and measured")


def _close(session: Session, error: FirstlightError) -> None:
    """The run's state after a failure: an endpoint that failed verification is left up, anything else is over."""
    assert session.folder is not None
    with suppress(FirstlightError):
        if error.exit_code is Exit.VERIFICATION_FAILED and session.supervisor is not None:
            session.folder.update(state=RunState.READY, reason="not verified", exit_code=int(error.exit_code))
        elif error.code == STOPPED_MEANWHILE:
            session.folder.update(state=RunState.STOPPED, exit_code=int(error.exit_code))
        else:
            stop_engine(session)
            session.folder.update(state=RunState.FAILED, reason=error.code, exit_code=int(error.exit_code))


async def _interrupted(session: Session) -> None:
    """Ctrl-C: the engine is stopped gracefully; a second one kills it (see `guard`)."""
    assert session.folder is not None
    session.emitter.emit("say", text="stopping; Ctrl-C again kills")
    session.folder.update(state=RunState.STOPPING)
    await asyncio.shield(asyncio.to_thread(stop_engine, session))
    session.folder.update(state=RunState.STOPPED, reason="interrupted", exit_code=int(Exit.INTERRUPTED))


def stop_engine(session: Session) -> None:
    if session.supervisor is not None:
        session.supervisor.stop()


def _supervisor(session: Session) -> SupervisorClient:
    assert session.folder is not None
    return SupervisorClient(session.host, session.folder.attempt_there)


async def _stay(session: Session) -> None:
    """`--foreground`: until the engine is over (exit 5) or this process is told to end, which stops it."""
    from firstlight.app.stages.failing import failed
    from firstlight.app.stages.hearing import supervisor_events, supervisor_gone

    queue = supervisor_events(session)
    try:
        while True:
            event = await queue.get()
            if event is None:
                raise supervisor_gone(session)
            if event.kind == "failed":
                raise await failed(session, event.data)
            if event.kind == "ended":
                return
    except asyncio.CancelledError:
        await _interrupted(session)
        raise
