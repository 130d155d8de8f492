"""Computes the plan for what was looked at, and saves it."""

from collections.abc import Callable

import msgspec

from firstlight.app.drafting import with_reason
from firstlight.app.looking import Looked
from firstlight.app.plan_options import Planning
from firstlight.core.answer import EngineAnswer
from firstlight.core.errors import FirstlightError
from firstlight.core.findings import Finding, Severity
from firstlight.core.plan import PlanSet


def compute(planning: Planning, looked: Looked, answer: EngineAnswer | None = None) -> PlanSet:
    """The plan; what the checkpoint's own findings say about the figures is among its findings. answer: the engine's, when it was asked."""
    from firstlight.plan.plan import plan

    found = plan(
        looked.checkpoint,
        looked.machine,
        planning.intent,
        engine=looked.engine,
        install=looked.install,
        answer=answer,
        draft=looked.drafter.checkpoint,
    )
    found = with_reason(found, looked.drafter)
    extra = [f for f in looked.checkpoint.findings if f.severity is Severity.BLOCKER or f.code in ("weights-absent", "tensors-derived")]
    notes = [f if _spoils_figures(f) else msgspec.structs.replace(f, severity=_no_blocker(f)) for f in extra]
    verdict = "blocked" if any(_spoils_figures(f) for f in notes) else found.verdict
    return msgspec.structs.replace(found, verdict=verdict, findings=[*found.findings, *notes, *looked.findings])


def ask_and_compute(planning: Planning, looked: Looked, *, on_step: Callable[[str], None] = lambda text: None) -> PlanSet:
    """`plan --ask`: the engine's own answer first. One that cannot be asked leaves the computed plan and a finding that says so."""
    from firstlight.app.asking import Asking, ask_with

    try:
        if planning.intent.host != "local":
            raise FirstlightError("asking-failed", "`plan` asks engines of this machine only", hint="`up --ask always` asks over there")
        answer = ask_with(planning, Asking(), on_step=on_step)
    except FirstlightError as e:
        text = f"the engine was not asked, and computed figures stand: {e.message}"
        note = Finding(code=e.code, severity=Severity.WARNING, message=text, evidence=list(e.evidence), hint=e.hint)
        found = compute(planning, looked)
        return msgspec.structs.replace(found, findings=[*found.findings, note])
    found = compute(planning, looked, answer)
    refused = "does-not-fit" if any(f.code == "engine-refuses-length" for f in answer.findings) else "blocked"
    verdict = refused if answer.refusal is not None else found.verdict
    return msgspec.structs.replace(found, verdict=verdict, findings=[*found.findings, *answer.findings])


def _spoils_figures(finding: Finding) -> bool:
    """A config that says nothing, or nonsense: what is computed from it is no answer."""
    about_config = finding.code.startswith("config-") or finding.message.startswith("config.json")
    return finding.severity is Severity.BLOCKER and about_config


def _no_blocker(finding: Finding) -> Severity:
    """A plan can be made without weights or a tokenizer; only starting it cannot."""
    return Severity.WARNING if finding.severity is Severity.BLOCKER else finding.severity


def save(planning: Planning, looked: Looked, found: PlanSet, path: str) -> None:
    """Writes the plan with what it was computed from. Raises FirstlightError `file-unwritable`."""
    from pathlib import Path

    from firstlight import __version__
    from firstlight.core.saved import SavedPlan
    from firstlight.core.schema import encode

    document = SavedPlan(
        intent=planning.intent,
        checkpoint=looked.checkpoint,
        machine=looked.machine,
        plan=found,
        version=__version__,
        draft=looked.drafter.checkpoint,
    )
    try:
        Path(path).write_bytes(encode(document))
    except OSError as e:
        raise FirstlightError("file-unwritable", f"{path} cannot be written", evidence=(e.strerror or str(e),)) from None
