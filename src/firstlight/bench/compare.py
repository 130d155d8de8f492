"""Two reports side by side: what changed, by how much. Pure."""

from collections.abc import Callable

from msgspec import Struct

from firstlight.core.verdict import BenchPoint, BenchReport


class Change(Struct, frozen=True, kw_only=True):
    """One figure at one concurrency in report A and B. ratio: B / A. better: whether B is, None when equal or unknown."""

    concurrency: int
    figure: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None
    better: bool | None


class BenchComparison(Struct, frozen=True, kw_only=True):
    """differs: what makes the two hard to compare (profile, tool, model); an empty list is a fair comparison."""

    a: str
    b: str
    changes: list[Change]
    differs: list[str]


Reader = Callable[[BenchPoint], float | None]
FIGURES: tuple[tuple[str, str, bool, Reader], ...] = (
    ("tokens_per_second_total", "tok/s", True, lambda p: p.tokens_per_second_total),
    ("tokens_per_second_per_user", "tok/s", True, lambda p: p.tokens_per_second_per_user),
    ("ttft_p50", "s", False, lambda p: p.ttft.p50),
    ("ttft_p99", "s", False, lambda p: p.ttft.p99),
    ("tpot_p50", "s", False, lambda p: p.tpot.p50),
    ("e2el_p50", "s", False, lambda p: p.e2el.p50),
    ("goodput", "req/s", True, lambda p: p.goodput),
)
NOISE = 0.03
FEW = 5


def compare(a: BenchReport, b: BenchReport) -> BenchComparison:
    """Figures at the concurrencies that both have; a difference within 3 % is called neither better nor worse."""
    theirs = {p.concurrency: p for p in b.points}
    pairs = [(p, theirs[p.concurrency]) for p in a.points if p.concurrency in theirs]
    changes = [_change(x, y, *figure) for x, y in pairs for figure in FIGURES if figure[3](x) is not None or figure[3](y) is not None]
    return BenchComparison(a=_name(a), b=_name(b), changes=changes, differs=_differs(a, b))


def _change(x: BenchPoint, y: BenchPoint, name: str, unit: str, more_is_better: bool, read: Reader) -> Change:
    a, b = read(x), read(y)
    ratio = b / a if a and b is not None else None
    equal = ratio is None or abs(ratio - 1) <= NOISE
    better = None if equal or ratio is None else (ratio > 1) == more_is_better
    return Change(concurrency=x.concurrency, figure=name, unit=unit, a=a, b=b, ratio=ratio, better=better)


def _name(report: BenchReport) -> str:
    return f"{report.model or 'unknown'} at {report.endpoint} ({report.tool})"


def _differs(a: BenchReport, b: BenchReport) -> list[str]:
    pairs = (("model", a.model, b.model), ("profile", a.profile, b.profile), ("tool", a.tool, b.tool))
    found = [f"{name}: {x} and {y}" for name, x, y in pairs if x != y]
    theirs = {p.concurrency: p for p in b.points}
    both = [(p, theirs[p.concurrency]) for p in a.points if p.concurrency in theirs]
    found += [] if both else ["no number of users was measured in both"]
    few = [f"{x.concurrency} users: {x.requests} and {y.requests} requests" for x, y in both if min(x.requests, y.requests) < FEW]
    found += [f"{'; '.join(few)}: so few differ by chance"] if few else []
    for name, r in (("A", a), ("B", b)):
        found += [f"{name}, {p.concurrency} users: {p.failed} of {p.requests} requests failed" for p in r.points if p.failed]
    return found + [f"{name} was measured without passed coherence" for name, r in (("A", a), ("B", b)) if r.forced]
