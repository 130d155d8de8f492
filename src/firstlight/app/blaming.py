"""Blame: when the answers make no sense, the same plan is started with one knob changed at a time, until one cures it.

`up --blame` does it for the run that it has just started, `verify --blame` (blaming_run.py) for one that serves already.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from firstlight.app.session import Session
from firstlight.app.stages import look, prove, start
from firstlight.app.stages.yielding import yielded
from firstlight.core.errors import FirstlightError
from firstlight.core.run import Endpoint
from firstlight.core.verdict import Verdict
from firstlight.launch.client import Options, SupervisorClient, SupervisorEvent
from firstlight.launch.client import start as start_supervisor
from firstlight.verify.blame import Knob, find_culprit
from firstlight.verify.claimed import claims_for
from firstlight.verify.verify import verify

BUDGET_SECONDS = 900.0
TRIAL_SECONDS = 120.0
Asking = Callable[..., Awaitable[Verdict]]
"""`verify`, or `verify` with what its caller has bound: a reference to compare with, a profile."""


async def blame(session: Session) -> str:
    """The stage: what was tried and found goes into the verdict. The failed endpoint is stopped first: the trials need its memory."""
    verdict = session.verdict
    if verdict is None or verdict.passed or session.supervisor is None:
        return "nothing to blame"
    await asyncio.to_thread(session.supervisor.stop)
    session.supervisor = None
    trials = Trials(session)
    try:
        found = await find_culprit(verdict, trials.relaunch, trials.ask, engine=session.best.engine.name, budget_seconds=BUDGET_SECONDS)
    finally:
        await trials.end()
    for entry in found:
        session.emitter.emit("blame", **msgspec.to_builtins(entry))
    session.verdict = msgspec.structs.replace(verdict, blame=found)
    session.save(session.verdict, "verdict.json")
    culprit = next((b.knob for b in found if b.culprit), None)
    return f"the culprit is {culprit}" if culprit else f"{len(found)} knobs turned, none cures it"


class Trials:
    """One engine at a time, each in a folder of its own under `blame/`, ended with this process."""

    def __init__(self, session: Session, ask: Asking | None = None) -> None:
        self.session = session
        self.client: SupervisorClient | None = None
        self.count = _trials_before(session)
        self._events: Iterator[SupervisorEvent] | None = None
        self._ask = ask or verify

    async def relaunch(self, knob: Knob) -> Endpoint | None:
        """The plan with the knob changed, ready; None where this plan does not have the knob. Raises FirstlightError."""
        await self.end()
        trial = dataclasses.replace(self.session, constraints=[*self.session.constraints, *knob.constraints])
        trial.intent = yielded(trial.intent, knob.constraints)
        trial.plan_set = await asyncio.to_thread(look.make_plan, trial)
        spec = start.make_launch(trial)
        if self.session.launch is not None and _flags(spec.argv) == _flags(self.session.launch.argv):
            return None
        trial.launch = spec
        self.count += 1
        await self._start(trial)
        return start.endpoint_for(trial)

    async def _start(self, trial: Session) -> None:
        assert self.session.folder is not None
        assert trial.launch is not None
        folder = Path(self.session.folder.path) / "blame" / str(self.count)
        run = f"{self.session.folder.path.name}-blame-{self.count}"
        self.session.emitter.emit("phase", name=f"blame: trial {self.count}")
        self.client = await asyncio.to_thread(
            start_supervisor, self.session.host, folder=str(folder), spec=trial.launch, options=Options(held=True), run=run
        )
        self._events = self.client.events(hold=True)  # kept: the trial lives for as long as somebody reads
        if not await asyncio.to_thread(becomes_ready, self._events):
            raise FirstlightError("trial-did-not-start", "the engine ended before it was ready", evidence=(f"{folder}/engine.log",))

    async def ask(self, endpoint: Endpoint, checks: Sequence[str]) -> Verdict:
        claims = claims_for(self.session.checkpoint, self.session.launch.argv if self.session.launch else [])
        key = prove.api_key(endpoint)
        return await self._ask(endpoint, checks=list(checks), api_key=key, claims=claims, budget_seconds=TRIAL_SECONDS)

    async def end(self) -> None:
        if self.client is not None:
            await asyncio.to_thread(self.client.stop)
            self.client = self._events = None


def _trials_before(session: Session) -> int:
    """Trials of an earlier blame keep their folders, and their events are not taken for those of a new one."""
    folder = session.folder
    return len(list((folder.path / "blame").glob("[0-9]*"))) if folder else 0


def _flags(argv: list[str]) -> list[str]:
    """The command without its port, which differs from start to start."""
    return [w for i, w in enumerate(argv) if "--port" not in (w, argv[i - 1] if i else "")]


def becomes_ready(events: Iterator[SupervisorEvent]) -> bool:
    """Reads on until the engine is ready or over; the reader is left open where it stands."""
    while (event := next(events, None)) is not None:
        if event.kind in ("ready", "died", "failed", "ended"):
            return event.kind == "ready"
    return False
