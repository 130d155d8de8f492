"""Whole models: embeddings, the stack of layers, multi-token prediction, head."""

from collections.abc import Callable, Sequence

from firstlight.catalog.architectures import Architecture
from firstlight.inspect.derive import attention, feed_forward, vision
from firstlight.inspect.derive.deepseek_v4 import deepseek_v4
from firstlight.inspect.derive.nemotron import nemotron_h, nemotron_nas
from firstlight.inspect.derive.parts import Part, Parts, Sizes
from firstlight.inspect.kv import has_indexer
from firstlight.inspect.layers import layer_kinds


def layout(arch: Architecture, c: Sizes) -> list[Part]:
    """Every parameter of a published checkpoint of `arch`. Raises Missing when the config lacks a size."""
    parts = Parts()
    parts.plain(f"{arch.prefix}{arch.embed}", [c("vocab_size"), c.hidden], "embedding")
    _STACKS[arch.stack](parts, arch, c)
    parts.plain(f"{arch.prefix}{arch.norm}", [c.hidden], "norm")
    tied = c.config.get("tie_word_embeddings")
    if not (arch.tied_by_default if tied is None else tied):
        parts.linear(arch.head, c("vocab_size"), c.hidden, "lm_head")
    if arch.vision:
        vision.TOWERS[arch.vision](parts, c)
    return parts.listed


def _plain_stack(parts: Parts, arch: Architecture, c: Sizes) -> None:
    base = f"{arch.prefix}layers.{{layer}}"
    attention.grouped_queries(parts, base, arch, c, c.layers)
    _feed_forward(parts, base, arch, c, c.layers)
    _norms(parts, base, arch, c, c.layers)
    _mtp(parts, arch, c)


def _hybrid_stack(parts: Parts, arch: Architecture, c: Sizes) -> None:
    """Linear attention in most layers, full attention in some."""
    base = f"{arch.prefix}layers.{{layer}}"
    kinds = layer_kinds(c.config) or []
    attention.grouped_queries(parts, base, arch, c, [i for i, k in enumerate(kinds) if k == "full"])
    attention.gated_delta(parts, base, arch, c, [i for i, k in enumerate(kinds) if k == "linear"])
    _feed_forward(parts, base, arch, c, c.layers)
    _norms(parts, base, arch, c, c.layers)
    _mtp(parts, arch, c)


def _latent_stack(parts: Parts, arch: Architecture, c: Sizes) -> None:
    base = f"{arch.prefix}layers.{{layer}}"
    indexed = [i for i in c.layers if has_indexer(i, c.config)] if arch.indexer else []
    attention.latent(parts, base, arch, c, c.layers, indexed)
    _feed_forward(parts, base, arch, c, c.layers)
    _norms(parts, base, arch, c, c.layers)
    _mtp(parts, arch, c)


def _kimi_linear_stack(parts: Parts, arch: Architecture, c: Sizes) -> None:
    base = f"{arch.prefix}layers.{{layer}}"
    kinds = layer_kinds(c.config) or []
    full = [i for i, k in enumerate(kinds) if k == "full"]
    attention.latent(parts, base, arch, c, full)
    if c.config.get("mla_use_output_gate"):
        parts.linear(f"{base}.self_attn.g_proj", c("num_attention_heads") * c("v_head_dim"), c.hidden, "attention", full)
    attention.kimi_delta(parts, base, c, [i for i, k in enumerate(kinds) if k == "linear"])
    _feed_forward(parts, base, arch, c, c.layers)
    _norms(parts, base, arch, c, c.layers)
    if c.get("attn_res_block_size"):
        for one in ("self_attention_res", "mlp_res"):
            parts.plain(f"{base}.{one}_norm", [c.hidden], "norm", c.layers)
            parts.plain(f"{base}.{one}_proj", [1, c.hidden], "other", c.layers)


def _feed_forward(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int]) -> None:
    sparse = set(feed_forward.moe_layers(c))
    mixed = [i for i in layers if i in sparse]
    plain = list(layers) if arch.dense_beside_moe else [i for i in layers if i not in sparse]
    if plain:
        width = c.get(arch.dense_width, default=0) or c("intermediate_size")
        feed_forward.dense(parts, f"{base}.{arch.mlp}", c, width, plain)
    if mixed:
        feed_forward.mixture(parts, base, arch, c, mixed)
        for one in arch.extra_moe_norms:
            parts.plain(f"{base}.{one}", [c.hidden], "norm", mixed)
    if arch.family == "gemma4":
        parts.plain(f"{base}.layer_scalar", [1], "other", layers, leaf="")


def _norms(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int]) -> None:
    for one in arch.norms or ("input_layernorm", "post_attention_layernorm"):
        parts.plain(f"{base}.{one}", [c.hidden], "norm", layers)


def _mtp(parts: Parts, arch: Architecture, c: Sizes) -> None:
    """Draft layers that the checkpoint carries along."""
    count = c.get("num_nextn_predict_layers")
    if not arch.mtp or not count:
        return
    draft = Parts()
    _MTP[arch.mtp](draft, arch, c, count)
    parts.listed += [p._replace(role="mtp") for p in draft.listed]


def _mtp_deepseek(parts: Parts, arch: Architecture, c: Sizes, count: int) -> None:
    """Layers past the stack's end, each a whole one with its own embedding and head."""
    first = c("num_hidden_layers")
    layers = range(first, first + count)
    base = f"{arch.prefix}layers.{{layer}}"
    if arch.stack == "mla":
        attention.latent(parts, base, arch, c, layers, layers)
    else:
        attention.grouped_queries(parts, base, arch, c, layers)
    feed_forward.mixture(parts, base, arch, c, layers)
    _norms(parts, base, arch, c, layers)
    parts.plain(f"{base}.embed_tokens", [c("vocab_size"), c.hidden], "mtp", layers)
    parts.plain(f"{base}.eh_proj", [c.hidden, 2 * c.hidden], "mtp", layers)
    for one in ("enorm", "hnorm", "shared_head.norm"):
        parts.plain(f"{base}.{one}", [c.hidden], "mtp", layers)
    parts.plain(f"{base}.shared_head.head", [c("vocab_size"), c.hidden], "mtp", layers)


def _mtp_qwen(parts: Parts, arch: Architecture, c: Sizes, count: int) -> None:
    """`mtp.layers`, full attention each, no embedding of their own."""
    base, layers = "mtp.layers.{layer}", range(count)
    full = [i for i, k in enumerate(layer_kinds(c.config) or []) if k == "full"][:1]
    attention.grouped_queries(parts, base, arch, c, full)
    parts.listed = [p._replace(layers=tuple(layers)) for p in parts.listed]
    if feed_forward.moe_layers(c):
        feed_forward.mixture(parts, base, arch, c, layers)
    else:
        feed_forward.dense(parts, f"{base}.mlp", c, c("intermediate_size"), layers)
    _norms(parts, base, arch, c, layers)
    parts.plain("mtp.fc", [c.hidden, 2 * c.hidden], "mtp")
    for one in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        parts.plain(f"mtp.{one}", [c.hidden], "mtp")


def _mtp_mimo(parts: Parts, arch: Architecture, c: Sizes, count: int) -> None:
    base, layers = f"{arch.prefix}mtp_layers.{{layer}}", range(count)
    attention.grouped_queries(parts, base, arch, c, layers)
    feed_forward.dense(parts, f"{base}.mlp", c, c("intermediate_size"), layers)
    _norms(parts, base, arch, c, layers)
    parts.plain(f"{base}.input_proj", [c.hidden, 2 * c.hidden], "mtp", layers)
    for one in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        parts.plain(f"{base}.{one}", [c.hidden], "mtp", layers)


_MTP: dict[str, Callable[[Parts, Architecture, Sizes, int], None]] = {
    "deepseek": _mtp_deepseek,
    "qwen": _mtp_qwen,
    "mimo": _mtp_mimo,
}
_STACKS: dict[str, Callable[[Parts, Architecture, Sizes], None]] = {
    "gqa": _plain_stack,
    "mla": _latent_stack,
    "hybrid-gated-delta": _hybrid_stack,
    "kimi-linear": _kimi_linear_stack,
    "nemotron-h": nemotron_h,
    "nemotron-nas": nemotron_nas,
    "deepseek-v4": deepseek_v4,
}
