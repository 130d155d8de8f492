"""The pipeline: one list of stages, from which `up`, its help, `--skip` and every progress surface come."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from firstlight.app import blaming, rehearsing
from firstlight.app.remotecode import consent_to_remote_code
from firstlight.app.session import Session
from firstlight.app.stages import asking, beside, look, prove, start, watching
from firstlight.core.errors import FirstlightError
from firstlight.core.run import RunState

HEARTBEAT_SECONDS = 30.0


class Stage(NamedTuple):
    """skippable: `--skip NAME` is allowed. changes: it writes, starts or downloads something, so `--dry-run` stops before it."""

    name: str
    help: str
    run: Callable[[Session], Awaitable[str]]
    skippable: bool = False
    changes: bool = True


STAGES: tuple[Stage, ...] = (
    Stage("inspect", "headers and configs of the checkpoint", look.inspect, changes=False),
    Stage("probe", "GPUs, memory, disks, engines of the machine", look.probe, changes=False),
    Stage("preflight", "every check, every problem at once", look.preflight, skippable=True, changes=False),
    Stage("plan", "memory, context, layout, the exact command", look.plan, changes=False),
    Stage("ask", "what the engine itself will pick and need", asking.ask, skippable=True),
    Stage("fetch", "weights on disk, verified; the rehearsal beside it", beside.fetch),
    Stage("overlay", "patched JSON beside links; the checkpoint is never touched", start.overlay),
    Stage("rehearse", "the plan with dummy weights on the real GPUs", rehearsing.rehearse_stage, skippable=True),
    Stage("launch", "start the engine under a supervisor", start.launch),
    Stage("watch", "until it is ready, or until the first cause is known", watching.watch),
    Stage("verify", "prove that the answers make sense", prove.verify, skippable=True),
    Stage("blame", "which knob makes the answers fail, with --blame", blaming.blame),
    Stage("bench", "measure, next to what was promised", prove.bench, skippable=True),
    Stage("report", "what is served, and what to do next", prove.report),
)
STAGE_NAMES = [s.name for s in STAGES]
SKIPPABLE = [s.name for s in STAGES if s.skippable]


def on_request(session: Session, stages: list[Stage]) -> list[Stage]:
    """Without those that come only when asked for: blame."""
    return [s for s in stages if s.name != "blame" or session.options.blame]


def stages_between(first: str, last: str) -> list[Stage]:
    """The stages from `first` to `last`, both included."""
    return list(STAGES[STAGE_NAMES.index(first) : STAGE_NAMES.index(last) + 1])


async def run_stage(session: Session, stage: Stage) -> None:
    """One stage with its events. Whatever it raises is announced and passed on."""
    emitter = session.emitter
    emitter.stage = stage.name
    if stage.name in session.options.skip:
        emitter.emit("stage-skipped", summary="skipped as asked")
        return
    began = time.monotonic()
    emitter.emit("stage-started")
    try:
        summary = await stage.run(session)
    except BaseException as e:
        session.stage_seconds[stage.name] = time.monotonic() - began
        text = str(e) if isinstance(e, FirstlightError) else "interrupted" if isinstance(e, asyncio.CancelledError) else type(e).__name__
        emitter.emit("stage-failed", summary=text, seconds=session.stage_seconds[stage.name])
        raise
    session.stage_seconds[stage.name] = time.monotonic() - began
    emitter.emit("stage-finished", summary=summary, seconds=session.stage_seconds[stage.name])


async def heartbeat(session: Session) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        session.emitter.emit("heartbeat")


async def run_stages(session: Session, stages: list[Stage]) -> None:
    """The stages in order, with a heartbeat beside them."""
    beat = asyncio.create_task(heartbeat(session))
    try:
        for stage in stages:
            await run_stage(session, stage)
            if stage.name in ("plan", "ask"):
                look.stop_if_blocked(session)
            if stage.name == "plan" and not session.options.dry_run:
                consent_to_remote_code(session)
    finally:
        beat.cancel()


def mark(session: Session, state: RunState, **changes: object) -> None:
    """Writes the run's state and announces it."""
    if session.folder is not None:
        session.folder.update(state=state, **changes)
        session.emitter.emit("state", state=str(state))
