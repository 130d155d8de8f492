"""vLLM: CPU or GPUs."""

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.plan.vllm_cpu import plan_vllm_cpu
from firstlight.plan.wish import Wish


def plan_vllm(
    checkpoint: Checkpoint,
    machine: Machine,
    wish: Wish,
    engine: EngineRef,
    install: EngineInstall | None,
    answer: EngineAnswer | None,
    rehearsal: RehearsalReport | None,
) -> PlanSet:
    return plan_vllm_cpu(checkpoint, machine, wish, engine)
