"""Attention: grouped queries, multi-head latent attention, gated delta networks, Kimi delta attention."""

from collections.abc import Sequence

from firstlight.catalog.architectures import Architecture
from firstlight.inspect.derive.parts import Parts, Sizes
from firstlight.inspect.kv import head_shape
from firstlight.inspect.layers import layer_kinds


def grouped_queries(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int], *, module: str = "self_attn") -> None:
    """q, k, v, o and what the family adds; layers whose heads differ (global and local attention) become parts of their own."""
    kinds = layer_kinds(c.config) or []
    shapes: dict[tuple[int, int, int, str], list[int]] = {}
    for layer in layers:
        kind = kinds[layer] if layer < len(kinds) else "full"
        shape = head_shape(kind if kind in ("full", "sliding-window") else "full", layer, c.config)
        if shape is not None:
            shapes.setdefault((*shape, kind), []).append(layer)
    for (kv_heads, k, v, kind), members in shapes.items():
        _one_shape(parts, f"{base}.{module}", arch, c, members, kv_heads, k, v, kind)


def _one_shape(
    parts: Parts, name: str, arch: Architecture, c: Sizes, layers: Sequence[int], kv_heads: int, k: int, v: int, kind: str
) -> None:
    heads = c.get("swa_num_attention_heads", default=c("num_attention_heads")) if kind == "sliding-window" else c("num_attention_heads")
    bias = arch.bias == "always" or (arch.bias == "config" and bool(c.config.get("attention_bias")))
    gated = 2 if c.config.get("attn_output_gate") or arch.family == "qwen3-next" else 1
    parts.linear(f"{name}.q_proj", heads * k * gated, c.hidden, "attention", layers, bias=bias)
    parts.linear(f"{name}.k_proj", kv_heads * k, c.hidden, "attention", layers, bias=bias)
    if not (kind == "full" and c.config.get("attention_k_eq_v")):
        parts.linear(f"{name}.v_proj", kv_heads * v, c.hidden, "attention", layers, bias=bias)
    parts.linear(f"{name}.o_proj", c.hidden, heads * v, "attention", layers, bias=arch.output_bias)
    _extras(parts, name, arch, c, layers, heads, kv_heads, k, kind)


def _extras(
    parts: Parts, name: str, arch: Architecture, c: Sizes, layers: Sequence[int], heads: int, kv_heads: int, k: int, kind: str
) -> None:
    norm = arch.qk_norm if arch.qk_norm != "config" else ("head" if c.config.get("use_qk_norm") else None)
    if norm:
        parts.plain(f"{name}.q_norm", [k if norm == "head" else heads * k], "norm", layers)
        parts.plain(f"{name}.k_norm", [k if norm == "head" else kv_heads * k], "norm", layers)
    if arch.sinks and (arch.sinks == "sinks" or kind == "sliding-window" or c.config.get("add_full_attention_sink_bias")):
        parts.plain(f"{name}.{arch.sinks}", [heads], "attention", layers, leaf="")
    if arch.head_gate:
        parts.linear(f"{name}.g_proj", heads, c.hidden, "attention", layers)
    if arch.block_index:
        _block_index(parts, name, c, layers)


def _block_index(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    """MiniMax-M3: queries and one key that choose the blocks to attend to."""
    sparse = c.config.get("sparse_attention_config") or {}
    flags = sparse.get("sparse_attention_freq") or []
    chosen = [i for i in layers if i < len(flags) and flags[i]]
    width, heads = int(sparse.get("sparse_index_dim") or 128), int(sparse.get("sparse_num_index_heads") or 1)
    parts.linear(f"{name}.index_q_proj", heads * width, c.hidden, "indexer", chosen)
    parts.linear(f"{name}.index_k_proj", width, c.hidden, "indexer", chosen)
    parts.plain(f"{name}.index_q_norm", [width], "indexer", chosen)
    parts.plain(f"{name}.index_k_norm", [width], "indexer", chosen)


def latent(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int], indexed: Sequence[int] = ()) -> None:
    """Multi-head latent attention as DeepSeek V2 and later write it."""
    name, heads = f"{base}.self_attn", c("num_attention_heads")
    nope, rope, rank, v = c("qk_nope_head_dim"), c("qk_rope_head_dim"), c("kv_lora_rank"), c("v_head_dim")
    q_rank = c.get("q_lora_rank")
    if q_rank:
        parts.linear(f"{name}.q_a_proj", q_rank, c.hidden, "attention", layers)
        parts.plain(f"{name}.q_a_layernorm", [q_rank], "norm", layers)
        parts.linear(f"{name}.q_b_proj", heads * (nope + rope), q_rank, "attention", layers)
    else:
        parts.linear(f"{name}.q_proj", heads * (nope + rope), c.hidden, "attention", layers)
    parts.linear(f"{name}.kv_a_proj_with_mqa", rank + rope, c.hidden, "attention", layers)
    parts.plain(f"{name}.kv_a_layernorm", [rank], "norm", layers)
    parts.linear(f"{name}.kv_b_proj", heads * (nope + v), rank, "attention", layers)
    parts.linear(f"{name}.o_proj", c.hidden, heads * v, "attention", layers)
    if arch.indexer:
        _indexer(parts, f"{name}.indexer", c, indexed, q_rank)


def _indexer(parts: Parts, name: str, c: Sizes, layers: Sequence[int], q_rank: int) -> None:
    heads, width = c("index_n_heads"), c("index_head_dim")
    parts.linear(f"{name}.wq_b", heads * width, q_rank, "indexer", layers)
    parts.linear(f"{name}.wk", width, c.hidden, "indexer", layers)
    parts.plain(f"{name}.k_norm", [width], "indexer", layers)
    parts.plain(f"{name}.k_norm", [width], "indexer", layers, leaf="bias")
    parts.plain(f"{name}.weights_proj", [heads, c.hidden], "indexer", layers)


def gated_delta(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int]) -> None:
    """Qwen3-Next and later: linear attention with a gate."""
    name = f"{base}.linear_attn"
    k_heads, v_heads = c("linear_num_key_heads"), c("linear_num_value_heads")
    keys, values = k_heads * c("linear_key_head_dim"), v_heads * c("linear_value_head_dim")
    mixed = 2 * keys + values
    if arch.joined_projections:
        parts.linear(f"{name}.in_proj_qkvz", mixed + values, c.hidden, "attention", layers)
        parts.linear(f"{name}.in_proj_ba", 2 * v_heads, c.hidden, "attention", layers)
    else:
        parts.linear(f"{name}.in_proj_qkv", mixed, c.hidden, "attention", layers)
        parts.linear(f"{name}.in_proj_z", values, c.hidden, "attention", layers)
        for one in ("in_proj_a", "in_proj_b"):
            parts.plain(f"{name}.{one}", [v_heads, c.hidden], "attention", layers)
    parts.plain(f"{name}.conv1d", [mixed, 1, c("linear_conv_kernel_dim")], "attention", layers)
    parts.plain(f"{name}.A_log", [v_heads], "attention", layers, leaf="")
    parts.plain(f"{name}.dt_bias", [v_heads], "attention", layers, leaf="")
    parts.plain(f"{name}.norm", [c("linear_value_head_dim")], "norm", layers)
    parts.linear(f"{name}.out_proj", c.hidden, values, "attention", layers)


def kimi_delta(parts: Parts, base: str, c: Sizes, layers: Sequence[int]) -> None:
    """Kimi Linear and K3: three short convolutions, a low-rank forget gate, a full output gate."""
    name, linear = f"{base}.self_attn", Sizes(c.config.get("linear_attn_config") or {})
    heads, width, kernel = linear("num_heads"), linear("head_dim"), linear("short_conv_kernel_size")
    inner = heads * width
    for one in ("q", "k", "v"):
        parts.linear(f"{name}.{one}_proj", inner, c.hidden, "attention", layers)
        parts.plain(f"{name}.{one}_conv1d", [inner, 1, kernel], "attention", layers)
    parts.linear(f"{name}.f_a_proj", width, c.hidden, "attention", layers)
    parts.linear(f"{name}.f_b_proj", inner, width, "attention", layers)
    parts.linear(f"{name}.b_proj", heads, c.hidden, "attention", layers)
    if linear.config.get("use_full_rank_gate"):
        parts.linear(f"{name}.g_proj", inner, c.hidden, "attention", layers)
    else:
        parts.linear(f"{name}.g_a_proj", width, c.hidden, "attention", layers)
        parts.linear(f"{name}.g_b_proj", inner, width, "attention", layers)
    parts.plain(f"{name}.A_log", [heads], "attention", layers, leaf="", dtype="F32")
    parts.plain(f"{name}.dt_bias", [inner], "attention", layers, leaf="", dtype="F32")
    parts.plain(f"{name}.o_norm", [width], "norm", layers)
    parts.linear(f"{name}.o_proj", c.hidden, inner, "attention", layers)
