"""Whether a saved plan still speaks of this model, this machine and this engine."""

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.saved import SavedPlan

GPU_FACTS = ("name", "cuda_total_bytes", "driver_total_bytes", "sm", "mig")
MODEL_FACTS = ("files", "tensor_bytes", "architectures", "num_hidden_layers", "config")


def refuse_stale(saved: SavedPlan, checkpoint: Checkpoint, machine: Machine | None, install: EngineInstall | None) -> None:
    """Raises FirstlightError `plan-stale` with every changed fact: nothing is started from facts that no longer hold."""
    changed = [*_model(saved.checkpoint, checkpoint), *_machine(saved.machine, machine), *_engine(saved, install)]
    if changed:
        raise FirstlightError(
            "plan-stale",
            "the plan was made from facts that have changed",
            evidence=tuple(changed[:12]),
            hint=f"firstlight plan {saved.intent.model} --save FILE makes a new one",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )


def _model(then: Checkpoint, now: Checkpoint) -> list[str]:
    return [f"the model's {f} changed" for f in MODEL_FACTS if getattr(then, f) != getattr(now, f)]


def _machine(then: Machine, now: Machine | None) -> list[str]:
    if now is None or then.imagined:
        return []
    if len(then.accelerators) != len(now.accelerators):
        return [f"GPUs: {len(then.accelerators)} then, {len(now.accelerators)} now"]
    pairs = zip(then.accelerators, now.accelerators, strict=True)
    return [
        f"GPU {a.index} {f}: {getattr(a, f)} then, {getattr(b, f)} now"
        for a, b in pairs
        for f in GPU_FACTS
        if getattr(a, f) != getattr(b, f) and None not in (getattr(a, f), getattr(b, f))
    ]


def _engine(saved: SavedPlan, install: EngineInstall | None) -> list[str]:
    best = saved.plan.best
    if best is None or best.engine.version is None or install is None or install.version == best.engine.version:
        return []
    return [f"{best.engine.name}: {best.engine.version} then, {install.version} now"]
