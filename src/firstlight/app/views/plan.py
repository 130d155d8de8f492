"""A plan for a person: verdict, memory per GPU, layouts, the command, what is uncertain."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from firstlight.app.looking import Looked
from firstlight.app.output import console, glyphs, show_findings
from firstlight.app.plan_options import Planning
from firstlight.app.views.layouts import describe_layout, show_layouts, token_count
from firstlight.app.views.memory import show_memory
from firstlight.core.figures import Rung
from firstlight.core.ids import slug
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, PlanSet, Predicted
from firstlight.core.units import GIB, format_seconds
from firstlight.engines.registry import find_adapter

ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}
VERDICTS = {
    "fits": ("ok", "green", "FITS"),
    "does-not-fit": ("fail", "red", "DOES NOT FIT"),
    "blocked": ("fail", "red", "BLOCKED"),
    "unknown": ("warn", "yellow", "NOT COMPUTED"),
}


def show_plan(found: PlanSet, looked: Looked, planning: Planning, *, show_all: bool = False) -> None:
    """Prints to stdout; findings come last, where the eye ends."""
    out = console()
    _headline(out, found)
    if found.best:
        show_memory(out, found.best)
    show_layouts(out, found, show_all=show_all)
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
        yield f"{best.max_model_len:,} tokens a request, {at_once} such requests at once; {token_count(best.kv_tokens)} tokens of KV cache"
        if found.verdict == "fits" and (best.max_model_len_that_fits.low or 0) > best.max_model_len:
            yield f"up to {int(best.max_model_len_that_fits.low or 0):,} tokens a request would fit"
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
