"""What a token, or a request, costs in KV cache: groups of layers that cache alike, in bytes per token and layer, by KV dtype.

Formulas as vLLM's KV cache specs have them (v1/kv_cache_interface.py and the models' own); a whole model, no tensor parallelism.
full: heads x (K + V width) x bytes. mla: (latent + rope) x bytes, once. sparse-mla fp8: 512 fp8 + 16 scale + 128 rope bytes = 656.
DeepSeek V4 packed: 448 fp8 + 128 rope + 8 scale bytes = 584 per compressed state. indexer: 128 fp8 + 4 scale bytes = 132.
nvfp4: half a byte a number and one fp8 scale a block of 16. per-token-head: one byte a number and 4 bytes of scale a head.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from firstlight.core.checkpoint import KvCacheGroup
from firstlight.inspect.config import integer
from firstlight.inspect.layers import layer_kinds
from firstlight.inspect.state import state_bytes

GROWING = frozenset(("full", "mla", "sparse-mla", "indexer"))
SPARSE_MLA_FP8, V4_PACKED = 656, 584
_NOT_CACHED_AS_MLA = frozenset(("minicpm3",))  # engines cache it as multi-head attention


def kv_cache_groups(config: Mapping[str, Any]) -> list[KvCacheGroup]:
    """Groups in the order of their first layer; empty when the config does not say enough."""
    kinds = layer_kinds(config)
    if kinds is None:
        return []
    if config.get("compress_ratios"):
        return _deepseek_v4(config, len(kinds))
    groups = []
    for kind in dict.fromkeys(kinds):
        layers = [i for i, k in enumerate(kinds) if k == kind]
        groups += _groups_of(kind, layers, config)
    return groups


def _groups_of(kind: str, layers: list[int], config: Mapping[str, Any]) -> list[KvCacheGroup]:
    if kind == "none":
        return []
    if kind in ("linear", "mamba"):
        return [KvCacheGroup(kind=kind, layers=layers, state_bytes_per_request=state_bytes(kind, config))]
    if kind == "shared":
        return [KvCacheGroup(kind=kind, layers=layers, bytes_per_token_per_layer={"bf16": 0, "fp8": 0})]
    if is_mla(config):
        return _mla(layers, config)
    return _heads(kind, layers, config)


def is_mla(config: Mapping[str, Any]) -> bool:
    return bool(integer(config, "kv_lora_rank")) and config.get("model_type") not in _NOT_CACHED_AS_MLA


def _mla(layers: list[int], config: Mapping[str, Any]) -> list[KvCacheGroup]:
    latent, rope = integer(config, "kv_lora_rank") or 0, integer(config, "qk_rope_head_dim") or 0
    width = latent + rope
    if not integer(config, "index_topk"):
        sizes: dict[str, float] = {"bf16": width * 2, "fp8": width}
        return [KvCacheGroup(kind="mla", layers=layers, bytes_per_token_per_layer=sizes, kv_heads=1, head_dim=width, head_dim_v=latent)]
    fp8 = latent + latent // 32 + rope * 2  # one fp32 scale a 128 numbers
    sizes = {"bf16": width * 2, "fp8": fp8, "fp8_ds_mla": fp8}
    sparse = KvCacheGroup(kind="sparse-mla", layers=layers, bytes_per_token_per_layer=sizes, kv_heads=1, head_dim=width, head_dim_v=latent)
    indexed = [i for i in layers if has_indexer(i, config)]
    return [sparse, _indexer(indexed, integer(config, "index_head_dim") or 128)]


def has_indexer(layer: int, config: Mapping[str, Any]) -> bool:
    """Some layers reuse the selection of an earlier one and keep no index keys (GLM-5.2)."""
    types = config.get("indexer_types")
    if isinstance(types, list) and layer < len(types):
        return bool(types[layer] != "shared")
    frequency, offset = integer(config, "index_topk_freq") or 1, integer(config, "index_skip_topk_offset") or 2
    return max(layer - offset + 1, 0) % frequency == 0


def _indexer(layers: list[int], width: int, *, ratio: int = 1) -> KvCacheGroup:
    size = _whole((width + width // 32) / ratio)
    return KvCacheGroup(kind="indexer", layers=layers, bytes_per_token_per_layer={"bf16": size, "fp8": size}, kv_heads=1, head_dim=width)


def _heads(kind: str, layers: list[int], config: Mapping[str, Any]) -> list[KvCacheGroup]:
    """Layers with K and V heads, split where a layer's shape differs (variable GQA, global and local head widths)."""
    by_shape: dict[tuple[int, int, int], list[int]] = {}
    for layer in layers:
        shape = head_shape(kind, layer, config)
        if shape is not None:
            by_shape.setdefault(shape, []).append(layer)
    window = integer(config, "attention_chunk_size") if kind == "chunked" else window_of(config) if kind == "sliding-window" else None
    groups = [
        KvCacheGroup(
            kind=kind,
            layers=members,
            bytes_per_token_per_layer=_head_bytes(heads, k, v),
            kv_heads=heads,
            head_dim=k,
            head_dim_v=v,
            window=window,
        )
        for (heads, k, v), members in by_shape.items()
    ]
    sparse = config.get("sparse_attention_config")
    if isinstance(sparse, dict) and sparse.get("use_sparse_attention"):
        groups.append(_block_index(layers, sparse))
    return groups


def _block_index(layers: list[int], sparse: Mapping[str, Any]) -> KvCacheGroup:
    """MiniMax-M3: one index key a token in the sparse layers, bf16 unless asked for fp8."""
    width = integer(sparse, "sparse_index_dim") or 128
    flags = sparse.get("sparse_attention_freq")
    chosen = [i for i in layers if not isinstance(flags, list) or (i < len(flags) and flags[i])]
    return KvCacheGroup(
        kind="indexer", layers=chosen, bytes_per_token_per_layer={"bf16": width * 2, "fp8": width * 2}, kv_heads=1, head_dim=width
    )


def _head_bytes(heads: int, k: int, v: int) -> dict[str, float]:
    sizes: dict[str, float] = {"bf16": heads * (k + v) * 2, "fp8": heads * (k + v)}
    if k % 16 == 0 and v % 16 == 0:
        sizes["nvfp4"] = heads * (k // 2 + k // 16 + v // 2 + v // 16)
    return sizes | {"int8_per_token_head": heads * (k + v + 8), "fp8_per_token_head": heads * (k + v + 8)}


def head_shape(kind: str, layer: int, config: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """(KV heads, K width, V width) of one layer."""
    heads = integer(config, "num_attention_heads")
    kv_heads = _at(config.get("num_key_value_heads"), layer) or _grouped(config, layer, heads) or heads
    hidden = integer(config, "hidden_size")
    k = _at(config.get("head_dim"), layer) or (hidden // heads if hidden and heads else None)
    v = integer(config, "v_head_dim") if "kv_lora_rank" not in config else None
    if kind == "sliding-window":
        kv_heads = integer(config, "swa_num_key_value_heads") or kv_heads
        k, v = integer(config, "swa_head_dim") or k, integer(config, "swa_v_head_dim") or v
    elif kind == "full":
        kv_heads = integer(config, "num_global_key_value_heads") or kv_heads
        k = integer(config, "global_head_dim") or k
    return (kv_heads, k, v or k) if kv_heads and k else None


def _at(value: Any, layer: int) -> int | None:
    if isinstance(value, list):
        value = value[layer] if layer < len(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _grouped(config: Mapping[str, Any], layer: int, heads: int | None) -> int | None:
    """Nemotron-NAS: each block says how many query heads share a KV head."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or layer >= len(blocks) or not heads:
        return None
    attention = blocks[layer].get("attention") if isinstance(blocks[layer], dict) else None
    per_group = integer(attention, "n_heads_in_group") if isinstance(attention, dict) else None
    return heads // per_group if per_group else None


def window_of(config: Mapping[str, Any]) -> int | None:
    return integer(config, "sliding_window", "sliding_window_size", "window_size")


def _deepseek_v4(config: Mapping[str, Any], layers: int) -> list[KvCacheGroup]:
    """Every layer keeps a short window; layers with a ratio keep one compressed state each `ratio` tokens and its partial sums."""
    width = integer(config, "head_dim") or 512
    index_width = integer(config, "index_head_dim") or 128
    ratios = [r for r in config["compress_ratios"] if isinstance(r, int)][:layers]
    window = window_of(config) or 128
    groups = [_window(list(range(len(ratios))), width, window)]
    for ratio in sorted(set(ratios) - {0, 1}):
        members = [i for i, r in enumerate(ratios) if r == ratio]
        sizes: dict[str, float] = {
            "bf16": _whole(width * 2 / ratio),
            "fp8": _whole(V4_PACKED / ratio),
            "fp8_ds_mla": _whole(V4_PACKED / ratio),
        }
        groups.append(KvCacheGroup(kind="sparse-mla", layers=members, bytes_per_token_per_layer=sizes, kv_heads=1, head_dim=width))
        overlap = 2 if ratio == 4 else 1
        groups.append(_partial_sums(members, width * overlap, ratio * overlap))
        if ratio == 4:
            groups += [_indexer(members, index_width, ratio=ratio), _partial_sums(members, index_width * overlap, ratio * overlap)]
    return groups


def _window(layers: list[int], width: int, window: int) -> KvCacheGroup:
    sizes: dict[str, float] = {"bf16": width * 2, "fp8": V4_PACKED, "fp8_ds_mla": V4_PACKED}
    return KvCacheGroup(kind="sliding-window", layers=layers, bytes_per_token_per_layer=sizes, kv_heads=1, head_dim=width, window=window)


def _partial_sums(layers: list[int], width: int, window: int) -> KvCacheGroup:
    """fp32 values and scores of the states that are not finished yet."""
    size = width * 2 * 4
    return KvCacheGroup(
        kind="sliding-window",
        layers=layers,
        bytes_per_token_per_layer={"bf16": size, "fp8": size},
        kv_heads=1,
        head_dim=width,
        window=window,
    )


def _whole(size: float) -> float:
    return int(size) if float(size).is_integer() else size


def kv_bytes_per_token(groups: Iterable[KvCacheGroup]) -> dict[str, int | None]:
    """Bytes a token costs in the layers that grow with every token; None where a group has no such dtype."""
    growing = [g for g in groups if g.kind in GROWING]
    if not growing:
        return {"bf16": None, "fp8": None}
    return {dtype: _total(growing, dtype) for dtype in ("bf16", "fp8")}


def _total(groups: list[KvCacheGroup], dtype: str) -> int | None:
    if any(dtype not in g.bytes_per_token_per_layer for g in groups):
        return None
    return round(sum(g.bytes_per_token_per_layer[dtype] * len(g.layers) for g in groups))


def attention_kind(config: Mapping[str, Any], groups: list[KvCacheGroup]) -> str | None:
    """mla | gqa | mha | mqa | sparse-mla | hybrid (attention beside linear or Mamba layers); None when unknown."""
    kinds = {g.kind for g in groups}
    if kinds & {"linear", "mamba"}:
        return "hybrid"
    if "sparse-mla" in kinds:
        return "sparse-mla"
    if "mla" in kinds:
        return "mla"
    heads = integer(config, "num_attention_heads")
    kv_heads = next((g.kv_heads for g in groups if g.kv_heads and g.kind != "indexer"), None)
    if heads is None or kv_heads is None:
        return None
    return "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
