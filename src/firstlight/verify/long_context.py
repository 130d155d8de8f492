"""Long context: is text far back still found, does counting go on at every length, and under parallel long requests.

Lengths are shares of the context length, in tokens as the endpoint's own usage counts them. Counting needs only what is near, so it must
hold at every length: where it breaks, positions or the KV cache are broken. Finding a number far back is also a matter of the model's
ability, so a needle is judged only where the same model finds it in a short text.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from firstlight.verify.answers import Answer
from firstlight.verify.session import Outcome, Session, now

SHARES = (0.01, 0.25, 0.5, 0.9, 0.99)
SENTENCES = (
    "The market opens early and the farmers bring apples and bread.",
    "A train leaves the station every hour and follows the river.",
    "In the evening the children play near the old stone bridge.",
    "The library is quiet and the light comes through tall windows.",
)
NEEDLE = "The code of the blue door is {number}."
ASKED = "The code of the blue door is"
TAIL_TOKENS = 160
PACE_SENTENCES = 40
FILLED = 0.8  # of the KV cache, by all parallel requests together


class Probe(NamedTuple):
    """One length: whether needle and counting held, how long it took for how many tokens, and all of it as text."""

    share: float
    needle: bool
    counting: bool
    seconds: float
    shown: str
    tokens: int = 0


class Later(NamedTuple):
    """A length that was not read for want of time. seconds: about what all up to it would take from here."""

    share: float
    tokens: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.tokens} tokens, about {self.seconds:.0f} s)"


async def long_context(session: Session) -> Outcome:
    """Needle and counting at 1 %, 25 %, 50 %, 90 % and 99 % of the context; each text begins with the one before: caches help.

    A length is read when the time left is enough for it at the pace seen so far; what is not read is listed with the time it would take.
    """
    limit = session.max_model_len
    if not limit or not session.has_completions:
        return Outcome(passed=None, note="context length unknown" if not limit else "no /completions to fill with text")
    pace = await _pace(session)
    number = str(session.fresh())[:5]
    probes: list[Probe] = []
    for share in SHARES:
        if probes and session.seconds_left() < expected(pace, probes, share * limit):
            break
        probes.append(await _probe(session, share, limit, pace.tokens, number))
    later = [Later(s, int(s * limit), expected(pace, probes, s * limit)) for s in SHARES[len(probes) :]]
    return judge(probes, later)


async def long_context_seconds(session: Session) -> float | None:
    """What all lengths would take, None where nothing tells how fast this endpoint reads."""
    pace = session.seconds_per_read or session.seconds_per_token
    return None if pace is None else SHARES[-1] * (session.max_model_len or 0) * pace


class Pace(NamedTuple):
    """Measured with the endpoint's own count, so that a share of the context is what it says. seconds: to read one sentence."""

    tokens: float
    seconds: float


async def _pace(session: Session) -> Pace:
    """A fresh number in front, so that no cache has read it before."""
    text = f"Number {session.fresh()}. {_filler(PACE_SENTENCES)}"
    answer = await session.api.complete(text, max_tokens=1, temperature=0)
    tokens = (answer.usage.prompt_tokens or PACE_SENTENCES * 14) / PACE_SENTENCES
    return Pace(tokens, answer.seconds / PACE_SENTENCES)


def _filler(sentences: int) -> str:
    return " ".join(SENTENCES[i % len(SENTENCES)] for i in range(sentences))


def expected(pace: Pace, probes: list[Probe], tokens: float) -> float:
    """Seconds that reading on up to `tokens` takes. Only what the cache does not hold is read, and a token costs the more the further back
    its past goes: the seconds a token of the last two steps, drawn on as a line that does not fall.
    """
    steps = [(pace.seconds / pace.tokens, PACE_SENTENCES * pace.tokens / 2), *(_step(a, b) for a, b in itertools.pairwise(probes))]
    rate, middle = steps[-1]
    before, earlier = steps[-2] if len(steps) > 1 else steps[-1]
    slope = max(0.0, (rate - before) / max(middle - earlier, 1.0))
    return (tokens - probes[-1].tokens) * (rate + slope * ((tokens + probes[-1].tokens) / 2 - middle))


def _step(before: Probe, after: Probe) -> tuple[float, float]:
    """Seconds a token from one length to the next, and the middle of the two."""
    return after.seconds / max(after.tokens - before.tokens, 1), (after.tokens + before.tokens) / 2


async def _probe(session: Session, share: float, limit: int, per_sentence: float, number: str) -> Probe:
    room = max(64, int(share * limit) - TAIL_TOKENS)
    needle = NEEDLE.format(number=number)
    text = f"{needle} {needle} {_filler(max(2, int(room / per_sentence)))}"
    started = now()
    answer = await session.api.complete(f"{text} {ASKED}", max_tokens=8, temperature=0)
    count = await session.api.complete(f"{text} {_counting()}", max_tokens=8, temperature=0)
    found = count if count.ok else answer
    shown = f"{share:.0%} ({found.usage.prompt_tokens} tokens): needle {answer.text.strip()[:16]!r}, counting {_said(count)}"
    read = found.usage.prompt_tokens or int(share * limit)
    return Probe(share, number in answer.text, count.ok and "41" in count.text, now() - started, shown, read)


def _counting() -> str:
    return "Numbers in order: " + " ".join(f"{i}," for i in range(21, 41))


def _said(answer: Answer) -> str:
    return repr(answer.text.strip()[:16]) if answer.ok else f"status {answer.status}: {answer.error[:80]}"


def judge(probes: list[Probe], later: Sequence[Later] = ()) -> Outcome:
    """Counting must hold everywhere. The needle must hold at some length beyond the shortest, where the shortest holds."""
    lost = [p for p in probes if not p.counting]
    short, *far = probes
    faded = [p for p in far if not p.needle]
    broken = short.needle and bool(far) and len(faded) == len(far)
    notes = [f"skipped for time: {', '.join(map(str, later))}"] if later else []
    if faded and not broken:
        notes.append(f"the needle is lost at {', '.join(f'{p.share:.0%}' for p in faded)}: the model's reach or the engine's")
    return Outcome(
        passed=not lost and not broken,
        evidence=[p.shown for p in probes],
        note="; ".join(notes) or None,
        for_time=bool(later),
        needs_seconds=later[-1].seconds if later else None,
    )


async def kv_pressure(session: Session) -> Outcome:
    """As many long requests at once as were planned, which together fill most of the KV cache; each must count on and keep its number."""
    limit, many = session.max_model_len, _many(session)
    if not limit or not session.has_completions:
        return Outcome(passed=None, note="context length unknown" if not limit else "no /completions to fill with text")
    pace, pool = await _pace(session), await _pool(session, limit)
    fitting = max(4, int((_each(limit, pool, many) - TAIL_TOKENS) / pace.tokens))
    sentences = min(fitting, _affordable(session, pace, many))
    needs = fitting * pace.seconds * many
    if sentences < 4:
        return Outcome(passed=None, note=f"skipped for time: about {needs:.0f} s", for_time=True, needs_seconds=needs)
    numbers = [str(session.fresh())[:5] for _ in range(many)]
    answers = await session.together((_pressed(session, n, sentences) for n in numbers), limit=1 if session.parallel == 1 else many)
    wrong = [f"{n}: {_said(a)}" for n, a in zip(numbers, answers, strict=True) if not a.ok or "41" not in a.text]
    crossed = [f"{n} in another's answer" for i, n in enumerate(numbers) for j, a in enumerate(answers) if i != j and n in a.text]
    held = sum(a.usage.prompt_tokens or 0 for a in answers)
    fine = f"{many} at once, {held} tokens of prompts together in a KV cache of {pool}, all right"
    cut = sentences < fitting
    note = f"{sentences / fitting:.0%} of the length that would fill it; all of it: about {needs:.0f} s" if cut else None
    evidence = [*wrong[:3], *crossed[:3]] or [fine]
    return Outcome(passed=not wrong and not crossed, evidence=evidence, note=note, for_time=cut, needs_seconds=needs if cut else None)


def _many(session: Session) -> int:
    return session.claims.concurrency or session.parallel


def _each(limit: int, pool: int, many: int) -> float:
    """Tokens of one of the parallel requests: no more than the context holds, and all together most of the KV cache."""
    return min(FILLED * pool / many, SHARES[-1] * limit)


async def _pool(session: Session, limit: int) -> int:
    """Tokens that the KV cache holds, as vLLM's metrics tell; one context where nothing does."""
    status, text = await session.api.get("/metrics", root=True)
    found = _CACHE.search(text) if status == 200 and isinstance(text, str) else None
    if found is None:
        return limit
    labels = {name: int(value) for name, value in _COUNT.findall(found[1])}
    tokens = labels.get("kv_cache_size_tokens") or labels.get("num_gpu_blocks", 0) * labels.get("block_size", 0)
    return tokens or limit


_CACHE = re.compile(r"^vllm:cache_config_info\{([^\n]*)\}", re.M)
_COUNT = re.compile(r'\b(kv_cache_size_tokens|num_gpu_blocks|block_size)="([0-9]{1,12})"')


async def kv_pressure_seconds(session: Session) -> float | None:
    """What filling the KV cache would take, None where nothing tells how fast this endpoint reads."""
    pace, limit = session.seconds_per_read or session.seconds_per_token, session.max_model_len or 0
    return None if pace is None else pace * _many(session) * _each(limit, await _pool(session, limit), _many(session))


def _affordable(session: Session, pace: Pace, many: int) -> int:
    """Sentences a request may have for all of them to be read in the time left, at the pace seen; writing takes some of it."""
    left = session.seconds_left()
    if math.isinf(left) or pace.seconds <= 0:
        return 10**9
    writing = 8 * (session.seconds_per_token or 0.0) * many
    return int((left - writing) / (pace.seconds * many))


async def _pressed(session: Session, number: str, sentences: int) -> Answer:
    return await session.api.complete(f"Number {number}. {_filler(sentences)} {_counting()}", max_tokens=8, temperature=0)
