"""Which kind of cache each layer has: full | sliding-window | chunked | linear | mamba | shared | none."""

from collections.abc import Mapping
from typing import Any

from firstlight.inspect.config import integer

_WORDS = {
    "full_attention": "full", "attention": "full", "global_attention": "full", "full": "full", "*": "full",
    "sliding_attention": "sliding-window", "local_attention": "sliding-window", "sliding": "sliding-window",
    "chunked_attention": "chunked", "linear_attention": "linear", "conv": "linear", "recurrent": "linear", "rglru": "linear",
    "mamba": "mamba", "mamba2": "mamba", "M": "mamba", "moe": "none", "mlp": "none", "-": "none", "E": "none",
}  # fmt: skip


def layer_kinds(config: Mapping[str, Any]) -> list[str] | None:
    """One word a layer, in layer order; None when the number of layers is unknown."""
    count = integer(config, "num_hidden_layers")
    if count is None:
        return None
    kinds = _listed(config) or _by_family(config, count)
    kinds = (kinds + ["full"] * count)[:count]
    shared = integer(config, "num_kv_shared_layers") or 0
    return kinds[: count - shared] + ["shared"] * min(shared, count) if shared else kinds


def _listed(config: Mapping[str, Any]) -> list[str] | None:
    """Families that say it layer by layer."""
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        value = config.get(key)
        if isinstance(value, (list, str)) and value:
            return [_WORDS.get(str(word), "full") for word in value]
    pattern = config.get("hybrid_layer_pattern")
    if isinstance(pattern, list) and pattern:
        return ["sliding-window" if flag else "full" for flag in pattern]
    return _kimi_linear(config) or _blocks(config)


def _kimi_linear(config: Mapping[str, Any]) -> list[str] | None:
    """Kimi Linear and K3 count their layers from 1."""
    linear = config.get("linear_attn_config")
    numbers = linear.get("kda_layers") if isinstance(linear, dict) else None
    if not isinstance(numbers, list):
        return None
    chosen = {n for n in numbers if isinstance(n, int)}
    return ["linear" if i + 1 in chosen else "full" for i in range(integer(config, "num_hidden_layers") or 0)]


def _blocks(config: Mapping[str, Any]) -> list[str] | None:
    """Nemotron-NAS: a block may have no attention at all."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list):
        return None
    attentions = [b.get("attention") if isinstance(b, dict) else None for b in blocks]
    return ["none" if isinstance(a, dict) and (a.get("no_op") or a.get("replace_with_linear")) else "full" for a in attentions]


def _by_family(config: Mapping[str, Any], count: int) -> list[str]:
    """Families that say it by a rule."""
    model = str(config.get("model_type") or "")
    interval = integer(config, "full_attention_interval")
    if interval:
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(count)]
    if integer(config, "attn_layer_period"):
        period, offset = integer(config, "attn_layer_period") or 1, integer(config, "attn_layer_offset") or 0
        return ["full" if i % period == offset else "mamba" for i in range(count)]
    if model.startswith("llama4"):
        return _llama4(config, count)
    if model.startswith(("mamba", "falcon_mamba")):
        return ["mamba"] * count
    return _sliding(config, count, model)


def _llama4(config: Mapping[str, Any], count: int) -> list[str]:
    """Three layers with rotary embedding and chunks, then one without either, unless the file says otherwise."""
    rope = config.get("no_rope_layers")
    flags = rope if isinstance(rope, list) and len(rope) == count else [int((i + 1) % 4 != 0) for i in range(count)]
    return ["chunked" if flag and integer(config, "attention_chunk_size") else "full" for flag in flags]


def _sliding(config: Mapping[str, Any], count: int, model: str) -> list[str]:
    if not integer(config, "sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * count
    pattern = integer(config, "sliding_window_pattern", "_sliding_window_pattern") or {
        "gemma2": 2,
        "gemma3": 6,
        "gemma3_text": 6,
        "cohere2": 4,
    }.get(model)
    if pattern:
        return ["full" if (i + 1) % pattern == 0 else "sliding-window" for i in range(count)]
    if config.get("use_sliding_window"):
        first = integer(config, "max_window_layers") or 0
        return ["full" if i < first else "sliding-window" for i in range(count)]
    return ["sliding-window"] * count if model in ("mistral", "mixtral", "phi3", "starcoder2") else ["full"] * count
