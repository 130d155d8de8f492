"""Coherence, black box: does what comes back make sense. No judge model; fixed questions by majority, and statistics."""

from typing import NamedTuple

from firstlight.verify.answers import Answer
from firstlight.verify.probes import Continuation, Fact, continuations, facts
from firstlight.verify.session import Outcome, Session
from firstlight.verify.statistics import flood, is_broken

STYLE = "Question: What is the color of grass?\nAnswer: Green\n\nQuestion: Name the capital of Spain.\nAnswer: Madrid\n\n"


async def trivial_continuations(session: Session) -> Outcome:
    """Counting, copying, alphabet, JSON, code, proverbs: more than half must go on as everyone would."""
    if not session.has_completions:
        return Outcome(passed=None, note="no /completions to continue a text with")
    asked = continuations()
    results = await session.together(_continues(session, c) for c in asked)
    wrong = [r for r in results if r is not None]
    held = len(asked) - len(wrong)
    session.continuations_hold = held * 2 > len(asked)
    return Outcome(passed=session.continuations_hold, evidence=[f"{held} of {len(asked)} go on as expected", *wrong[:4]])


async def _continues(session: Session, probe: Continuation) -> str | None:
    answer = await session.go_on(probe.text, **session.logprob_options(5, chat=False))
    if answer.tokens:
        session.rows[probe.text] = answer.tokens[0]
    return None if probe.answer.match(answer.text) else f"{probe.text!r} -> {_shown(answer)}"


class Held(NamedTuple):
    """held of seen facts; wrong: what was answered instead, a line each."""

    held: int
    seen: int
    wrong: list[str]


async def known_answers(session: Session, *, count: int = 5) -> Outcome:
    """Facts any language model knows, in several wordings; more than half must hold. Once that is clear, no more is asked.

    Where some of the first five hold and most do not, five more decide: damaged models knew one of five at most, the weakest healthy one
    (135M, quantized to 4 bits twice) two to three, and all of the other five.
    """
    first, further = facts()[:count], facts()[count:]
    found = await _held(session, first, need=len(first) // 2 + 1)
    passed = found.held > len(first) // 2
    if not passed and found.held:
        need = (len(first) + len(further)) // 2 + 1
        more = await _held(session, further, need=need - found.held)
        found = Held(found.held + more.held, found.seen + more.seen, found.wrong + more.wrong)
        passed = found.held >= need
    evidence = [f"{found.held} of {found.seen} facts hold", *found.wrong[:4]]
    return Outcome(passed=passed, evidence=evidence, note=None if passed else _why(session))


async def _held(session: Session, asked: list[Fact], *, need: int, waves: int = 2) -> Held:
    """Every fact in its first wording, those that failed in their second, until `need` hold."""
    held, seen, wrong, failed = 0, 0, list[str](), list[Fact]()
    for wave in range(waves):
        turn, failed = (asked if wave == 0 else failed), []
        for batch in (turn[:need], turn[need:]):
            if held >= need or not batch:
                continue
            answers = await session.together(_ask(session, f, wave) for f in batch)
            right = [bool(f.answer.search(a.whole)) for f, a in zip(batch, answers, strict=True)]
            held, seen = held + sum(right), seen + len(batch) * (wave == 0)
            missed = [(f, a) for f, a, ok in zip(batch, answers, right, strict=True) if not ok]
            wrong += [f"{f.wordings[min(wave, len(f.wordings) - 1)]!r} -> {_shown(a)}" for f, a in missed]
            failed += [f for f, _ in missed]
    return Held(held, seen, wrong)


async def _ask(session: Session, fact: Fact, wave: int) -> Answer:
    wording = fact.wordings[min(wave, len(fact.wordings) - 1)]
    if session.has_chat:
        return await session.ask(wording)
    return await session.go_on(f"{STYLE}Question: {wording}\nAnswer:", max_tokens=12, stop=["\n"])


def _why(session: Session) -> str | None:
    """What the pattern of failures says."""
    if session.has_chat and session.continuations_hold:
        return "plain texts go on well, chat turns do not: a chat template of another family, or a base model (say --kind base)"
    return None


def _shown(answer: Answer) -> str:
    return repr(answer.whole.strip()[:90]) if answer.ok else f"status {answer.status}: {answer.error}"


async def other_languages(session: Session) -> Outcome:
    """The same facts in other languages: a model that knows none is not judged, but what it writes must be text."""
    asked = [(f, w) for f in facts() for w in f.wordings[2:]]
    answers = await session.together(session.ask(w) for _, w in asked)
    held = sum(bool(f.answer.search(a.whole)) for (f, _), a in zip(asked, answers, strict=True))
    faults = [f"{w!r} -> {_shown(a)}" for (_, w), a in zip(asked, answers, strict=True) if not a.ok or is_broken(a.whole)]
    note = "not judged by their share: small models know few"
    return Outcome(passed=not faults, evidence=faults[:4] or [f"{held} of {len(asked)} hold"], note=note)


async def no_floods(session: Session) -> Outcome:
    """No answer so far, nor a sampled one asked for here, is a flood of one character, a tight loop or broken text.

    Where texts can be continued, reading against decoding has left a long one already, and half as much is enough in the quick profile.
    """
    tokens = 24 if session.has_completions and not session.thorough else 48
    story = await session.story(session.affordable(tokens), temperature=0.7, seed=7)
    if not story.ok:
        return Outcome(passed=False, evidence=[_shown(story)])
    faults = [f"{why}: {text.strip()[:60]!r}" for text in session.seen if (why := flood(text))]
    longest = max(map(len, session.seen))
    fine = f"{len(session.seen)} answers are text, the longest {longest} characters"
    return Outcome(passed=not faults, evidence=faults[:4] or [fine])
