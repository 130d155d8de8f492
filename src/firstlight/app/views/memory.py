"""A plan's memory for a person: one bar a rank, and what each of its parts is."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from firstlight.app.output import glyphs
from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import Candidate, MemoryBudget
from firstlight.core.units import GIB

BAR_WIDTH = 72
NOT_A_PART = frozenset({"llama.cpp reserves no graph memory", "counted in the reserve", "no CUDA graphs on CPU"})


class Part(NamedTuple):
    """One segment of the bar. unicode, ascii: its fill, told apart without colour."""

    name: str
    label: str
    unicode: str
    ascii: str
    style: str


PARTS = (
    Part("weights", "weights", "█", "#", "blue"),
    Part("activation_peak", "activation peak", "▓", "%", "magenta"),
    Part("cuda_graphs", "CUDA graphs", "▚", "=", "yellow"),
    Part("non_torch", "outside torch", "▞", "+", "cyan"),
    Part("kv_pool", "KV cache", "▒", "k", "green"),
    Part("headroom", "not used", "·", ".", "bright_black"),
)


def show_memory(out: Console, best: Candidate) -> None:
    """One bar for ranks that are alike; one per pipeline stage where they differ."""
    if best.per_gpu is None:
        return
    budgets = [(f"GPU {_span(r.ranks)}", r.per_gpu) for r in best.ranks] or [(_ranks_label(best), best.per_gpu)]
    out.print()
    for label, budget in budgets:
        out.print(_bar_title(label, budget))
        out.print(_bar(budget, width=min(BAR_WIDTH, max(20, out.width - 4))))
    for line in _legend(best.per_gpu):
        out.print(line)


def _ranks_label(best: Candidate) -> str:
    if best.engine.name == "llamacpp" or (best.per_gpu and best.per_gpu.cuda_graphs.because == "no CUDA graphs on CPU"):
        return "memory"
    world = best.tensor_parallel_size * best.pipeline_parallel_size * best.data_parallel_size
    return f"each of {world} GPUs" if world > 1 else "GPU 0"


def _bar_title(label: str, budget: MemoryBudget) -> str:
    usable = f", {_gib(budget.usable)} usable" if budget.usable.known else ""
    return f"  {label}: {_gib(budget.total)}{usable}"


def _bar(budget: MemoryBudget, *, width: int) -> Text:
    """Segments in proportion to the total; anything above 0 gets at least a cell; what does not fit runs past the edge."""
    total = float(budget.total.mid or budget.usable.mid or 1)
    plain = not glyphs().full.startswith("█")
    bar = Text("  ")
    for part in PARTS:
        value = max(float(getattr(budget, part.name).mid or 0), 0.0)
        cells = max(round(value / total * width), 1 if value > 0.001 * total else 0)
        bar.append((part.ascii if plain else part.unicode) * min(cells, 2 * width), style=part.style)
    return bar


def _legend(budget: MemoryBudget) -> Iterator[Text]:
    """Each part with its figure, interval and why; a rung other than computed is named."""
    plain = not glyphs().full.startswith("█")
    for part in PARTS:
        figure: Figure = getattr(budget, part.name)
        if not figure.known or (figure.mid == 0 and figure.because in NOT_A_PART):
            continue
        line = Text("  ")
        line.append((part.ascii if plain else part.unicode) * 2, style=part.style)
        label = "compute buffers" if part.name == "activation_peak" and "activations, the mask" in (figure.because or "") else part.label
        line.append(f" {label:<16}{_gib(figure):>11}  {_interval(figure):<17}")
        rung = "" if figure.rung is Rung.COMPUTED else f" ({figure.rung})"
        line.append(f"{figure.because or ''}{rung}", style="bright_black")
        yield line


def _span(ranks: Sequence[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _gib(figure: Figure) -> str:
    return f"{figure.mid / GIB:.2f} GiB" if figure.mid is not None else "unknown"


def _interval(figure: Figure) -> str:
    """`exact` where both ends are the same."""
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return "exact" if figure.known else ""
    return f"{figure.low / GIB:.2f} to {figure.high / GIB:.2f}"
