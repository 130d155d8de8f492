"""A plan for a person: verdict, memory per GPU, layouts, the command, what is uncertain."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from firstlight.app.looking import Looked
from firstlight.app.output import console, glyphs, show_findings
from firstlight.app.plan_options import Planning
from firstlight.core.figures import Figure, Rung
from firstlight.core.ids import slug
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, MemoryBudget, PlanSet, Predicted, Rejected
from firstlight.core.units import GIB, format_seconds
from firstlight.engines.registry import find_adapter

ROWS = 5
BAR_WIDTH = 72
ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}
VERDICTS = {"fits": ("ok", "green", "FITS"), "does-not-fit": ("fail", "red", "DOES NOT FIT"), "blocked": ("fail", "red", "BLOCKED")}
NOT_A_PART = frozenset({"llama.cpp reserves no graph memory", "counted in the reserve", "no CUDA graphs on CPU"})
ORDER_OF_REASONS = ("tp-quant", "attn-backend", "kv-too", "no-memory", "mamba", "oom", "dcp", "constraint", "tp-heads", "dominated")


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


def show_plan(found: PlanSet, looked: Looked, planning: Planning, *, show_all: bool = False) -> None:
    """Prints to stdout; findings come last, where the eye ends."""
    out = console()
    _headline(out, found)
    if found.best:
        _memory(out, found.best)
    _layouts(out, found, show_all=show_all)
    if found.best:
        _command(out, found.best, looked, planning)
        _uncertain(out, found.best)
    if found.findings:
        out.print()
        show_findings(found.findings)


def _headline(out: Console, found: PlanSet) -> None:
    glyph, style, word = VERDICTS[found.verdict]
    best = found.best
    title = Text(f"{getattr(glyphs(), glyph)} {word}", style=f"bold {style}")
    title.append(f"  {found.model} on {found.machine}", style="bold")
    if best:
        version = f" {best.engine.version}" if best.engine.version else ""
        title.append(f", {ENGINES.get(best.engine.name, best.engine.name)}{version}, {describe_layout(best)}")
    out.print(title)
    for line in _summary(found):
        out.print(f"  {line}")


def _summary(found: PlanSet) -> Iterator[str]:
    best = found.best
    if best is None:
        return
    if best.max_model_len and best.max_concurrency.known:
        at_once = f"{best.max_concurrency.mid or 0:.1f}"
        yield f"{best.max_model_len:,} tokens a request, {at_once} such requests at once; {_count(best.kv_tokens)} tokens of KV cache"
    if best.kv_bytes_per_token:
        dtype = "" if best.kv_cache_dtype in (None, "auto") else f" in {best.kv_cache_dtype}"
        where = "a token and GPU" if best.gpu_memory_utilization is not None else "a token"
        yield f"{best.kv_bytes_per_token:,} B of KV cache {where}{dtype}"
    if best.predicted:
        parts = list(_times(best.predicted))
        if parts:
            yield "; ".join(parts)


def _times(predicted: Predicted) -> Iterator[str]:
    speed, ready = predicted.decode_tokens_per_second_upper_bound, predicted.ready_seconds
    if speed.high:
        likely = "" if speed.low is None or speed.mid is None else f", {speed.low:.0f} to {speed.mid:.0f} likely"
        yield f"one user: at most {speed.high:.0f} tokens/s{likely}"
    if ready.known:
        yield f"ready in {format_seconds(ready.low)} to {format_seconds(ready.high)}"


def _memory(out: Console, best: Candidate) -> None:
    """One bar for ranks that are alike; one per pipeline stage where they differ."""
    if best.per_gpu is None:
        return
    budgets = [(f"GPU {_span(r.ranks)}", r.per_gpu) for r in best.ranks] or [(_ranks_label(best), best.per_gpu)]
    out.print()
    for label, budget in budgets:
        out.print(_bar_title(label, budget))
        out.print(_bar(budget))
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


def _bar(budget: MemoryBudget) -> Text:
    """Segments in proportion to the total; anything above 0 gets at least a cell; what does not fit runs past the edge."""
    total = float(budget.total.mid or budget.usable.mid or 1)
    plain = not glyphs().full.startswith("█")
    bar = Text("  ")
    for part in PARTS:
        value = max(float(getattr(budget, part.name).mid or 0), 0.0)
        cells = max(round(value / total * BAR_WIDTH), 1 if value > 0.001 * total else 0)
        bar.append((part.ascii if plain else part.unicode) * min(cells, 2 * BAR_WIDTH), style=part.style)
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


def _layouts(out: Console, found: PlanSet, *, show_all: bool) -> None:
    """The chosen layout, its alternatives, and what was rejected, five rows unless all are asked for."""
    rows = list(_rows(found))
    rows = rows if show_all else rows[:ROWS]
    if len(rows) < 2 and not found.rejected:
        return
    head = ("", "LAYOUT", "GPUS", "KV/GPU", "TOKENS", "LONGEST", "TOK/S <=", "WHY")
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head) - 1)]
    out.print()
    out.print(Text("  " + _columns(head, widths), style="bold"))
    for row in rows:
        style = "" if row[0] == glyphs().arrow else "bright_black" if row[0] == glyphs().fail else "default"
        out.print(Text("  " + _columns(row, widths), style=style))
    hidden = len(list(_rows(found))) - len(rows)
    if hidden:
        out.print(Text(f"  {hidden} more: --all", style="bright_black"))


def _rows(found: PlanSet) -> Iterator[tuple[str, ...]]:
    marks = glyphs()
    if found.best:
        chosen = found.verdict == "fits"
        why = (found.best.because or [""])[0] if chosen else _first_reason(found)
        yield _row(marks.arrow if chosen else marks.fail, found.best, why)
    for candidate in found.alternatives:
        yield _row(marks.ok, candidate, _compared(candidate, found.best))
    for rejected in sorted(found.rejected, key=_interest):
        if found.best is None or rejected.layout != describe_layout(found.best) or found.verdict == "fits":
            yield (marks.fail, rejected.layout, "", "", "", "", "", f"{rejected.code}: {rejected.because}")


def _row(mark: str, c: Candidate, why: str) -> tuple[str, ...]:
    world = c.tensor_parallel_size * c.pipeline_parallel_size * c.data_parallel_size
    speed = c.predicted.decode_tokens_per_second_upper_bound if c.predicted else Figure()
    pool = c.per_gpu.kv_pool if c.per_gpu else Figure()
    return (
        mark,
        describe_layout(c),
        str(world),
        f"{(pool.mid or 0) / GIB:.1f} GiB" if pool.known else "?",
        _count(c.kv_tokens),
        _count(c.max_model_len_that_fits),
        f"{speed.high:.0f}" if speed.high else "?",
        why,
    )


def _compared(candidate: Candidate, best: Candidate | None) -> str:
    """What an alternative gives and costs next to the chosen one."""
    if best is None or best.predicted is None or candidate.predicted is None:
        return "fits"
    a, b = candidate.predicted.decode_tokens_per_second_upper_bound.high, best.predicted.decode_tokens_per_second_upper_bound.high
    x, y = candidate.kv_tokens.mid, best.kv_tokens.mid
    parts: list[str] = []
    if x and y and abs(x / y - 1) > 0.02:
        parts.append(f"{x / y:.1f} x the tokens" if x > y else f"{100 * x / y:.0f} % of the tokens")
    if a and b and abs(a / b - 1) > 0.02:
        parts.append(f"{100 * a / b:.0f} % of the speed")
    if candidate.enable_expert_parallel and not best.enable_expert_parallel:
        parts.append("whole experts per GPU")
    return ", ".join(parts) or "about the same"


def _first_reason(found: PlanSet) -> str:
    return next((r.because for r in found.rejected if found.best and r.layout == describe_layout(found.best)), found.verdict)


def _interest(rejected: Rejected) -> int:
    """Reasons that teach something before those that are arithmetic."""
    return next((i for i, code in enumerate(ORDER_OF_REASONS) if rejected.code.startswith(code)), len(ORDER_OF_REASONS))


def _columns(row: Sequence[str], widths: Sequence[int]) -> str:
    """Text left, numbers right, the last column as long as it is."""
    cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False))]
    return "  ".join([*cells, row[-1]]).rstrip()


def _command(out: Console, best: Candidate, looked: Looked, planning: Planning) -> None:
    out.print()
    out.print(
        Text("  command", style="bold") + Text(f"  (yours: {shlex.join(planning.intent.extra_args)})" if planning.intent.extra_args else "")
    )
    for line in command_lines(best, looked, planning):
        out.print(Text(f"    {line}"), soft_wrap=True)
    if best.overlay:
        out.print(Text(f"    on an overlay of the checkpoint: {best.overlay.because}", style="yellow"), soft_wrap=True)


def command_lines(best: Candidate, looked: Looked, planning: Planning) -> list[str]:
    """The engine's command as the adapter would start it, a flag a line."""
    adapter = find_adapter(best.engine.name)
    binary = "vllm" if best.engine.name == "vllm" else "llama-server"
    install = looked.install or EngineInstall(engine=best.engine.name, version=best.engine.version, binary=binary)
    checkpoint = looked.checkpoint
    spec = adapter.launch(
        candidate=best,
        checkpoint=checkpoint,
        intent=planning.intent,
        install=install,
        model_path=checkpoint.path or checkpoint.ref,
        served_name=planning.intent.name or checkpoint.name or slug(checkpoint.ref),
        port=planning.intent.port or 8000,
    )
    env = [f"{k}={shlex.quote(v)}" for k, v in sorted(spec.env.items())]
    return _continued([*env, *_grouped(spec.argv)])


def _grouped(argv: Iterable[str]) -> list[str]:
    """The program with its first words, then each flag with its value."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") or (word.startswith("-") and not word[1:2].isdigit() and groups[0]):
            groups.append([])
        groups[-1].append(word)
    return [shlex.join(g) for g in groups if g]


def _continued(words: Sequence[str]) -> list[str]:
    """Packed into lines of at most 100 characters, all but the last with a backslash."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 98:
            lines.append("  " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip() if len(lines) == 1 else f"{lines[-1]} {word}"
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _uncertain(out: Console, best: Candidate) -> None:
    """What this rung does not know for sure, and which rung would settle it."""
    lines = list(_doubts(best))
    if lines:
        out.print()
        out.print(Text("  uncertain", style="bold"))
        for line in lines:
            out.print(Text(f"    {line}"), soft_wrap=True)


def _doubts(best: Candidate) -> Iterator[str]:
    budget, arrow = best.per_gpu, glyphs().arrow
    if budget is None or best.engine.name != "vllm" or budget.weights.rung is not Rung.COMPUTED:
        return
    pool = budget.kv_pool
    if pool.low is not None and pool.high is not None and pool.low != pool.high:
        yield f"KV cache {pool.low / GIB:.1f} to {pool.high / GIB:.1f} GiB {arrow} `firstlight rehearse` measures it (1 min on the GPUs)"
    if best.gpu_memory_utilization is not None:
        yield f"weights within 1 % {arrow} `firstlight ask` builds the engine's own model class (10 s, no GPU)"
    if budget.cuda_graphs.mid:
        yield f"CUDA graphs: the engine's own estimate is off by a lot {arrow} --kv-cache-memory-bytes takes it out of the sum"
    yield from best.because[1:]


def describe_layout(c: Candidate) -> str:
    """`tp8 dcp8 ep kv fp8`; `cpu` without GPUs."""
    if c.engine.name == "llamacpp":
        return f"{c.max_num_seqs} x {c.max_model_len:,} tokens" if c.max_model_len else "no context"
    if "VLLM_CPU_KVCACHE_SPACE" in c.env:
        return "cpu"
    parts = [f"tp{c.tensor_parallel_size}"]
    for value, name in ((c.pipeline_parallel_size, "pp"), (c.data_parallel_size, "dp"), (c.decode_context_parallel_size, "dcp")):
        parts += [f"{name}{value}"] if value > 1 else []
    parts += ["ep"] if c.enable_expert_parallel else []
    parts += [f"{c.nodes} nodes"] if c.nodes > 1 else []
    parts += [f"kv {c.kv_cache_dtype}"] if c.kv_cache_dtype not in (None, "auto") else []
    return " ".join(parts)


def _span(ranks: Sequence[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _gib(figure: Figure) -> str:
    return f"{figure.mid / GIB:.2f} GiB" if figure.mid is not None else "unknown"


def _interval(figure: Figure) -> str:
    """`exact` where both ends are the same."""
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return "exact" if figure.known else ""
    return f"{figure.low / GIB:.2f} to {figure.high / GIB:.2f}"


def _count(figure: Figure) -> str:
    return f"{int(figure.mid):,}" if figure.mid is not None else "?"
