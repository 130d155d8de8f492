"""The page that `firstlight inspect` prints: what the model is, where its bytes are, what a token costs, what is wrong."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click

from firstlight.app.output import Glyphs, glyphs, show_findings
from firstlight.core.checkpoint import Checkpoint, KvCacheGroup
from firstlight.core.units import format_bytes

BAR = 32
LABEL = 14
_ATTENTION = {"mla": "MLA", "sparse-mla": "sparse MLA", "gqa": "GQA", "mha": "MHA", "mqa": "MQA", "hybrid": "hybrid"}
_ROLES = {
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "dense_mlp": "dense MLP",
    "lm_head": "LM head",
    "mtp": "MTP",
}


def show_checkpoint(checkpoint: Checkpoint) -> None:
    """Prints the page to stdout."""
    marks = glyphs()
    click.secho(_title(checkpoint), bold=True)
    for label, text in _facts(checkpoint):
        click.echo(f"  {label:<{LABEL}}{text}")
    lines = list(_bars(checkpoint, marks))
    if lines:
        click.echo()
    for name, bar, rest in lines:
        click.echo(f"  {name:<{LABEL + 2}}" + click.style(bar, fg="cyan") + rest)
    kv = list(_kv_lines(checkpoint))
    if kv:
        click.echo()
    for label, text in kv:
        click.echo(f"  {label:<{LABEL}}{text}")
    click.echo()
    if checkpoint.findings:
        show_findings(checkpoint.findings)
    else:
        click.secho(f"{marks.ok} nothing wrong found", fg="green")


@contextmanager
def content_progress() -> Iterator[Callable[[int, int], None]]:
    """A line on stderr that says how far reading has come: in place on a terminal, every tenth otherwise."""
    live = sys.stderr.isatty()
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        step = done * (100 if live else 10) // (total or 1)
        if step == shown:
            return
        shown = step
        start = "\r" if live else ""
        click.echo(f"{start}sha256: {format_bytes(done)} of {format_bytes(total)} ({done / (total or 1):.0%})", nl=not live, err=True)

    try:
        yield progress
    finally:
        if live and shown >= 0:
            click.echo(err=True)


def _title(c: Checkpoint) -> str:
    parts = [c.name or c.ref, c.format]
    if c.tensor_count and c.shards and c.format != "config-only":
        parts.append(f"{c.shards:,} file{'s' * (c.shards != 1)}, {c.tensor_count:,} tensors")
    if c.tensor_bytes:
        derived = " by its config" if c.format == "config-only" else ""
        parts.append(format_bytes(c.tensor_bytes) + derived)
    if c.revision:
        parts.append(f"revision {c.revision[:12]}")
    return "  ".join(parts)


def _facts(c: Checkpoint) -> Iterator[tuple[str, str]]:
    if c.architectures or c.model_type:
        kind = f" ({c.model_type})" if c.model_type and c.architectures else c.model_type or ""
        yield "architecture", ", ".join(c.architectures) + kind
    yield "shape", _shape(c)
    if c.moe:
        yield "experts", _experts(c)
    if c.parameters.total:
        yield "parameters", _parameters(c)
    yield "quantization", _quantization(c)
    if c.modalities != ["text"]:
        yield "takes", ", ".join(c.modalities)
    yield "chat", _chat(c)
    if c.license:
        yield "license", c.license


def _shape(c: Checkpoint) -> str:
    parts = [
        f"{c.num_hidden_layers} layer{'s' * (c.num_hidden_layers != 1)}" if c.num_hidden_layers else None,
        f"hidden {c.hidden_size:,}" if c.hidden_size else None,
        f"{_ATTENTION.get(c.attention, c.attention)} attention" if c.attention else None,
        f"context {c.max_position_embeddings:,}" if c.max_position_embeddings else None,
        f"vocabulary {c.vocab_size:,}" if c.vocab_size else None,
    ]
    return ", ".join(p for p in parts if p) or "unknown"


def _experts(c: Checkpoint) -> str:
    assert c.moe is not None
    text = f"{c.moe.num_experts} routed"
    text += f", {c.moe.num_experts_per_tok} a token" if c.moe.num_experts_per_tok else ""
    text += f", {c.moe.shared} shared" if c.moe.shared else ""
    return text + (f", the first {c.moe.first_dense_layers} layer(s) dense" if c.moe.first_dense_layers else "")


def _parameters(c: Checkpoint) -> str:
    total, active = c.parameters.total, c.parameters.active
    text = _count(total)
    return f"{text}, {_count(active)} active a token" if active and active != total else text


def _count(n: int | None) -> str:
    if n is None:
        return "unknown"
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:,}"


def _quantization(c: Checkpoint) -> str:
    q = c.quantization
    if q is None:
        kinds = [d for d in c.bytes_by_dtype if d.startswith(("BF", "F"))]
        return f"none ({', '.join(kinds[:2])})" if kinds else "none"
    text = f"{q.format or 'unknown format'} by {q.method}"
    text += f", groups of {q.group_size}" if isinstance(q.group_size, int) else ""
    text += f", blocks of {' x '.join(map(str, q.group_size))}" if isinstance(q.group_size, list) else ""
    text += f", activations {q.activation}" if q.activation and q.activation != "none" else ""
    text += f", {len(q.ignore):,} name(s) left out" if q.ignore else ""
    return text + (f", {q.producer}" if q.producer else "")


def _chat(c: Checkpoint) -> str:
    tokenizer = f"tokenizer {c.tokenizer.class_ or ''}".strip() if c.tokenizer else "no tokenizer"
    if not c.chat_template or not c.chat_template.present:
        return f"{tokenizer}, no chat template"
    extras = [w for w, has in (("tools", c.chat_template.tools), ("reasoning", c.chat_template.reasoning)) if has]
    return f"{tokenizer}, template with {' and '.join(extras)}" if extras else f"{tokenizer}, template"


def _bars(c: Checkpoint, marks: Glyphs) -> Iterator[tuple[str, str, str]]:
    """One bar a role, longest first."""
    total = sum(c.bytes_by_role.values())
    for role, size in c.bytes_by_role.items():
        share = size / total if total else 0
        full = round(share * BAR)
        bar = marks.full * full + (marks.half if not full and size else "")
        yield _ROLES.get(role, role), f"{bar:<{BAR}}", f" {format_bytes(size):>11} {share:7.2%}"


def _kv_lines(c: Checkpoint) -> Iterator[tuple[str, str]]:
    label = "KV cache"
    for group in c.kv_cache_groups:
        yield label, _group_line(group)
        label = ""
    if any(v for v in c.kv_bytes_per_token.values()):
        known = [f"{size:,} B ({dtype})" for dtype, size in c.kv_bytes_per_token.items() if size is not None]
        yield label, f"a token costs {', '.join(known)} in all layers that grow"
    if c.kv_cache_quantization:
        yield "", f"the checkpoint asks for {c.kv_cache_quantization.dtype}:"
        yield from (("", f"  {source}") for source in c.kv_cache_quantization.sources)


def _group_line(g: KvCacheGroup) -> str:
    text = f"{len(g.layers):>3} x {g.kind:<15}"
    if g.state_bytes_per_request is not None:
        return f"{text} {format_bytes(g.state_bytes_per_request)} a request and layer"
    sizes = ", ".join(f"{_number(v)} {k}" for k, v in _shown(g.bytes_per_token_per_layer.items()))
    window = f", the last {g.window:,} tokens" if g.window else ""
    heads = (
        f" ({g.kv_heads} KV heads of {g.head_dim})"
        if g.kv_heads and g.kind in ("full", "sliding-window", "chunked") and g.kv_heads > 1
        else ""
    )
    return f"{text} {sizes} B a token and layer{window}{heads}"


def _shown(sizes: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(k, v) for k, v in sizes if k in ("bf16", "fp8")]


def _number(v: float) -> str:
    return f"{v:,.0f}" if float(v).is_integer() else f"{v:,.2f}"
