"""The verification: which checks run in which profile, in which order, within which time, and the verdict."""

import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from firstlight.core.errors import InputError, UsageError
from firstlight.core.reference import Reference
from firstlight.core.run import Endpoint
from firstlight.core.verdict import CheckResult, Verdict
from firstlight.verify import claims as claims_
from firstlight.verify import coherence, contract, kinds, limits, long_context, numerics, reference
from firstlight.verify.answers import NoAnswer
from firstlight.verify.client import Api, Varied
from firstlight.verify.session import Claims, Outcome, Session, now

SILENT = "the endpoint does not answer"
LIVES_ON = "the connection was closed without an answer; the endpoint lives on"
LOST_AT_MOST = 3
OnCheck = Callable[[CheckResult], None]


class Check(NamedTuple):
    """essential: runs whatever the time budget says; without it there is no verdict worth the name. kinds: of models it is for.

    needs: seconds it would take here, where that is known before it is run.
    """

    name: str
    group: str
    run: Callable[[Session], Awaitable[Outcome]]
    quick: bool = True
    essential: bool = False
    kinds: tuple[str, ...] = ("chat", "base")
    needs: Callable[[Session], Awaitable[float | None]] | None = None


CHECKS: tuple[Check, ...] = (
    Check("models", "contract", contract.models, essential=True, kinds=("chat", "base", "embedding", "reward")),
    Check("embeddings", "coherence", kinds.embeddings, essential=True, kinds=("embedding",)),
    Check("rewards", "coherence", kinds.rewards, essential=True, kinds=("reward",)),
    Check("chat", "contract", contract.chat, essential=True, kinds=("chat",)),
    Check("completions", "contract", contract.completions, essential=True),
    Check("trivial-continuations", "coherence", coherence.trivial_continuations, essential=True),
    Check("known-answers", "coherence", coherence.known_answers, essential=True),
    Check("logprob-sanity", "coherence", numerics.logprob_sanity, essential=True),
    Check("prefill-against-decode", "coherence", numerics.prefill_against_decode, essential=True),
    Check("no-floods", "coherence", coherence.no_floods, essential=True),
    Check("parallel", "contract", contract.parallel, essential=True),
    Check("streaming", "contract", contract.streaming, essential=True),
    Check("usage", "contract", contract.usage, essential=True),
    Check("max-tokens", "contract", limits.max_tokens),
    Check("stop-strings", "contract", limits.stop_strings),
    Check("logprobs", "contract", limits.logprobs),
    Check("errors", "contract", limits.errors),
    Check("cancel", "contract", limits.cancel),
    Check("tools", "claims", claims_.tools),
    Check("reasoning", "claims", claims_.reasoning),
    Check("vision", "claims", claims_.vision),
    Check("n", "contract", limits.several, quick=False),
    Check("seed", "contract", limits.seed, quick=False),
    Check("unicode-borders", "contract", limits.unicode_borders, quick=False),
    Check("long-request", "contract", limits.long_request, quick=False),
    Check("batch-invariance", "coherence", numerics.batch_invariance, quick=False),
    Check("prefix-cache", "coherence", numerics.prefix_cache, quick=False),
    Check("json-schema", "claims", claims_.json_schema, quick=False),
    Check("other-languages", "coherence", coherence.other_languages, quick=False),
    Check("long-context", "long-context", long_context.long_context, quick=False, needs=long_context.long_context_seconds),
    Check("kv-pressure", "long-context", long_context.kv_pressure, quick=False, needs=long_context.kv_pressure_seconds),
)
# No check begins after these; the one that runs then still ends, so that the profiles keep within 6 s and 60 s.
BUDGET_SECONDS = {"quick": 5.0, "full": 57.0}
PARALLEL = {"quick": 4, "full": 16}
REQUEST_SECONDS = {"quick": 180.0, "full": 240.0}
KINDS = ("chat", "base", "embedding", "reward")
SEES = [
    "noise, floods, loops, broken tokenizers, templates of another family, weights scaled, swapped, zeroed or permuted at large",
    "decoding that parts from reading within its first 64 tokens (full: 256), caches and batches that change answers",
    "answers crossed between requests, stalls, wrong counts",
]
CANNOT_SEE = [
    "mild damage (one layer, a scale off by percents): compare with a trusted run, `firstlight verify --against FILE`",
    "knowledge and skill: a model that answers trivial questions rightly may still be worse than it should be",
]


NUMBERS = {
    "embedding": [
        "vectors that are not finite, all zeros, of several lengths, other ones alone than in a batch",
        "meaning that is lost at large",
    ],
    "reward": ["scores that are not finite", "bad answers that score above good ones"],
}
"""What is seen of models that answer with numbers."""


async def verify(
    endpoint: Endpoint,
    *,
    profile: str = "quick",
    checks: Sequence[str] = (),
    accept: frozenset[str] = frozenset(),
    on_check: OnCheck | None = None,
    api_key: str | None = None,
    claims: Claims | None = None,
    trusted: Reference | None = None,
    tolerance: str = "same",
    budget_seconds: float | None = None,
    varied: Varied = Varied(),
    parallel: int | None = None,
) -> Verdict:
    """Asks the endpoint and judges its answers. `checks`: only these; `accept`: failures that the user takes by name.
    trusted: a reference to compare with, within `tolerance` (a key of reference.TOLERANCES).
    budget_seconds: after it only the essential checks run, and those shorter; default: 5 s quick, 57 s full.
    varied, parallel: how requests are sent, and how many at a time (4 quick, 16 full); blame changes them.

    Raises UsageError for unknown names. An endpoint that does not answer is a verdict, not an exception.
    """
    claimed = claims or Claims()
    accepted_names(accept)
    _refuse_odd(budget_seconds, checks, trusted)
    chosen = select(profile, checks, claimed.kind or "chat")
    if trusted is not None:
        chosen.append(Check("reference", "reference", reference.against(trusted, tolerance), essential=True))
    started = now()
    key = api_key or key_of(endpoint)
    patience = max(REQUEST_SECONDS[profile], budget_seconds or 0.0)
    api = Api(endpoint.base_url, endpoint.model, api_key=key, request_seconds=patience, varied=varied)
    deadline = started + (BUDGET_SECONDS[profile] if budget_seconds is None else budget_seconds)
    many, thorough = parallel or PARALLEL[profile], profile == "full"
    session = Session(api, endpoint, claimed, parallel=many, deadline=deadline, thorough=thorough)
    results: list[CheckResult] = []
    try:
        for check in chosen:
            results.append(await _run(check, session, results, accept))
            if on_check:
                on_check(results[-1])
    finally:
        await api.close()
    spent = now() - started
    return Verdict(
        passed=passed(results, named=checks),
        endpoint=endpoint.base_url,
        model=endpoint.model,
        profile=profile,
        checks=results,
        sees=NUMBERS.get(claimed.kind or "", SEES),
        cannot_see=CANNOT_SEE if claimed.kind not in NUMBERS else ["mild damage: how well it ranks or retrieves is not measured"],
        seconds=round(spent, 3),
        budget_needed=budget_needed(results, spent),
    )


def budget_needed(results: Sequence[CheckResult], spent: float) -> float | None:
    """A budget, in tens of seconds and a quarter more than it seems to take, that leaves nothing out for want of time; None: nothing was.

    What is not known of a check's own need is taken to be as long as the others took.
    """
    late = [r for r in results if r.for_time]
    ran = [r.seconds for r in results if not r.skipped and r.group != "long-context"]
    typical = sum(ran) / len(ran) if ran else 1.0
    more = sum(typical if r.needs_seconds is None else r.needs_seconds for r in late)
    return math.ceil((spent + more) * 1.25 / 10) * 10.0 if late else None


def accepted_names(names: Iterable[str]) -> frozenset[str]:
    """Names of checks whose failure is accepted. Raises UsageError `unknown-check`: a name that is none would accept nothing, silently."""
    if unknown := sorted({*names} - {c.name for c in CHECKS} - {"reference"}):
        raise UsageError("unknown-check", f"no check {unknown[0]!r} to accept", hint=f"one of {', '.join(c.name for c in CHECKS)}")
    return frozenset(names)


def _refuse_odd(budget_seconds: float | None, checks: Sequence[str], trusted: Reference | None) -> None:
    if budget_seconds is not None and math.isnan(budget_seconds):
        raise UsageError("bad-budget", "the budget is not a number of seconds")
    if "reference" in checks and trusted is None:
        raise UsageError("no-reference", "nothing to compare with", hint="--against FILE, of `verify --save-reference FILE`")


def passed(results: Sequence[CheckResult], *, named: Sequence[str] = ()) -> bool:
    """Every check passed, was skipped or accepted, and something was judged: answers, or where checks were named, one of those."""
    judged = any(not r.skipped and (r.name in named or r.group in (named or ("coherence",))) for r in results)
    return judged and all(r.passed or r.skipped or r.accepted for r in results)


async def save_reference(endpoint: Endpoint, *, api_key: str | None = None, note: str | None = None) -> Reference:
    """A reference taken from this endpoint, which the caller trusts."""
    api = Api(endpoint.base_url, endpoint.model, api_key=api_key or key_of(endpoint))
    session = Session(api, endpoint, Claims())
    try:
        await contract.models(session)
        taken = await reference.take_reference(session)
    finally:
        await api.close()
    return msgspec.structs.replace(taken, note=note)


def select(profile: str, names: Sequence[str], kind: str = "chat") -> list[Check]:
    """The profile's checks for this kind of model, or those named (a name or a group), with what they need to know first."""
    if profile not in BUDGET_SECONDS:
        raise UsageError("unknown-profile", f"no profile {profile!r}", hint=f"one of {', '.join(BUDGET_SECONDS)}")
    if kind not in KINDS:
        raise UsageError("unknown-kind", f"no kind {kind!r}", hint=f"one of {', '.join(KINDS)}")
    known = {c.name for c in CHECKS} | {c.group for c in CHECKS} | {"reference"}
    if unknown := [n for n in names if n not in known]:
        raise UsageError("unknown-check", f"no check {unknown[0]!r}", hint=f"one of {', '.join(c.name for c in CHECKS)}")
    fitting = [c for c in CHECKS if kind in c.kinds]
    if names:
        return [c for c in fitting if c.name in names or c.group in names or c.name in FIRST]
    return [c for c in fitting if c.quick or profile == "full"]


FIRST = ("models", "chat", "completions", "trivial-continuations")


def key_of(endpoint: Endpoint) -> str | None:
    """The key from its file. Raises InputError `api-key-unreadable`."""
    if endpoint.api_key_file is None:
        return None
    try:
        return Path(endpoint.api_key_file).read_text().strip()
    except OSError as e:
        raise InputError("api-key-unreadable", "the key file cannot be read", evidence=(f"{e.filename}: {e.strerror}",)) from None


async def _after_silence(session: Session, why: NoAnswer, before: list[CheckResult]) -> str:
    """A connection that ended without an answer fails its check alone while the server lives on; whatever else costs time ends it all."""
    often = sum(r.note == LIVES_ON for r in before) >= LOST_AT_MOST
    return LIVES_ON if why.code == "connection" and not often and await session.api.lives() else SILENT


async def _run(check: Check, session: Session, before: list[CheckResult], accept: frozenset[str]) -> CheckResult:
    """One check with its clock; a dead or silent endpoint fails the check, and what follows is skipped."""
    result = functools.partial(CheckResult, name=check.name, group=check.group)
    if lost := next((r for r in before if r.note == SILENT), None):
        return result(passed=False, skipped=True, note=f"not asked: {lost.name} got no answer")
    if not check.essential and session.seconds_left() <= 0 and session.claims.asks(check.name, thorough=session.thorough):
        needs = await _needs(check, session)
        about = "" if needs is None else f": about {needs:.0f} s"
        return result(passed=False, skipped=True, note=f"skipped for time{about}", for_time=True, needs_seconds=_rounded(needs))
    started = now()
    try:
        outcome = await check.run(session)
    except NoAnswer as e:
        outcome = Outcome(passed=False, evidence=[e.message], note=await _after_silence(session, e, before))
    return result(
        passed=bool(outcome.passed),
        skipped=outcome.passed is None,
        accepted=outcome.passed is False and check.name in accept,
        evidence=outcome.evidence,
        note=outcome.note,
        seconds=round(now() - started, 3),
        for_time=outcome.for_time,
        needs_seconds=_rounded(outcome.needs_seconds),
    )


async def _needs(check: Check, session: Session) -> float | None:
    try:
        return await check.needs(session) if check.needs else None
    except NoAnswer:
        return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
