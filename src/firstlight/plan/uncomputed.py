"""An engine that nobody here computes memory for: what the user pinned, as flags, and nothing that would have to be guessed."""

from typing import Any

import msgspec

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Machine
from firstlight.core.plan import Candidate, EngineRef, PlanSet
from firstlight.plan.flags import as_args
from firstlight.plan.wish import Wish

_SHOWN = frozenset(f.name for f in msgspec.structs.fields(Candidate))
_CAPPED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")


def plan_uncomputed(checkpoint: Checkpoint, machine: Machine, wish: Wish, engine: EngineRef, title: str) -> PlanSet:
    """One candidate without figures, verdict `unknown`. title: the engine's name for people.

    Pins become flags in vLLM's spelling, whatever healing forbids beyond a limit cut to it; the adapter is free to translate the fields.
    """
    pinned = _pinned(wish)
    fields = {name: value for name, value in pinned.items() if name in _SHOWN}
    said = ", ".join(f"{name} == {value}" for name, value in pinned.items()) or "nothing is pinned, so its own defaults hold"
    best = Candidate(engine=engine, args=[*as_args(pinned), *wish.flags], env=wish.env, because=[said], **fields)
    return PlanSet(
        verdict="unknown",
        model=checkpoint.name or checkpoint.ref,
        machine=machine.hostname,
        best=best,
        findings=[_not_computed(title)],
    )


def _pinned(wish: Wish) -> dict[str, Any]:
    """Fields of Pins that somebody named, the context too, in the order of Pins."""
    values = {name: value for name, value in msgspec.structs.asdict(wish.pins).items() if value is not None}
    values |= {"max_model_len": wish.max_model_len} if wish.max_model_len else {}
    for limit in wish.limits:
        if limit.field in _CAPPED and limit.op in ("<=", ">="):
            values[limit.field] = wish.cap(limit.field, values.get(limit.field) or int(limit.value))
    return values


def _not_computed(title: str) -> Finding:
    return Finding(
        code="not-computed",
        severity=Severity.WARNING,
        message=f"no memory, context or speed is computed for {title}: its start shows whether the model fits",
        note="planning flags are passed on in vLLM's spelling; what the engine spells otherwise goes after `--`",
        hint="firstlight plan --engine vllm or llamacpp computes what those would need",
    )
