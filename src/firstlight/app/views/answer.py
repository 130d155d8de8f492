"""An EngineAnswer for people: the refusal first, then bytes, backends and KV cache, then what it cannot know."""

import click

from firstlight.app.output import console, glyphs, show_findings
from firstlight.core.answer import Backend, EngineAnswer
from firstlight.core.units import format_seconds, gib


def show_answer(answer: EngineAnswer) -> None:
    marks = glyphs()
    seconds = f" in {format_seconds(answer.seconds)}" if answer.seconds is not None else ""
    mark = marks.fail if answer.refusal else marks.ok
    click.echo(f"{mark} {answer.engine} {answer.version or answer.build or ''} {'refuses' if answer.refusal else 'answers'}{seconds}")
    show_findings(answer.findings)
    _memory(answer)
    _backends(answer.backends)
    _settings(answer)
    if answer.cannot_know:
        click.echo("\nnot known without the GPU:")
        for line in answer.cannot_know:
            click.echo(f"  {marks.note} {line}")


def _memory(answer: EngineAnswer) -> None:
    if answer.per_gpu is None:
        return
    from rich.table import Table

    budget = answer.per_gpu
    table = Table(box=None, pad_edge=False, header_style="bold", title="per GPU", title_justify="left")
    for name, justify in (("PART", "left"), ("GIB", "right"), ("RUNG", "left"), ("BECAUSE", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for name in ("total", "usable", "weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom"):
        figure = getattr(budget, name)
        shown = gib(figure.mid, digits=3).removesuffix(" GiB")
        table.add_row(name.replace("_", " "), shown, str(figure.rung) if figure.known else "", figure.because or "")
    click.echo("")
    console().print(table)
    if answer.kv_tokens is not None:
        blocks = f"{answer.num_gpu_blocks:,} blocks, " if answer.num_gpu_blocks is not None else ""
        requests = f", {answer.max_concurrency:.2f} requests of full length" if answer.max_concurrency is not None else ""
        click.echo(f"\nKV cache: {blocks}{answer.kv_tokens:,} tokens{requests}")


def _backends(backends: list[Backend]) -> None:
    if not backends:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="kernels", title_justify="left")
    for name in ("LAYER", "KV DTYPE", "CHOSEN", "REJECTED, IN THE ENGINE'S WORDS"):
        table.add_column(name, overflow="fold")
    for row in backends:
        why = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in row.rejected.items())
        table.add_row(row.layer, row.kv_cache_dtype or "", row.chosen or f"{glyphs().fail} none", why)
    click.echo("")
    console().print(table)


def _settings(answer: EngineAnswer) -> None:
    names = (
        "kv_cache_dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "runner",
        "cudagraph_mode",
        "quantization",
    )
    shown = [f"{name} {answer.config[name]}" for name in names if answer.config.get(name) is not None]
    if shown:
        click.echo("\nresolved: " + ", ".join(shown))
    if unknown := answer.config.get("unknown_flags"):
        click.echo(f"flags that the engine's parser does not know: {' '.join(unknown)}")
