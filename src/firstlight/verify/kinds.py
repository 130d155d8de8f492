"""Embedding and reward models: their own checks, since they answer with numbers."""

import math
from typing import Any

from firstlight.verify.answers import error_text
from firstlight.verify.session import Outcome, Session
from firstlight.verify.wire import WireEmbeddings, WireScores, read

TRIPLES = (
    ("A cat sleeps on the sofa.", "A kitten is napping on the couch.", "The central bank raised interest rates again."),
    ("How do I bake bread at home?", "A simple recipe for homemade bread.", "The football match ended without a goal."),
    ("The train to Berlin leaves at nine.", "At 9 o'clock a train departs for Berlin.", "Photosynthesis turns light into sugar."),
)
Vector = list[float]


async def embeddings(session: Session) -> Outcome:
    """Vectors are finite, of one length, the same alone and in a batch, and sentences of one meaning are nearer than strangers."""
    texts = [t for triple in TRIPLES for t in triple]
    vectors = await _embedded(session, texts)
    if isinstance(vectors, str) or len(vectors) != len(texts):
        words = vectors if isinstance(vectors, str) else f"{len(vectors)} vectors for {len(texts)} texts"
        return Outcome(passed=False, evidence=[f"POST /embeddings: {words}"])
    alone = await _embedded(session, texts[0])
    return judge_vectors(vectors, [] if isinstance(alone, str) else alone)


async def _embedded(session: Session, texts: str | list[str]) -> list[Vector] | str:
    """Vectors in the order of the texts, or why there are none."""
    status, body = await session.api.post("/embeddings", {"model": session.api.model, "input": texts})
    if status != 200:
        return f"status {status}: {error_text(body)}"
    found = read(body, WireEmbeddings)
    return found if isinstance(found, str) else [r.embedding for r in sorted(found.data, key=lambda r: r.index or 0)]


def judge_vectors(vectors: list[Vector], alone: list[Vector]) -> Outcome:
    """vectors: anchor, near, far of each triple in turn; alone: the first anchor asked for by itself."""
    faults = []
    if len({len(v) for v in vectors}) != 1 or not all(math.isfinite(x) for v in vectors for x in v):
        return Outcome(passed=False, evidence=["vectors differ in length or hold numbers that are not finite"])
    if any(_norm(v) == 0 for v in vectors):
        return Outcome(passed=False, evidence=["a vector is all zeros"])
    if not alone or cosine(vectors[0], alone[0]) < 0.995:
        faults.append(f"the same text alone: cosine {cosine(vectors[0], alone[0]) if alone else 0:.4f}")
    near = [cosine(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 3)]
    far = [cosine(vectors[i], vectors[i + 2]) for i in range(0, len(vectors), 3)]
    held = sum(a > b for a, b in zip(near, far, strict=True))
    pairs = ", ".join(f"{a:.3f} near {b:.3f} far" for a, b in zip(near, far, strict=True))
    faults += [] if held * 2 > len(near) else [f"{held} of {len(near)} near sentences are nearer: {pairs}"]
    return Outcome(passed=not faults, evidence=faults or [f"{len(vectors[0])} dimensions; {pairs}"])


def _norm(v: Vector) -> float:
    return math.sqrt(sum(x * x for x in v))


def cosine(a: Vector, b: Vector) -> float:
    """0 for vectors of different length or without direction."""
    if len(a) != len(b) or not (_norm(a) and _norm(b)):
        return 0.0
    return sum(x * y for x, y in zip(a, b, strict=True)) / (_norm(a) * _norm(b))


REWARDED = (
    ("What is 2 + 2?", "2 + 2 is 4.", "Purple elephants never answer."),
    ("Name the capital of France.", "The capital of France is Paris.", "No. Go away."),
    ("How do I boil an egg?", "Put it in boiling water for about eight minutes.", "asdf qwer zxcv asdf"),
)


async def rewards(session: Session) -> Outcome:
    """Scores are finite, and a good answer scores above a bad one at most questions."""
    scores: list[tuple[float | None, float | None]] = []
    for question, good, bad in REWARDED:
        scores.append((await _score(session, question, good), await _score(session, question, bad)))
    if any(a is None or b is None or not math.isfinite(a) or not math.isfinite(b) for a, b in scores):
        return Outcome(passed=False, evidence=[f"no finite score: {scores}"])
    held = sum((a or 0) > (b or 0) for a, b in scores)
    shown = ", ".join(f"{a:.3f} good {b:.3f} bad" for a, b in scores)
    return Outcome(passed=held * 2 > len(scores), evidence=[f"{held} of {len(scores)} good answers score higher: {shown}"])


async def _score(session: Session, question: str, reply: str) -> float | None:
    """The last number that /pooling gives for the conversation."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    status, body = await session.api.post("/pooling", {"model": session.api.model, "messages": messages}, root=True)
    scores = read(body, WireScores)
    value: Any = scores.data[0].data if status == 200 and not isinstance(scores, str) and scores.data else None
    while isinstance(value, list):
        value = value[-1] if value else None
    return None if value is None else float(value)
