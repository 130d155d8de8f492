"""From time stamps to TTFT, TPOT, ITL and E2EL. Pure functions; seconds throughout."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from firstlight.bench.client import Record
from firstlight.core.verdict import BenchPoint, Percentiles


class Slo(Struct, frozen=True, kw_only=True):
    """What a request must keep to count as good, in seconds."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between closest ranks (numpy's default), values in any order."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def percentiles(values: Sequence[float]) -> Percentiles:
    mean = sum(values) / len(values) if values else None
    return Percentiles(p50=percentile(values, 0.5), p90=percentile(values, 0.9), p99=percentile(values, 0.99), mean=mean)


def ttft(r: Record) -> float | None:
    """Time to first token: until the first chunk with text."""
    return r.times[0] - r.started if r.times else None


def tpot(r: Record) -> float | None:
    """Time per output token after the first, by the server's own token count: (last - first) / (tokens - 1)."""
    tokens = r.output_tokens or len(r.times)
    return (r.times[-1] - r.times[0]) / (tokens - 1) if len(r.times) > 1 and tokens > 1 else None


def engine_tpot(r: Record) -> float | None:
    """The same by the engine's own clock. llama.cpp starts it at the first token, so n tokens are n - 1 steps."""
    t = r.timings
    return t.predicted_ms / 1000 / (t.predicted_n - 1) if t is not None and t.predicted_n > 1 and t.predicted_ms > 0 else None


def e2el(r: Record) -> float:
    """End to end: until the last chunk with text, or the end of the reply when there was none."""
    return (r.times[-1] if r.times else r.finished) - r.started


def itl(r: Record) -> list[float]:
    """Between chunks as they arrive; a chunk may carry several tokens."""
    return [b - a for a, b in zip(r.times, r.times[1:], strict=False)]


def good(r: Record, slo: Slo) -> bool:
    """Whether a request kept every limit that the SLO names."""
    pairs = ((slo.ttft, ttft(r)), (slo.tpot, tpot(r)), (slo.e2el, e2el(r)))
    return r.error is None and all(limit is None or (value is not None and value <= limit) for limit, value in pairs)


def point(
    records: Sequence[Record], concurrency: int, *, slo: Slo | None = None, preemptions: int | None = None, kv: float | None = None
) -> BenchPoint:
    """One level's records as figures. Rates count completed requests over first start to last end; goodput in requests a second."""
    done = [r for r in records if r.error is None]
    seconds = max((r.finished for r in records), default=0.0) - min((r.started for r in records), default=0.0)
    output = sum(r.output_tokens or len(r.times) for r in done)
    per_user = percentiles([v for r in done if (v := tpot(r)) is not None]).p50
    return BenchPoint(
        concurrency=concurrency,
        requests=len(records),
        failed=len(records) - len(done),
        seconds=seconds,
        prompt_tokens=sum(r.prompt_tokens or 0 for r in done),
        output_tokens=output,
        ttft=percentiles([v for r in done if (v := ttft(r)) is not None]),
        tpot=percentiles([v for r in done if (v := tpot(r)) is not None]),
        itl=percentiles([v for r in done for v in itl(r)]),
        e2el=percentiles([e2el(r) for r in done]),
        engine_tpot_p50=percentile([v for r in done if (v := engine_tpot(r)) is not None], 0.5),
        tokens_per_second_total=output / seconds if seconds else None,
        tokens_per_second_per_user=1 / per_user if per_user else None,
        goodput=sum(good(r, slo) for r in records) / seconds if slo and seconds else None,
        preemptions=preemptions,
        kv_cache_usage=kv,
        error=_commonest(r.error for r in records if r.error is not None),
    )


def _commonest(errors: Iterable[str]) -> str | None:
    return next((error for error, _ in Counter(errors).most_common(1)), None)


def missed(p: BenchPoint, slo: Slo) -> bool:
    """Whether the p90 of a level is beyond a limit, or unknown where one is set."""
    pairs = ((slo.ttft, p.ttft.p90), (slo.tpot, p.tpot.p90), (slo.e2el, p.e2el.p90))
    return any(limit is not None and (value is None or value > limit) for limit, value in pairs)
