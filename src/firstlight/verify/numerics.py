"""Numbers behind the answers: logprobs that make sense, and the same ones whichever way they are computed.

A token's distribution must not depend on whether its past was decoded token by token or read at once as a prompt, on who else is in the
batch, or on what the prefix cache held. Engines promise equality only up to rounding, so each comparison has a tolerance in logprob (nats).
"""

import math
from collections.abc import Coroutine
from typing import Any, NamedTuple

from firstlight.verify.answers import Answer, TokenRow
from firstlight.verify.session import Outcome, Session

TOLERANCE = 0.35
LIKELY = -4.0
TOP = 8
SHORT, LONG, CUTS = 64, 256, 6
OPENING = "Once upon a time, in a small village by the river, there lived an old woman and her two sons. Every morning the older son went"


async def logprob_sanity(session: Session) -> Outcome:
    """Trivial continuations are certain, rows are neither uniform nor infinite, and not every text has the same next token."""
    if not session.rows:
        return Outcome(passed=None, note="no logprobs to judge")
    firsts = list(session.rows.values())
    faults = [f for text, row in session.rows.items() if (f := _insane(text, row))]
    mean = sum(r.logprob for r in firsts if math.isfinite(r.logprob)) / len(firsts)
    if mean < -3.0:
        faults.append(f"mean logprob of trivial continuations is {mean:.1f} (healthy: above -1.5)")
    if len(firsts) >= 6 and len({r.token for r in firsts}) == 1:
        faults.append(f"{len(firsts)} different texts, one next token: {firsts[0].token!r}")
    return Outcome(passed=not faults, evidence=faults[:4] or [f"{len(firsts)} rows, mean logprob of the chosen token {mean:.2f}"])


def _insane(text: str, row: TokenRow) -> str | None:
    values = [row.logprob, *(v for _, v in row.top)]
    if any(math.isnan(v) or math.isinf(v) for v in values) or row.logprob < -1000:
        return f"{text!r}: logprobs {values[:3]}"
    if len(row.top) >= 4 and row.top[0][1] - row.top[-1][1] < 0.01:
        return f"{text!r}: a uniform row, {row.top[0][1]:.2f} for each of {len(row.top)}"
    return None


class Step(NamedTuple):
    """One token of a generation, as decoded and as predicted when its past is read as a prompt (None: not among the top)."""

    place: int
    token: str
    decoded: float
    prefilled: float | None

    @property
    def gap(self) -> float:
        return abs(self.decoded - self.prefilled) if self.prefilled is not None else math.inf

    def __str__(self) -> str:
        read = "not among the likely" if self.prefilled is None else f"{self.prefilled:.2f}"
        return f"token {self.place} {self.token!r}: {self.decoded:.2f} decoded, {read} when read as a prompt"


async def prefill_against_decode(session: Session) -> Outcome:
    """What was decoded token by token is what a prompt with the same past predicts; a KV cache gone bad shows here.

    64 tokens however slow the endpoint (they cross three borders of 16-token KV blocks); the full profile 256, as far as time allows.
    """
    if not session.has_completions:
        return Outcome(passed=None, note="no /completions to read a past with")
    length = session.affordable(LONG, least=SHORT) if session.thorough else SHORT
    whole = await session.go_on(OPENING, max_tokens=length, **session.endless(), **session.logprob_options(TOP, chat=False))
    if not whole.ok:
        return Outcome(passed=False, evidence=[f"status {whole.status}: {whole.error}"])
    places = _places(len(whole.tokens) - 2, CUTS)
    steps = await session.together(_step(session, whole, p) for p in places)
    found = _judged(whole, [s for s in steps if s])
    if found.passed is False:
        return found
    if len(whole.tokens) < 12 or sum(s is None for s in steps) * 3 > len(places):
        return await _by_words(session, "", whole.text)
    if None in steps:  # what does not tokenize as it was generated may be what is broken
        good = places[steps.index(None) - 1] if steps[0] is not None else 0
        begin = len("".join(r.token for r in whole.tokens[:good]))
        rest = await _by_words(session, whole.text[:begin], whole.text[begin:])
        return rest if rest.passed is False else found
    return found


def _judged(whole: Answer, steps: list[Step]) -> Outcome:
    wrong = [s for s in steps if s.prefilled is None]
    far = [s for s in steps if s.gap > TOLERANCE and s.decoded > LIKELY]
    bad = wrong or (far if len(far) * 2 > len(steps) else [])
    worst = max((s.gap for s in steps), default=0.0)
    fine = f"{len(steps)} places of {len(whole.tokens)} tokens agree within {worst:.2f}"
    return Outcome(passed=not bad, evidence=[str(s) for s in bad[:4]] or [fine])


def _places(last: int, cuts: int) -> list[int]:
    return sorted({round(last * (i + 1) / cuts) for i in range(cuts)} - {0}) if last > 0 else []


async def _step(session: Session, whole: Answer, place: int) -> Step | None:
    """One place. None when the text up to it does not tokenize as it was generated (the server's prompt count tells)."""
    past = "".join(r.token for r in whole.tokens[:place])
    if not whole.text.startswith(past):
        return None
    answer = await session.api.complete(OPENING + past, max_tokens=1, temperature=0, **session.logprob_options(20, chat=False))
    expected = (whole.usage.prompt_tokens or 0) + place
    if not answer.ok or not answer.tokens or answer.usage.prompt_tokens != expected:
        return None
    row = whole.tokens[place]
    return Step(place, row.token, row.logprob, dict(answer.tokens[0].top).get(row.token))


async def _by_words(session: Session, head: str, text: str) -> Outcome:
    """Where tokens do not cut cleanly, or without logprobs: after each of some words, the next word must be likely again.

    head: generated before `text`, and known to be good; then most of the words looked at must fail, as there are few.
    """
    words = text.split(" ")
    if len(words) < (5 if head else 12):
        return Outcome(passed=None, note=f"too short a text: {text[:60]!r}")
    places = _places(len(words) - 2, CUTS)
    options = session.logprob_options(5, chat=False)
    answers = await session.together(session.go_on(OPENING + head + " ".join(words[:p]), max_tokens=6, **options) for p in places)
    wrong = [(p, a) for p, a in zip(places, answers, strict=True) if not _goes_on(a, " ".join(words[p:]))]
    shown = [f"after word {p}: {words[p]!r} decoded, {a.text.strip()[:20]!r} when read as a prompt" for p, a in wrong]
    bad = len(wrong) >= 2 and (len(wrong) * 2 > len(places) if head else len(wrong) * 3 >= len(places))
    return Outcome(passed=not bad, evidence=shown[:4] if bad else [f"{len(places) - len(wrong)} of {len(places)} words come again"])


def _goes_on(answer: Answer, rest: str) -> bool:
    """Whether the text goes on as `rest`, or would have at a near tie."""
    if answer.text.strip().split(" ")[0] == rest.split(" ")[0]:
        return True
    row = answer.tokens[0] if answer.tokens else None
    near = [t.strip() for t, v in row.top if v >= row.top[0][1] - 2 * TOLERANCE] if row else []
    return any(t and rest.startswith(t) for t in near)


async def batch_invariance(session: Session) -> Outcome:
    """The same question alone and among others gives the same likely tokens."""
    if not session.has_completions:
        return Outcome(passed=None, note="no /completions to compare rows of")
    fresh = f"({session.fresh()}) {OPENING}"
    alone = await _row(session, fresh)
    others = [session.go_on(f"Story {i}, number {session.fresh()}: {OPENING}", max_tokens=12) for i in range(session.parallel - 1)]
    jobs: list[Coroutine[Any, Any, Any]] = [*others, _row(session, fresh)]
    *_, row = await session.together(jobs)
    return _same(alone, row, "alone", f"among {session.parallel}")


async def prefix_cache(session: Session) -> Outcome:
    """A prompt whose past is in the prefix cache is continued as one that is read anew."""
    if not session.has_completions:
        return Outcome(passed=None, note="no /completions to compare rows of")
    text = f"({session.fresh()}) " + f"{OPENING} to the market. " * 8 + "The woman"
    first = await _row(session, text)
    again = await _row(session, text)
    return _same(first, again, "read anew", "from the cache")


async def _row(session: Session, text: str) -> TokenRow | None:
    answer = await session.api.complete(text, max_tokens=1, temperature=0, **session.logprob_options(TOP, chat=False))
    return session.reading(answer).tokens[0] if answer.tokens else None


def _same(a: TokenRow | None, b: TokenRow | None, name_a: str, name_b: str) -> Outcome:
    if a is None or b is None:
        return Outcome(passed=None, note="no logprobs to compare")
    gap = row_distance(a, b)
    fine = f"{name_a} {a.token!r} {a.logprob:.3f}, {name_b} {b.token!r} {b.logprob:.3f}; likely tokens within {gap:.3f}"
    return Outcome(passed=gap <= TOLERANCE, evidence=[fine])


def row_distance(a: TokenRow, b: TokenRow) -> float:
    """The largest difference in logprob over the tokens that are likely in either row; infinite when one of them is missing."""
    ours, theirs = dict(a.top), dict(b.top)
    likely = {t for t, v in (*a.top[:3], *b.top[:3]) if v > LIKELY}
    return max((abs(ours.get(t, -math.inf) - theirs.get(t, -math.inf)) for t in likely), default=0.0)
