"""Checkpoint, machine and wish -> PlanSet: the first rung, computed."""

import re
from collections.abc import Sequence

import msgspec

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, Constraint, EngineRef, PlanSet
from firstlight.core.ports import EngineAdapter
from firstlight.engines.registry import load_adapters
from firstlight.plan.llamacpp import plan_llamacpp
from firstlight.plan.sound import sound_checkpoint, sound_machine
from firstlight.plan.uncomputed import plan_uncomputed
from firstlight.plan.vllm import plan_vllm
from firstlight.plan.wish import wish_of


def plan(
    checkpoint: Checkpoint,
    machine: Machine,
    intent: Intent,
    *,
    engine: EngineRef,
    install: EngineInstall | None = None,
    constraints: Sequence[Constraint] = (),
    answer: EngineAnswer | None = None,
    rehearsal: RehearsalReport | None = None,
    draft: Checkpoint | None = None,
) -> PlanSet:
    """The best layout, what else would do, and what was rejected with its reason. draft: the external drafter of a speculative config.

    Raises UsageError `no-planner`, `bad-engine-version`, `bad-flag-value`, `flag-given-twice`, `no-gpus`.
    """
    wish, engine = wish_of(intent, constraints, engine.name), _named(engine)
    adapter = next((a for a in load_adapters() if a.name == engine.name), None)
    checkpoint, absurd = sound_checkpoint(checkpoint)
    machine = _only(sound_machine(machine), intent.gpus)
    draft = sound_checkpoint(draft)[0] if draft is not None else None
    if engine.name == "llamacpp":
        found = plan_llamacpp(checkpoint, machine, wish, engine, install.device if install else None)
    elif engine.name == "vllm":
        found = plan_vllm(checkpoint, machine, wish, engine, install, answer, rehearsal, intent.gpus, draft)
    elif adapter is not None:
        found = plan_uncomputed(checkpoint, machine, wish, engine, adapter.title)
    else:
        raise UsageError("no-planner", f"nothing here knows the engine {engine.name!r}", hint="firstlight engines list shows those it does")
    with_overlays = _overlaid(found, adapter, checkpoint, machine, install) if adapter else found
    findings = [*with_overlays.findings, absurd] if absurd else with_overlays.findings
    return msgspec.structs.replace(with_overlays, constraints=list(constraints), findings=findings)


def _only(machine: Machine, gpus: list[int] | None) -> Machine:
    """The machine with the named GPUs alone. Raises UsageError `no-gpus` where one of them is not there."""
    if gpus is None:
        return machine
    there = [a.index for a in machine.accelerators]
    if missing := [i for i in gpus if i not in there]:
        named = f"GPU{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        evidence = (f"its GPUs: {', '.join(map(str, there)) or 'none'}",)
        raise UsageError("no-gpus", f"{machine.hostname} has no {named}", evidence=evidence, hint="firstlight probe lists them")
    return msgspec.structs.replace(machine, accelerators=[a for a in machine.accelerators if a.index in gpus])


def _named(engine: EngineRef) -> EngineRef:
    """`vllm@` is vLLM in no particular version; a version without a number is none. Raises UsageError `bad-engine-version`."""
    if engine.version and not re.match(r"v?\d", engine.version):
        raise UsageError(
            "bad-engine-version", f"{engine.version!r} is no version of {engine.name}", hint=f"write it as {engine.name}@0.16.0"
        )
    return msgspec.structs.replace(engine, version=engine.version or None)


def _overlaid(found: PlanSet, adapter: EngineAdapter, checkpoint: Checkpoint, machine: Machine, install: EngineInstall | None) -> PlanSet:
    """The same plans, each with what its engine needs patched in the checkpoint's JSON files.

    Without an install (a machine that is not there) the planned version stands in for one.
    """
    version = found.best.engine.version if found.best else None
    build = install or (EngineInstall(engine=adapter.name, version=version) if version else None)

    def laid(candidate: Candidate) -> Candidate:
        return msgspec.structs.replace(candidate, overlay=adapter.overlay(checkpoint, candidate, machine, build))

    return msgspec.structs.replace(found, best=laid(found.best) if found.best else None, alternatives=[laid(c) for c in found.alternatives])
