"""A context that arithmetic refutes needs no launch to be healed: the longest one that surely fits is planned instead."""

from firstlight.app.session import Session
from firstlight.app.stages import describe
from firstlight.app.steps import Step
from firstlight.app.story import tell
from firstlight.core.plan import Constraint, PlanSet

SHORTEST_CONTEXT = 1024


def shorter_context(plan_set: PlanSet) -> Constraint | None:
    """The constraint that makes a plan fit which only its context breaks; None for any other plan."""
    best = plan_set.best
    if plan_set.verdict != "does-not-fit" or best is None or best.max_model_len is None:
        return None
    fits = int(best.max_model_len_that_fits.low or 0) // SHORTEST_CONTEXT * SHORTEST_CONTEXT
    if not 0 < fits < best.max_model_len:
        return None
    because = f"{best.max_model_len:,} tokens do not fit beside the weights, {fits:,} surely do"
    return Constraint(field="max_model_len", op="==", value=fits, because=because, source="does-not-fit")


def note(session: Session, plan_set: PlanSet, constraint: Constraint) -> None:
    tried = describe.layout(plan_set.best) if plan_set.best else plan_set.verdict
    changed = f"{constraint.field} = {constraint.value}"
    tell(session, Step(attempt=0, tried=tried, saw="does-not-fit, by arithmetic", changed=changed, because=constraint.because))
