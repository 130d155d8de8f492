"""Whether `up` rehearses: where a minute now saves minutes later."""

from typing import NamedTuple

from firstlight.core.plan import Candidate

LONG_READ_SECONDS = 180.0


class Decision(NamedTuple):
    rehearse: bool
    because: str


def decide(mode: str, *, candidate: Candidate, weights_missing: bool, engine: str) -> Decision:
    """mode: always | never | auto. auto rehearses while weights still download, when reading them takes longer than three minutes,
    or when the plan's own interval straddles a limit, so that arithmetic alone cannot tell whether it fits."""
    if engine != "vllm":
        return Decision(False, f"{engine} has no dummy weights")
    if mode in ("always", "never"):
        return Decision(mode == "always", "as asked")
    if weights_missing:
        return Decision(True, "the weights still download")
    seconds = candidate.predicted.load_seconds.mid if candidate.predicted else None
    if seconds is not None and seconds > LONG_READ_SECONDS:
        return Decision(True, f"reading the weights takes about {seconds / 60:.0f} min")
    if (limit := straddles(candidate)) is not None:
        return Decision(True, limit)
    return Decision(False, "the plan is clear of every limit and the weights are read fast")


def straddles(candidate: Candidate) -> str | None:
    """The limit inside the plan's interval: below it the plan works, above it does not; None where there is none."""
    wanted, fits = candidate.max_model_len, candidate.max_model_len_that_fits
    if wanted is not None and fits.low is not None and fits.high is not None and fits.low < wanted <= fits.high:
        return f"between {fits.low:,.0f} and {fits.high:,.0f} tokens fit, and {wanted:,} are wanted"
    headroom = candidate.per_gpu.headroom if candidate.per_gpu else None
    if headroom is not None and headroom.low is not None and headroom.high is not None and headroom.low < 0 <= headroom.high:
        return "memory may or may not suffice within the plan's uncertainty"
    return None
