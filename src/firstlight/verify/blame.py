"""Blame: when answers make no sense, change one knob at a time, ask again, and name the one that cures it.

This room starts nothing. The caller gives `relaunch`, which starts the same plan with one knob changed and returns its endpoint.
What can be changed request by request (variations) needs no start, and is all that can be done for an endpoint that is not ours.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from firstlight.core.errors import FirstlightError
from firstlight.core.plan import Constraint
from firstlight.core.run import Endpoint
from firstlight.core.verdict import Blame, CheckResult, Verdict
from firstlight.verify.client import Varied

GROUPS = ("coherence", "reference", "long-context")


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


class Variation(Struct, frozen=True, kw_only=True):
    """What one request can change. varied: how requests are sent; one_by_one: never two at a time."""

    name: str
    what: str
    remedy: str
    varied: Varied = Varied()
    one_by_one: bool = False
    engines: tuple[str, ...] = ()


VARIATIONS: tuple[Variation, ...] = (
    Variation(
        name="batching",
        what="one request at a time",
        remedy="serve with one sequence at a time (vLLM: --max-num-seqs 1; llama.cpp: --parallel 1) until the cause is found",
        one_by_one=True,
    ),
    Variation(
        name="prefix-cache",
        what="cache_prompt: false in each request",
        remedy="serve without prompt caching",
        varied=Varied(fields={"cache_prompt": False}),
        engines=("llamacpp",),
    ),
    Variation(
        name="prefix-cache",
        what="a cache_salt of its own in each request, so that nothing cached is used",
        remedy="serve with --no-enable-prefix-caching",
        varied=Varied(salt="cache_salt"),
        engines=("vllm",),
    ),
    Variation(
        name="speculative-decoding",
        what="speculative.n_max: 0 in each request",
        remedy="serve without a draft model",
        varied=Varied(fields={"speculative.n_max": 0}),
        engines=("llamacpp",),
    ),
)

AskVaried = Callable[[Variation, Sequence[str]], Awaitable[Verdict]]
"""Verifies the running endpoint with the named checks and requests that differ by the variation."""


async def by_request(verdict: Verdict, ask: AskVaried, *, engine: str | None = None, budget_seconds: float = 180.0) -> list[Blame]:
    """Asks the failed checks again, with one thing changed in every request. The list ends with the culprit, if there is one."""
    failed = sorted(failed_names(verdict))
    before = {c.name: c for c in verdict.checks}
    started, found = time.monotonic(), list[Blame]()
    for variation in VARIATIONS if _worth_asking(verdict) else ():
        if variation.engines and engine not in variation.engines:
            continue
        if time.monotonic() - started >= budget_seconds:
            found.append(_not_tried(variation.name, budget_seconds))
            break
        found.append(_judged(variation.name, variation.what, variation.remedy, failed, before, await ask(variation, failed)))
        if found[-1].culprit:
            break
    return found


def _worth_asking(verdict: Verdict) -> bool:
    failed = [c for c in verdict.checks if c.name in failed_names(verdict)]
    return any(c.group in GROUPS or c.name == "parallel" for c in failed)


def not_restarted(names: Sequence[str], why: str) -> Blame:
    """What needs a start that cannot be made, said once."""
    return Blame(knob="restart", culprit=False, evidence=[f"not tried: {why}", f"each needs a start: {', '.join(names)}"])


def _not_tried(name: str, budget_seconds: float) -> Blame:
    return Blame(knob=name, culprit=False, evidence=[f"not tried: the budget of {budget_seconds:.0f} s is spent"])


def suspects(verdict: Verdict, engine: str | None) -> list[Knob]:
    """The knobs worth turning: none when every failure is the contract's; the template last when plain texts fail as well."""
    failed = failed_names(verdict)
    if not any(c.group in GROUPS for c in verdict.checks if c.name in failed):
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
            found.append(_not_tried(knob.name, budget_seconds))
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
    changed = ", ".join(f"{c.field} left out" if c.value is None else f"{c.field} {c.op} {c.value}" for c in knob.constraints)
    return _judged(knob.name, changed, knob.remedy, failed, before, await ask(endpoint, failed))


def _judged(name: str, changed: str, remedy: str, failed: list[str], before: dict[str, CheckResult], verdict: Verdict) -> Blame:
    """Cured is only what was asked again and passed: a check that could not be asked says nothing."""
    after = {c.name: c for c in verdict.checks}
    cured = [n for n in failed if n in after and after[n].passed]
    evidence = [f"{n}: {_first(before[n])} -> {_first(after[n])}" for n in failed if n in after]
    culprit = len(cured) == len(failed)
    head = f"with {changed}: {len(cured)} of {len(failed)} failed checks pass"
    return Blame(knob=name, culprit=culprit, evidence=[head, *evidence, *([f"remedy (ask): {remedy}"] if culprit else [])])


def _first(check: CheckResult) -> str:
    return (check.evidence or [check.note or "no evidence"])[0]
