"""The verification: which checks run in which profile, in which order, within which time, and the verdict."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from firstlight.core.errors import UsageError
from firstlight.core.run import Endpoint
from firstlight.core.verdict import CheckResult, Verdict
from firstlight.verify import coherence, contract, limits, numerics
from firstlight.verify.answers import NoAnswer
from firstlight.verify.client import Api
from firstlight.verify.session import Claims, Outcome, Session, now

OnCheck = Callable[[CheckResult], None]


class Check(NamedTuple):
    """essential: runs whatever the time budget says; without it there is no verdict worth the name."""

    name: str
    group: str
    run: Callable[[Session], Awaitable[Outcome]]
    quick: bool = True
    essential: bool = False


CHECKS: tuple[Check, ...] = (
    Check("models", "contract", contract.models, essential=True),
    Check("chat", "contract", contract.chat, essential=True),
    Check("completions", "contract", contract.completions, essential=True),
    Check("trivial-continuations", "coherence", coherence.trivial_continuations, essential=True),
    Check("known-answers", "coherence", coherence.known_answers, essential=True),
    Check("logprob-sanity", "coherence", numerics.logprob_sanity, essential=True),
    Check("prefill-against-decode", "coherence", numerics.prefill_against_decode, essential=True),
    Check("no-floods", "coherence", coherence.no_floods, essential=True),
    Check("parallel", "contract", contract.parallel, essential=True),
    Check("streaming", "contract", contract.streaming, essential=True),
    Check("usage", "contract", contract.usage),
    Check("max-tokens", "contract", limits.max_tokens),
    Check("stop-strings", "contract", limits.stop_strings),
    Check("logprobs", "contract", limits.logprobs),
    Check("errors", "contract", limits.errors),
    Check("cancel", "contract", limits.cancel),
    Check("n", "contract", limits.several, quick=False),
    Check("seed", "contract", limits.seed, quick=False),
    Check("unicode-borders", "contract", limits.unicode_borders, quick=False),
    Check("long-request", "contract", limits.long_request, quick=False),
    Check("batch-invariance", "coherence", numerics.batch_invariance, quick=False),
    Check("prefix-cache", "coherence", numerics.prefix_cache, quick=False),
    Check("other-languages", "coherence", coherence.other_languages, quick=False),
)
BUDGET_SECONDS = {"quick": 6.0, "full": 60.0}
SEES = [
    "noise, floods, loops, wrong or missing templates, swapped or scaled weights, broken tokenizers",
    "answers crossed between parallel requests, stalls, broken streams and counts",
]
CANNOT_SEE = ["mild damage (one layer, a few percent of a scale): compare with a trusted run, `firstlight verify --against FILE`"]


async def verify(
    endpoint: Endpoint,
    *,
    profile: str = "quick",
    checks: Sequence[str] = (),
    accept: frozenset[str] = frozenset(),
    on_check: OnCheck | None = None,
    api_key: str | None = None,
    claims: Claims | None = None,
) -> Verdict:
    """Asks the endpoint and judges its answers. `checks`: only these; `accept`: failures that the user takes by name.

    Raises UsageError for unknown names. An endpoint that does not answer is a verdict, not an exception.
    """
    chosen = select(profile, checks)
    started = now()
    api = Api(endpoint.base_url, endpoint.model, api_key=api_key or _key_of(endpoint))
    session = Session(api, endpoint, claims or Claims())
    results: list[CheckResult] = []
    try:
        for check in chosen:
            result = await _run(check, session, results, started + BUDGET_SECONDS[profile], accept)
            results.append(result)
            if on_check:
                on_check(result)
    finally:
        await api.close()
    return Verdict(
        passed=all(r.passed or r.skipped or r.accepted for r in results),
        endpoint=endpoint.base_url,
        model=endpoint.model,
        profile=profile,
        checks=results,
        sees=SEES,
        cannot_see=CANNOT_SEE,
        seconds=round(now() - started, 3),
    )


def select(profile: str, names: Sequence[str]) -> list[Check]:
    """The profile's checks, or those named."""
    if profile not in BUDGET_SECONDS:
        raise UsageError("unknown-profile", f"no profile {profile!r}", hint=f"one of {', '.join(BUDGET_SECONDS)}")
    known = {c.name for c in CHECKS} | {c.group for c in CHECKS}
    if unknown := [n for n in names if n not in known]:
        raise UsageError("unknown-check", f"no check {unknown[0]!r}", hint=f"one of {', '.join(c.name for c in CHECKS)}")
    if names:
        return [c for c in CHECKS if c.name in names or c.group in names or c.name in ("models", "chat", "completions")]
    return [c for c in CHECKS if c.quick or profile == "full"]


def _key_of(endpoint: Endpoint) -> str | None:
    return Path(endpoint.api_key_file).read_text().strip() if endpoint.api_key_file else None


async def _run(check: Check, session: Session, before: list[CheckResult], deadline: float, accept: frozenset[str]) -> CheckResult:
    """One check with its clock; a dead or silent endpoint fails the check, and what follows is skipped."""
    result = functools.partial(CheckResult, name=check.name, group=check.group)
    if lost := next((r for r in before if r.note == "the endpoint does not answer"), None):
        return result(passed=False, skipped=True, note=f"not asked: {lost.name} got no answer")
    if not check.essential and now() >= deadline:
        return result(passed=False, skipped=True, note="time budget spent")
    started = now()
    try:
        outcome = await check.run(session)
    except NoAnswer as e:
        outcome = Outcome(passed=False, evidence=[e.message], note="the endpoint does not answer")
    return result(
        passed=bool(outcome.passed),
        skipped=outcome.passed is None,
        accepted=outcome.passed is False and check.name in accept,
        evidence=outcome.evidence,
        note=outcome.note,
        seconds=round(now() - started, 3),
    )
