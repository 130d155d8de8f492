"""Coherence, black box: does what comes back make sense. No judge model; fixed questions by majority, and statistics."""

from firstlight.verify.answers import Answer
from firstlight.verify.probes import Continuation, Fact, continuations, facts
from firstlight.verify.session import Outcome, Session
from firstlight.verify.statistics import flood


async def known_answers(session: Session, *, count: int = 5) -> Outcome:
    """Facts any language model knows; more than half of them must hold."""
    asked = facts()[:count]
    results = await session.together(_holds(session, f) for f in asked)
    held = sum(r is None for r in results)
    wrong = [r for r in results if r is not None]
    return Outcome(passed=held * 2 > len(asked), evidence=[f"{held} of {len(asked)} facts hold", *wrong[:4]])


async def _holds(session: Session, fact: Fact) -> str | None:
    """None when one wording is answered rightly, else what was answered to the first."""
    first = ""
    for wording in fact.wordings:
        answer = await session.ask(wording)
        if fact.answer.search(answer.whole):
            return None
        first = first or f"{wording!r} -> {_shown(answer)}"
    return first


def _shown(answer: Answer) -> str:
    return repr(answer.whole.strip()[:90]) if answer.ok else f"status {answer.status}: {answer.error}"


async def trivial_continuations(session: Session) -> Outcome:
    """Counting, copying, alphabet, JSON, code, proverbs: more than half must go on as everyone would."""
    if not session.has_completions:
        return Outcome(passed=None, note="no /completions to continue a text with")
    asked = continuations()
    results = await session.together(_continues(session, c) for c in asked)
    wrong = [r for r in results if r is not None]
    held = len(asked) - len(wrong)
    return Outcome(passed=held * 2 > len(asked), evidence=[f"{held} of {len(asked)} go on as expected", *wrong[:4]])


async def _continues(session: Session, probe: Continuation) -> str | None:
    answer = await session.go_on(probe.text)
    return None if probe.answer.match(answer.text) else f"{probe.text!r} -> {_shown(answer)}"


async def no_floods(session: Session) -> Outcome:
    """No answer so far, nor a longer one asked for here, is a flood of one character, a tight loop or broken text."""
    story = await session.ask("Tell a short story about a fox and a river.", max_tokens=64, temperature=0.7, seed=7)
    if not story.ok:
        return Outcome(passed=False, evidence=[_shown(story)])
    faults = [f"{why}: {text.strip()[:60]!r}" for text in session.seen if (why := flood(text))]
    longest = max(map(len, session.seen))
    return Outcome(passed=not faults, evidence=faults[:4] or [f"{len(session.seen)} answers are text, the longest {longest} characters"])
