"""A plan as a file: `plan --save FILE` writes it, `apply FILE` starts it or refuses it with the facts that changed."""

from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import Machine
from firstlight.core.plan import PlanSet


class SavedPlan(Struct, frozen=True, kw_only=True):
    """The plan with everything that it was computed from, so that staleness is a comparison. version: firstlight's own, that wrote it.

    draft: the external drafter of a speculative config, where it could be read.
    """

    intent: Intent
    checkpoint: Checkpoint
    machine: Machine
    plan: PlanSet
    version: str
    draft: Checkpoint | None = None
