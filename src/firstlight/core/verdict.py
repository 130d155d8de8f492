"""Whether an endpoint's answers make sense, and how fast they come."""

from typing import Any

from msgspec import Struct

from firstlight.core.figures import Figure


class CheckResult(Struct, frozen=True, kw_only=True):
    """accepted: failed, and accepted by name by the user. group: contract | coherence | reference | long-context | claims.

    for_time: left out, or in part, because the time budget was spent. needs_seconds: what is left would take about so long; None: unknown.
    """

    name: str
    passed: bool
    group: str = "contract"
    skipped: bool = False
    accepted: bool = False
    evidence: list[str] = []
    seconds: float = 0.0
    note: str | None = None
    for_time: bool = False
    needs_seconds: float | None = None


class Blame(Struct, frozen=True, kw_only=True):
    knob: str
    culprit: bool
    evidence: list[str] = []


class Verdict(Struct, frozen=True, kw_only=True):
    """passed: every check passed, was skipped, or was accepted by name.

    budget_needed: seconds of time budget that would be enough for what was left out for want of time; None: nothing was.
    """

    passed: bool
    endpoint: str
    model: str | None = None
    profile: str = "quick"
    checks: list[CheckResult] = []
    blame: list[Blame] | None = None
    sees: list[str] = []
    cannot_see: list[str] = []
    seconds: float = 0.0
    budget_needed: float | None = None


class Percentiles(Struct, frozen=True, kw_only=True):
    """Seconds."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None


class BenchPoint(Struct, frozen=True, kw_only=True):
    """One concurrency level. Rates in tokens per second. engine_tpot_p50: seconds by the engine's own clock, where it tells (llama.cpp).

    error: what most of the failed requests failed with.
    """

    concurrency: int
    requests: int
    failed: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2el: Percentiles
    tokens_per_second_total: float | None = None
    tokens_per_second_per_user: float | None = None
    goodput: float | None = None
    preemptions: int | None = None
    kv_cache_usage: float | None = None
    engine_tpot_p50: float | None = None
    error: str | None = None


class Promise(Struct, frozen=True, kw_only=True):
    """What the plan said next to what came."""

    name: str
    unit: str
    promised: Figure
    measured: Figure
    because: str | None = None


class BenchReport(Struct, frozen=True, kw_only=True):
    """forced: measured although coherence had not passed. client_cost: the client's own share of the time, measured."""

    endpoint: str
    model: str | None
    tool: str
    profile: str
    points: list[BenchPoint] = []
    promises: list[Promise] = []
    client_cost: dict[str, Any] = {}
    forced: bool = False
    verdict_passed: bool | None = None
    headline: str | None = None
    seconds: float = 0.0
