"""What one `up` knows so far. Stages read and add; nothing else is shared between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firstlight.app.consent import Consent
from firstlight.app.drafting import Drafter
from firstlight.app.emitter import Emitter
from firstlight.app.steps import Step
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import EngineError, FirstlightError
from firstlight.core.findings import Finding
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, Constraint, PlanSet
from firstlight.core.ports import EngineAdapter, Host
from firstlight.core.run import Endpoint, LaunchSpec, Overlay
from firstlight.core.saved import SavedPlan
from firstlight.core.verdict import BenchReport, Verdict
from firstlight.engines.command import option_value
from firstlight.launch.supervisor.portclaim import PortClaim


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """How to go about it; what to reach is the Intent."""

    accept: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    dry_run: bool = False
    foreground: bool = False
    attempts: int = 3
    rehearse: str = "auto"
    verify_profile: str = "quick"
    bench_profile: str = "quick"
    ask: str = "auto"
    restart: str = "on-failure"
    on_event: str | None = None
    blame: bool = False


@dataclass(kw_only=True)
class Session:
    """The facts of one `up`, filled stage by stage."""

    intent: Intent
    options: UpOptions
    host: Host
    adapters: Sequence[EngineAdapter]
    store: RunStore
    consent: Consent
    emitter: Emitter
    name: str
    folder: RunFolder | None = None
    checkpoint: Checkpoint | None = None
    drafter: Drafter = field(default_factory=Drafter)
    machine: Machine | None = None
    install: EngineInstall | None = None
    adapter: EngineAdapter | None = None
    answer: EngineAnswer | None = None
    rehearsal: RehearsalReport | None = None
    plan_set: PlanSet | None = None
    saved: SavedPlan | None = None
    constraints: list[Constraint] = field(default_factory=list)
    recalled: bool = False
    overlay: Overlay | None = None
    launch: LaunchSpec | None = None
    port_claim: PortClaim | None = None
    supervisor: Any = None
    records: Any = None
    endpoint: Endpoint | None = None
    verdict: Verdict | None = None
    bench: BenchReport | None = None
    findings: list[Finding] = field(default_factory=list)
    story: list[Step] = field(default_factory=list)
    plan_findings: list[Finding] = field(default_factory=list)
    raw: dict[str, str] = field(default_factory=dict)
    attempt: int = 1
    stalled_at: str | None = None
    wait_told: tuple[str, str] | None = None
    refuted: EngineError | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        if self.plan_set is None or self.plan_set.best is None:
            raise FirstlightError("no-plan", "there is no plan to start", hint="run the plan stage first")
        return self.plan_set.best

    @property
    def model(self) -> Checkpoint:
        if self.checkpoint is None:
            raise FirstlightError("no-checkpoint", "the model has not been inspected", hint="run the inspect stage first")
        return self.checkpoint

    @property
    def log_there(self) -> str:
        """The engine's log of the session's attempt, on the run's own host."""
        if self.supervisor is not None:
            return f"{self.supervisor.folder}/engine.log"
        if self.folder is None:
            raise FirstlightError("no-run-folder", "there is no run folder")
        return self.folder.log_there

    @property
    def dummy_weights(self) -> bool:
        """Whether the user has the engine invent its weights (`-- --load-format dummy`): then a config alone can be started."""
        return option_value(self.intent.extra_args, "--load-format") == "dummy"

    def save(self, value: Any, name: str) -> None:
        if self.folder is not None and value is not None:
            self.folder.save(value, name)

    def replace_plan_findings(self, findings: Sequence[Finding]) -> None:
        """What an earlier plan had said of itself goes with it."""
        gone = {(f.code, f.message) for f in self.plan_findings}
        self.findings = [f for f in self.findings if (f.code, f.message) not in gone]
        before = len(self.findings)
        self.add(findings)
        self.plan_findings = self.findings[before:]

    def add(self, findings: Sequence[Finding]) -> None:
        """Adds findings once each, marks what the user overrides by name, and announces the new ones."""
        seen = {(f.code, f.message) for f in self.findings}
        for found in findings:
            overridden = found.code in self.options.ignore or (found.code == "weights-absent" and self.dummy_weights)
            finding = msgspec.structs.replace(found, ignored=found.ignored or overridden)
            if (finding.code, finding.message) not in seen:
                self.findings.append(finding)
                self.emitter.emit("finding", code=finding.code, severity=str(finding.severity), message=finding.message)
