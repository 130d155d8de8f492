"""A GGUF's own keys in the words of config.json, so that everything after needs no second way."""

from collections.abc import Mapping
from typing import Any

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
    14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip
_KEYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim", "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window", "attention.kv_lora_rank": "kv_lora_rank", "attention.q_lora_rank": "q_lora_rank",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.dimension_count": "rotary_dim", "rope.freq_base": "rope_theta",
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size", "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers", "vocab_size": "vocab_size", "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim", "attention.indexer.top_k": "index_topk", "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size", "ssm.group_count": "n_groups", "ssm.inner_size": "ssm_inner_size",
    "ssm.time_step_rank": "ssm_time_step_rank", "attention.chunk_size": "attention_chunk_size",
    "attention.shared_kv_layers": "num_kv_shared_layers", "full_attention_interval": "full_attention_interval",
    "attention.key_length_swa": "swa_head_dim", "attention.value_length_swa": "swa_v_head_dim",
}  # fmt: skip


def gguf_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The header's pairs as config fields, with `architectures` and `model_type` as the file names them."""
    arch = str(values.get("general.architecture") or "unknown")
    config: dict[str, Any] = {"architectures": [arch], "model_type": arch}
    for key, name in _KEYS.items():
        value = values.get(f"{arch}.{key}")
        if value is not None:
            config[name] = value
    _draft_layers(config)
    _mla(config, arch, values)
    _windows(config, arch, values)
    _layers(config, arch, values)
    if "vocab_size" not in config and "tokenizer.ggml.tokens#length" in values:
        config["vocab_size"] = values["tokenizer.ggml.tokens#length"]
    return config


def _draft_layers(config: dict[str, Any]) -> None:
    """`block_count` counts the draft layers, too; config.json and the KV cache do not (n_layer_kv_from_start in llama-model.cpp)."""
    layers, drafts = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if isinstance(layers, int) and isinstance(drafts, int) and 0 < drafts < layers:
        config["num_hidden_layers"] = layers - drafts


def _mla(config: dict[str, Any], arch: str, values: Mapping[str, Any]) -> None:
    """llama.cpp writes MLA as one KV head of latent + rope; the per-head widths stand under `*_mla`."""
    if not config.get("kv_lora_rank"):
        return
    rope = config.get("rotary_dim") or 0
    key, value = values.get(f"{arch}.attention.key_length_mla"), values.get(f"{arch}.attention.value_length_mla")
    config["qk_rope_head_dim"] = rope
    if isinstance(key, int) and isinstance(rope, int):
        config["qk_nope_head_dim"] = key - rope
    if isinstance(value, int):
        config["v_head_dim"] = value
    config.pop("head_dim", None)


def _windows(config: dict[str, Any], arch: str, values: Mapping[str, Any]) -> None:
    """`sliding_window_pattern` is a list of flags a layer, or every n-th layer is a full one."""
    pattern = values.get(f"{arch}.attention.sliding_window_pattern")
    count = config.get("num_hidden_layers")
    if not config.get("sliding_window") or not isinstance(count, int):
        return
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in pattern]
        return
    every = pattern if isinstance(pattern, int) else {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "exaone4": 4}.get(arch)
    if every and count <= 10_000:
        config["layer_types"] = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


def _layers(config: dict[str, Any], arch: str, values: Mapping[str, Any]) -> None:
    """Hybrids give KV heads a layer: none means a state-space or feed-forward layer."""
    heads = config.get("num_key_value_heads")
    if isinstance(heads, list) and 0 in heads and config.get("ssm_state_size"):
        feed = config.get("intermediate_size")
        config["layers_block_type"] = [
            "attention" if h else "mlp" if isinstance(feed, list) and i < len(feed) and feed[i] else "mamba" for i, h in enumerate(heads)
        ]
    inner, rank = config.get("ssm_inner_size"), config.get("ssm_time_step_rank")
    if isinstance(inner, int) and isinstance(rank, int) and rank > 0:
        config["mamba_num_heads"], config["mamba_head_dim"], config["mamba_ssm_dtype"] = rank, inner // rank, "float32"
    if config.get("full_attention_interval") and isinstance(inner, int) and isinstance(rank, int) and rank:
        groups, width = config.get("n_groups") or 0, config.get("ssm_state_size") or 0
        config |= {"linear_num_key_heads": groups, "linear_key_head_dim": width, "linear_num_value_heads": rank}
        config |= {"linear_value_head_dim": inner // rank, "linear_conv_kernel_dim": config.get("conv_kernel")}


def file_type(values: Mapping[str, Any]) -> str | None:
    """The mix that the converter was asked for (`Q4_K_M`), by llama.cpp's number."""
    number = values.get("general.file_type")
    return _FILE_TYPES.get(number & ~1024) if isinstance(number, int) else None
