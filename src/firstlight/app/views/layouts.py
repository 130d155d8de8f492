"""A plan's layouts for a person: the chosen one, its alternatives, and what was rejected with its reason."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from firstlight.app.output import glyphs
from firstlight.core.figures import Figure
from firstlight.core.plan import Candidate, PlanSet, Rejected
from firstlight.core.units import GIB

ROWS = 5
ORDER_OF_REASONS = ("tp-quant", "attn-backend", "kv-too", "no-memory", "mamba", "oom", "dcp", "constraint", "tp-heads", "dominated")


def show_layouts(out: Console, found: PlanSet, *, show_all: bool) -> None:
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
        chosen = found.verdict in ("fits", "unknown")
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
        token_count(c.kv_tokens),
        token_count(c.max_model_len_that_fits),
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


def token_count(figure: Figure) -> str:
    return f"{int(figure.mid):,}" if figure.mid is not None else "?"
