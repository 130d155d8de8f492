"""Blame: when answers make no sense, change one knob at a time, ask again, and name the one that cures it.

This room starts nothing. The caller gives `relaunch`, which starts the same plan with one knob changed and returns its endpoint.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from firstlight.core.errors import FirstlightError
from firstlight.core.plan import Constraint
from firstlight.core.run import Endpoint
from firstlight.core.verdict import Blame, CheckResult, Verdict


class Knob(Struct, frozen=True, kw_only=True):
    """One thing to change. constraints: what the next plan must keep to; engines: where the knob exists; empty: everywhere.

    remedy: what to propose when it is the culprit. The field of a constraint is a planning field or an engine flag.
    """

    name: str
    constraints: list[Constraint]
    remedy: str
    engines: tuple[str, ...] = ()


def _set(field: str, value: object, because: str) -> Constraint:
    return Constraint(field=field, op="==", value=value, because=because, source="blame")


KNOBS: tuple[Knob, ...] = (
    Knob(
        name="kv-cache-dtype",
        constraints=[_set("kv_cache_dtype", "auto", "is it the quantized KV cache")],
        remedy="keep the KV cache in the model's own type; it takes more memory a token",
        engines=("vllm", "sglang"),
    ),
    Knob(
        name="kv-cache-dtype",
        constraints=[_set("kv_cache_dtype", "f16", "is it the quantized KV cache")],
        remedy="keep the KV cache in f16; it takes more memory a token",
        engines=("llamacpp",),
    ),
    Knob(
        name="speculative-decoding",
        constraints=[_set("speculative_config", None, "is it speculative decoding")],
        remedy="serve without speculative decoding",
        engines=("vllm", "sglang"),
    ),
    Knob(
        name="chat-template",
        constraints=[_set("--chat-template", None, "is it the chat template that was set")],
        remedy="use the model's own chat template",
    ),
    Knob(
        name="chat-template",
        constraints=[_set("--chat-template-file", None, "is it the chat template that was set")],
        remedy="use the model's own chat template",
        engines=("llamacpp",),
    ),
    Knob(
        name="prefix-cache",
        constraints=[_set("--no-enable-prefix-caching", True, "is it the prefix cache")],
        remedy="serve without prefix caching",
        engines=("vllm",),
    ),
    Knob(
        name="flash-attention",
        constraints=[_set("--flash-attn", "off", "is it the flash attention kernel")],
        remedy="serve with --flash-attn off",
        engines=("llamacpp",),
    ),
    Knob(
        name="eager",
        constraints=[_set("enforce_eager", True, "is it torch.compile or the CUDA graphs")],
        remedy="serve with --enforce-eager; it is slower",
        engines=("vllm",),
    ),
)

Relaunch = Callable[[Knob], Awaitable[Endpoint | None]]
"""Starts the plan with the knob changed. None: this plan does not have the knob, nothing was started."""

Ask = Callable[[Endpoint, Sequence[str]], Awaitable[Verdict]]
"""Verifies an endpoint with the named checks: `verify` itself, with what the caller has bound."""


def suspects(verdict: Verdict, engine: str | None) -> list[Knob]:
    """The knobs worth turning: none when every failure is the contract's; the template last when plain texts fail as well."""
    failed = failed_names(verdict)
    if not any(c.group in ("coherence", "reference", "long-context") for c in verdict.checks if c.name in failed):
        return []
    knobs = [k for k in KNOBS if not k.engines or engine in k.engines]
    plain_fails = bool(failed & {"trivial-continuations", "prefill-against-decode", "reference"})
    return sorted(knobs, key=lambda k: (k.name == "chat-template") == plain_fails)


def failed_names(verdict: Verdict) -> frozenset[str]:
    return frozenset(c.name for c in verdict.checks if not (c.passed or c.skipped or c.accepted))


async def find_culprit(
    verdict: Verdict, relaunch: Relaunch, ask: Ask, *, engine: str | None = None, budget_seconds: float = 900.0
) -> list[Blame]:
    """Turns one knob after the other until the failed checks pass. The list ends with the culprit, if one was found in time."""
    failed = sorted(failed_names(verdict))
    before = {c.name: c for c in verdict.checks}
    started, found = time.monotonic(), list[Blame]()
    for knob in suspects(verdict, engine):
        if time.monotonic() - started >= budget_seconds:
            found.append(Blame(knob=knob.name, culprit=False, evidence=[f"not tried: the budget of {budget_seconds:.0f} s is spent"]))
            break
        blame = await _turn(knob, relaunch, ask, failed, before)
        if blame is not None:
            found.append(blame)
            if blame.culprit:
                break
    return found


async def _turn(knob: Knob, relaunch: Relaunch, ask: Ask, failed: list[str], before: dict[str, CheckResult]) -> Blame | None:
    try:
        endpoint = await relaunch(knob)
    except FirstlightError as e:
        return Blame(knob=knob.name, culprit=False, evidence=[f"did not start with it changed: {e}"])
    if endpoint is None:
        return None
    after = {c.name: c for c in (await ask(endpoint, failed)).checks}
    cured = [name for name in failed if name in after and (after[name].passed or after[name].skipped)]
    evidence = [f"{n}: {_first(before[n])} -> {_first(after[n])}" for n in failed if n in after]
    changed = ", ".join(f"{c.field} {c.op} {c.value}" for c in knob.constraints)
    culprit = len(cured) == len(failed)
    head = f"with {changed}: {len(cured)} of {len(failed)} failed checks pass"
    return Blame(knob=knob.name, culprit=culprit, evidence=[head, *evidence, *([f"remedy (ask): {knob.remedy}"] if culprit else [])])


def _first(check: CheckResult) -> str:
    return (check.evidence or [check.note or "no evidence"])[0]
