"""Figures of a higher rung take the place of computed ones: the engine's own answer, then a rehearsal on the real GPUs."""

import msgspec
from msgspec import Struct

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import MemoryBudget
from firstlight.plan.layouts import Layout

PARTS = ("weights", "activation_peak", "cuda_graphs", "non_torch")


class Evidence(Struct, frozen=True, kw_only=True):
    """What was asked or rehearsed before this plan; None: nothing yet."""

    answer: EngineAnswer | None = None
    rehearsal: RehearsalReport | None = None

    def applies_to(self, layout: Layout) -> bool:
        """The answer was given for this layout (an answer that does not say is taken for the layout that was asked about)."""
        config = self.answer.config if self.answer else {}
        sizes = (
            (config.get("tensor_parallel_size"), layout.tensor_parallel_size),
            (config.get("pipeline_parallel_size"), layout.pipeline_parallel_size),
            (config.get("data_parallel_size"), layout.data_parallel_size),
        )
        return all(said is None or said == planned for said, planned in sizes)


def lifted(budget: MemoryBudget, evidence: Evidence, layout: Layout) -> MemoryBudget:
    """The budget with every part that a higher rung knows. The KV pool is not among them: it is what the parts leave."""
    if not evidence.applies_to(layout):
        return budget
    changes: dict[str, Figure] = {}
    if evidence.answer and evidence.answer.parameter_bytes:
        changes["weights"] = Figure.exact(evidence.answer.parameter_bytes, Rung.ASKED, "the engine's own model class, built without memory")
    if evidence.answer and evidence.answer.per_gpu:
        changes |= _known(evidence.answer.per_gpu)
    if evidence.rehearsal and evidence.rehearsal.per_gpu and not evidence.rehearsal.extrapolated:
        changes |= _known(evidence.rehearsal.per_gpu)
    return msgspec.structs.replace(budget, **changes) if changes else budget


def _known(budget: MemoryBudget) -> dict[str, Figure]:
    figures = {name: getattr(budget, name) for name in PARTS}
    return {name: figure for name, figure in figures.items() if figure.known and figure.rung is not Rung.COMPUTED}
