"""Which fitting layout comes first: what was asked, then few GPUs, then speed."""

from firstlight.plan.evaluate import Outcome
from firstlight.plan.situation import Situation

DEFAULT_CONTEXT = 131072
TOKENS_FOR = {"agents": 8 * 65536, "throughput": 64 * 8192}


def wanted_context(s: Situation) -> int:
    """What was asked, or the model's own maximum up to 131,072; all of it for `long-context`."""
    if s.wish.max_model_len:
        return s.wish.max_model_len
    limit = s.checkpoint.max_position_embeddings or DEFAULT_CONTEXT
    return limit if s.wish.purpose == "long-context" else min(limit, DEFAULT_CONTEXT)


def wanted_capacity(s: Situation) -> int:
    """Tokens in flight that make the endpoint useful for its purpose."""
    context = wanted_context(s)
    if s.wish.purpose in TOKENS_FOR:
        return max(TOKENS_FOR[s.wish.purpose], context)
    return context * (s.wish.concurrency or 1)


def rank_key(s: Situation, outcome: Outcome) -> tuple[float, ...]:
    """Smaller is better. For throughput: all of the machine, most tokens; else enough, certain, fewest GPUs, fastest."""
    c = outcome.candidate
    capacity = outcome.capacity * c.data_parallel_size
    speed = -(_speed(outcome) or 0.0)
    kv = 0.0 if c.kv_cache_dtype in (None, "auto", "bfloat16") else 0.5
    if s.wish.purpose == "throughput":
        return (outcome.uncertain, -float(capacity) * (_speed(outcome) or 1.0), gpus(outcome))
    enough = min(capacity / max(wanted_capacity(s), 1), 1.0)
    reaches = min((c.max_model_len or 0) / wanted_context(s), 1.0)
    return (outcome.uncertain, -round(min(enough, reaches), 2), gpus(outcome), c.nodes, kv, speed)


def reason(s: Situation, ranked: list[Outcome]) -> str:
    """Why the first is first, in a sentence."""
    c = ranked[0].candidate
    others = len(ranked) - 1
    if s.wish.purpose == "throughput":
        return f"most tokens per second in flight of {others + 1} layouts that fit"
    if not others:
        return "the only layout that fits and is not beaten by another"
    enough = (c.max_model_len or 0) >= wanted_context(s) and ranked[0].capacity >= wanted_capacity(s)
    what = f"{wanted_capacity(s):,} tokens" if enough else "the most of what was asked"
    return f"holds {what} on the fewest GPUs ({gpus(ranked[0])}), the fastest of {others + 1} layouts that do so or come near"


def gpus(outcome: Outcome) -> int:
    c = outcome.candidate
    return c.tensor_parallel_size * c.pipeline_parallel_size * c.data_parallel_size


def beats(one: Outcome, other: Outcome) -> bool:
    """No worse in GPUs, speed, tokens and longest request."""
    a, b = one.candidate, other.candidate
    return (
        gpus(one) <= gpus(other)
        and (_speed(one) or 0) >= (_speed(other) or 0)
        and one.capacity * a.data_parallel_size >= other.capacity * b.data_parallel_size
        and (a.max_model_len_that_fits.mid or 0) >= (b.max_model_len_that_fits.mid or 0)
    )


def _speed(outcome: Outcome) -> float | None:
    predicted = outcome.candidate.predicted
    return predicted.decode_tokens_per_second_upper_bound.high if predicted else None
