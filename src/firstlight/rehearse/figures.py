"""From what a start's log told to a budget of the rung `rehearsed`, directly or along a straight line over the number of layers."""

from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import Candidate, MemoryBudget
from firstlight.engines.vllm.rehearsal import Figures


def budget(figures: Figures, *, because: str, spread: float = 0.0) -> MemoryBudget:
    """spread: half the width of the interval as a share, for figures that were not measured at this depth."""

    def figure(value: int | None) -> Figure:
        if value is None:
            return Figure(rung=Rung.REHEARSED)
        low, high = round(value * (1 - spread)), round(value * (1 + spread))
        return Figure(low=min(low, high), mid=value, high=max(low, high), rung=Rung.REHEARSED, because=because)

    return MemoryBudget(
        total=figure(figures.total),
        usable=figure(figures.usable),
        weights=figure(figures.weights),
        activation_peak=figure(figures.activation_peak),
        cuda_graphs=figure(figures.cuda_graphs),
        non_torch=figure(figures.non_torch),
        kv_pool=figure(figures.kv_pool),
        headroom=figure(_headroom(figures)),
    )


def _headroom(f: Figures) -> int | None:
    parts = (f.weights, f.activation_peak, f.cuda_graphs, f.non_torch, f.kv_pool)
    if f.total is None or any(p is None for p in parts):
        return None
    return f.total - sum(p for p in parts if p is not None)


def extrapolate(figures: list[Figures], depths: tuple[int, int], layers: int, candidate: Candidate) -> Figures:
    """Weights and graphs grow by the same bytes with every layer; peak and non-torch memory do not depend on depth.

    The KV pool is what then remains of the usable memory, or what the plan pins; tokens follow from the plan's bytes per token.
    """
    shallow, deep = figures
    weights = _line(shallow.weights, deep.weights, depths, layers)
    graphs = _line(shallow.cuda_graphs, deep.cuda_graphs, depths, layers)
    peak, non_torch = _larger(shallow.activation_peak, deep.activation_peak), _larger(shallow.non_torch, deep.non_torch)
    usable = deep.usable
    pool = candidate.kv_cache_memory_bytes
    if pool is None and usable is not None and weights is not None and peak is not None:
        pool = max(0, usable - weights - peak - (non_torch or 0) - (graphs or 0))
    per_token = candidate.kv_bytes_per_token
    return Figures(
        total=deep.total,
        usable=usable,
        weights=weights,
        activation_peak=peak,
        non_torch=non_torch,
        cuda_graphs=graphs,
        kv_pool=pool,
        kv_tokens=pool // per_token if pool is not None and per_token else None,
    )


def _line(a: int | None, b: int | None, depths: tuple[int, int], layers: int) -> int | None:
    if a is None or b is None:
        return None
    slope = (b - a) / (depths[1] - depths[0])
    return max(0, round(b + slope * (layers - depths[1])))


def _larger(a: int | None, b: int | None) -> int | None:
    known = [v for v in (a, b) if v is not None]
    return max(known) if known else None
