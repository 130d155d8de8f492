"""What `plan` looks at before it computes: the model, the machine, the engine; each from a file, a name, or this machine."""

from typing import NamedTuple

import msgspec

from firstlight.app.plan_options import Planning
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import UsageError
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import EngineRef, PlanSet


class Looked(NamedTuple):
    checkpoint: Checkpoint
    machine: Machine
    engine: EngineRef
    install: EngineInstall | None


def look(planning: Planning) -> Looked:
    """Raises FirstlightError from inspect or probe, UsageError `no-engine-for-model`."""
    checkpoint = planning.checkpoint() or _inspected(planning.intent.model)
    machine = planning.machine() or _probed(checkpoint)
    engine = planning.engine or _preferred_engine(checkpoint)
    return Looked(checkpoint, machine, engine, _install(machine, engine))


def compute(planning: Planning, looked: Looked) -> PlanSet:
    """The plan; what the checkpoint's own findings say about the figures is among its findings."""
    from firstlight.plan.plan import plan

    found = plan(looked.checkpoint, looked.machine, planning.intent, engine=looked.engine, install=looked.install)
    extra = [f for f in looked.checkpoint.findings if f.severity is Severity.BLOCKER or f.code in ("weights-absent", "tensors-derived")]
    notes = [f if _spoils_figures(f) else msgspec.structs.replace(f, severity=_no_blocker(f)) for f in extra]
    verdict = "blocked" if any(_spoils_figures(f) for f in notes) else found.verdict
    return msgspec.structs.replace(found, verdict=verdict, findings=[*found.findings, *notes])


def _spoils_figures(finding: Finding) -> bool:
    """A config that says nothing, or nonsense: what is computed from it is no answer."""
    about_config = finding.code.startswith("config-") or finding.message.startswith("config.json")
    return finding.severity is Severity.BLOCKER and about_config


def _no_blocker(finding: Finding) -> Severity:
    """A plan can be made without weights or a tokenizer; only starting it cannot."""
    return Severity.WARNING if finding.severity is Severity.BLOCKER else finding.severity


def _inspected(model: str) -> Checkpoint:
    from firstlight.inspect.checkpoint import inspect
    from firstlight.inspect.sources import open_source
    from firstlight.probe.hosts import open_host

    return inspect(open_source(model, open_host("local")))


def _probed(checkpoint: Checkpoint) -> Machine:
    from firstlight.probe.hosts import open_host
    from firstlight.probe.machine import probe_machine

    return probe_machine(open_host("local"), paths=[checkpoint.path] if checkpoint.path else [])


def _preferred_engine(checkpoint: Checkpoint) -> EngineRef:
    from firstlight.engines.registry import choose_adapter

    adapter = choose_adapter(checkpoint)
    if adapter is None:
        raise UsageError(
            "no-engine-for-model", f"no engine here takes a {checkpoint.format} checkpoint like this one", hint="name one with --engine"
        )
    return EngineRef(name=adapter.name)


def _install(machine: Machine, engine: EngineRef) -> EngineInstall | None:
    """The engine as the machine's document lists it, in the wanted version."""
    fitting = [i for i in machine.engines if i.engine == engine.name and (engine.version in (None, i.version))]
    return fitting[0] if fitting else None


def save(planning: Planning, looked: Looked, found: PlanSet, path: str) -> None:
    """Writes the plan with what it was computed from. Raises FirstlightError `file-unwritable`."""
    from pathlib import Path

    from firstlight import __version__
    from firstlight.core.errors import FirstlightError
    from firstlight.core.saved import SavedPlan
    from firstlight.core.schema import encode

    document = SavedPlan(intent=planning.intent, checkpoint=looked.checkpoint, machine=looked.machine, plan=found, version=__version__)
    try:
        Path(path).write_bytes(encode(document))
    except OSError as e:
        raise FirstlightError("file-unwritable", f"{path} cannot be written", evidence=(e.strerror or str(e),)) from None
