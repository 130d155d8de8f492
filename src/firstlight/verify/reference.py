"""The reference: next-token distributions of a trusted run, and how far another run is from them.

Fixed texts are cut at fixed places; each cut is one prompt, and the distribution of its next token is kept. Nothing depends on what a
model generates, so two engines, machines, KV dtypes or quantizations of one checkpoint are compared token by token.
"""

import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

from firstlight.core.errors import InputError
from firstlight.core.reference import Reference, ReferenceRow
from firstlight.verify.answers import Answer, NoAnswer, TokenRow
from firstlight.verify.session import Outcome, Session
from firstlight.verify.wire import WireTokens, read

TOP = 20
CUT_EVERY = 3
FLOOR = -14.0


class Tolerance(NamedTuple):
    """kl: mean KL divergence (nats) that is still the same model; top1: the share of equal most likely tokens."""

    kl: float
    top1: float
    what: str


TOLERANCES = {
    "exact": Tolerance(0.0030, 0.94, "the same weights, engine and flags"),
    "same": Tolerance(0.0047, 0.92, "the same weights on another engine or machine, or with other kernels"),
    "quantized": Tolerance(0.40, 0.60, "another quantization of the same checkpoint, or another KV dtype"),
}


def prompts() -> list[str]:
    """The passages, each cut after every third word."""
    text = files("firstlight.verify").joinpath("passages.txt").read_text("utf-8")
    passages = [" ".join(p.split()) if "\t" not in p else p for p in text.strip().split("\n\n")]
    return [" ".join(words[:end]) for words in (p.split(" ") for p in passages) for end in range(CUT_EVERY, len(words), CUT_EVERY)]


async def take_reference(session: Session) -> Reference:
    """Asks every prompt for its next token. Raises InputError `no-logprobs` where the endpoint gives none."""
    asked = prompts()
    rows = await session.together(_row(session, p) for p in asked)
    if missing := sum(r is None for r in rows):
        raise InputError("no-logprobs", "the endpoint gives no logprobs in /completions", evidence=(f"{missing} of {len(asked)} prompts",))
    return Reference(
        model=session.api.model,
        engine=session.engine,
        engine_version=session.engine_version,
        taken=time.time(),
        prompts=asked,
        rows=[r for r in rows if r],
        tokens_digest=await _tokens_digest(session, asked),
    )


async def _tokens_digest(session: Session, asked: Sequence[str]) -> str | None:
    """Of the prompts' token ids, by the server's own /tokenize (vLLM, SGLang, llama.cpp); None where it has none."""
    plain = {"model": session.api.model, "add_special_tokens": False, "add_special": False}
    found: list[list[int]] = []
    for text in passages(asked):
        try:
            status, body = await session.api.post("/tokenize", {**plain, "prompt": text, "content": text}, root=True)
        except NoAnswer:
            return None
        tokens = read(body, WireTokens)
        if status != 200 or isinstance(tokens, str):
            return None
        found.append(tokens.tokens)
    return digest_of(found)


def passages(asked: Sequence[str]) -> list[str]:
    """The prompts that no other one goes on from: all the text, once."""
    return [p for p in asked if not any(q != p and q.startswith(p) for q in asked)]


def digest_of(tokens: Sequence[Sequence[int]]) -> str:
    """SHA-256 of lists of token ids."""
    return hashlib.sha256(json.dumps(list(map(list, tokens))).encode()).hexdigest()


def whole(trusted: Reference, origin: str) -> Reference:
    """The same, where each prompt has its row and each row its logprobs. Raises InputError `wrong-shape` otherwise."""
    rows = trusted.rows
    if rows and len(rows) == len(trusted.prompts) and all(r.tokens and len(r.tokens) == len(r.logprobs) for r in rows):
        return trusted
    evidence = (f"{len(trusted.prompts)} prompts, {len(rows)} rows",)
    raise InputError("wrong-shape", f"{origin} is no whole reference", evidence=evidence, hint="make it anew: --save-reference FILE")


async def _row(session: Session, prompt: str) -> ReferenceRow | None:
    answer: Answer = await session.api.complete(prompt, max_tokens=1, temperature=0, **session.logprob_options(TOP, chat=False))
    return _kept(answer.tokens[0], answer.usage.prompt_tokens) if answer.tokens else None


def _kept(row: TokenRow, tokens: int | None) -> ReferenceRow:
    top = row.top or ((row.token, row.logprob),)
    return ReferenceRow(prompt_tokens=tokens, tokens=[t for t, _ in top], logprobs=[round(v, 5) for _, v in top])


def divergence(trusted: ReferenceRow, other: ReferenceRow) -> float:
    """KL(trusted || other) in nats over the trusted row's tokens, with the rest of each row as one more outcome.

    Infinite when either row holds what is no logprob: a number that is not finite, or one above zero.
    """
    if not (_sane(trusted) and _sane(other)):
        return math.inf
    theirs = dict(zip(other.tokens, other.logprobs, strict=True))
    absent = _absent(other)
    total = p_sum = q_sum = 0.0
    for token, value in zip(trusted.tokens, trusted.logprobs, strict=True):
        seen = theirs.get(token, absent)
        p, q = math.exp(value), math.exp(seen)
        total += p * (value - seen)
        p_sum, q_sum = p_sum + p, q_sum + q
    p_rest, q_rest = max(1e-6, 1 - p_sum), max(1e-6, 1 - q_sum)
    return max(0.0, total + p_rest * math.log(p_rest / q_rest))


def _sane(row: ReferenceRow) -> bool:
    return all(math.isfinite(v) and v < 0.01 for v in row.logprobs)


def _absent(row: ReferenceRow) -> float:
    """The most that a token which a row does not list can have: no more than its last, no more than what the row leaves over."""
    left = 1 - sum(math.exp(v) for v in row.logprobs)
    return max(FLOOR, min(row.logprobs[-1], math.log(max(left, 1e-9))))


class Distance(NamedTuple):
    """kl: mean, nats; top1: share of equal most likely tokens; worst: the three prompts that differ most, as text."""

    kl: float
    top1: float
    counts_equal: bool
    worst: list[str]


def distance(trusted: Reference, rows: Sequence[ReferenceRow]) -> Distance:
    """How far rows are from the trusted ones, prompt by prompt."""
    pairs = list(zip(trusted.prompts, trusted.rows, rows, strict=True))
    kls = [divergence(a, b) for _, a, b in pairs]
    same = sum(a.tokens[0] == b.tokens[0] for _, a, b in pairs)
    order = sorted(range(len(pairs)), key=lambda i: -kls[i])[:3]
    worst = [f"...{pairs[i][0][-30:]!r}: {pairs[i][1].tokens[0]!r} became {pairs[i][2].tokens[0]!r}, KL {kls[i]:.3f}" for i in order]
    counts = all(a.prompt_tokens == b.prompt_tokens for _, a, b in pairs if a.prompt_tokens and b.prompt_tokens)
    return Distance(sum(kls) / len(kls), same / len(pairs), counts, worst)


def against(trusted: Reference, tolerance: str) -> Callable[[Session], Awaitable[Outcome]]:
    """The check: this endpoint against a trusted run. What cannot be compared has not passed: the comparison is what was asked for."""

    async def check(session: Session) -> Outcome:
        rows = await session.together(_row(session, p) for p in trusted.prompts)
        kept = [r for r in rows if r]
        if len(kept) < len(rows):
            missing = f"{len(rows) - len(kept)} of {len(rows)} prompts"
            return Outcome(passed=False, evidence=[f"nothing to compare: no logprobs in /completions for {missing}"])
        digest = await _tokens_digest(session, trusted.prompts) if trusted.tokens_digest else None
        return judge(distance(trusted, kept), tolerance, trusted, model=session.api.model, engine=session.engine, digest=digest)

    return check


def judge(
    found: Distance, tolerance: str, trusted: Reference, *, model: str | None = None, engine: str | None = None, digest: str | None = None
) -> Outcome:
    """model, engine, digest: the served name, the engine and the digest of the prompts' token ids here, where known.

    Other token ids are another vocabulary, whatever the distributions say. Another name is only said: one checkpoint is served by many.
    """
    limit = TOLERANCES[tolerance]
    others = [] if found.counts_equal else ["the prompts have other token counts: another tokenizer"]
    if digest and trusted.tokens_digest and digest != trusted.tokens_digest:
        others.append("the prompts have other token ids: another vocabulary")
    ok = found.kl <= limit.kl and found.top1 >= limit.top1 and not others
    head = f"KL {found.kl:.4f} (limit {limit.kl}), top-1 {found.top1:.0%} (limit {limit.top1:.0%}) over {len(trusted.prompts)} prompts"
    wide = TOLERANCES["quantized"]
    mild = not ok and not others and found.kl <= wide.kl and found.top1 >= wide.top1 and tolerance == "same"
    note = f"as far off as {wide.what}; if that is what this is: --tolerance quantized" if mild else f"judged as {limit.what}"
    exact = TOLERANCES["exact"]
    if ok and tolerance == "same" and engine is not None and engine == trusted.engine and (found.kl > exact.kl or found.top1 < exact.top1):
        note = f"WARNING: more than {exact.what} differ by (KL {exact.kl}); where nothing else changed, this is damage: --tolerance exact"
    named = _other_name(trusted, model)
    evidence = [head, *others, *([] if ok else found.worst)]
    return Outcome(passed=ok, evidence=evidence, note=f"{named}; {note}" if named else note)


def _other_name(trusted: Reference, model: str | None) -> str | None:
    """A reference made from a folder that was named for it needs no such word."""
    if model is None or trusted.model == model or trusted.engine == "transformers":
        return None
    return f"WARNING: the reference is of {trusted.model!r}, this endpoint serves {model!r}; it counts only if they are one checkpoint"
