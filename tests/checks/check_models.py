"""Checkpoints as compact tables: what the checks look at, with the published shapes."""

from typing import Any

import msgspec

from firstlight.core.checkpoint import Checkpoint

_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_KIMI = {
    **_MLA,
    "hidden_size": 7168,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_hidden_layers": 61,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "dtype": "bfloat16",
}
_DEEPSEEK = {**_KIMI, "num_attention_heads": 128, "num_key_value_heads": 128}
_LLAMA = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "dtype": "bfloat16",
}
_TEXT = {"tokenizer": {"class": "PreTrainedTokenizerFast", "files": ["tokenizer.json"]}, "chat_template": {"present": True}}
_EMBEDDED = {"dtype": "fp8", "sources": ["config.json:quantization_config.kv_cache_scheme"]}

MODELS: dict[str, dict[str, Any]] = {
    "kimi-k2.5-nvfp4": {
        "ref": "nvidia/Kimi-K2.5-NVFP4",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "config": _KIMI,
        "num_hidden_layers": 61,
        "attention": "mla",
        "moe": {"num_experts": 384, "num_experts_per_tok": 8, "first_dense_layers": 1},
        "quantization": {"method": "modelopt", "format": "nvfp4", "group_size": 16},
        "kv_cache_quantization": _EMBEDDED,
        "kv_cache_groups": [{"kind": "mla", "layers": list(range(61))}],
        "kv_bytes_per_token": {"bf16": 70272, "fp8": 35136},
        "tensor_bytes": 590_700_000_000,
        **_TEXT,
    },
    "deepseek-v3": {
        "ref": "deepseek-ai/DeepSeek-V3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "config": _DEEPSEEK,
        "num_hidden_layers": 61,
        "attention": "mla",
        "moe": {"num_experts": 256, "first_dense_layers": 3},
        "tensor_groups": [
            {"pattern": "model.layers.{layer}.x", "role": "norm", "dtype": "BF16", "shape": [1], "count": 61, "layers": [0, 60]}
        ],
        **_TEXT,
    },
    "deepseek-v3.2": {
        "ref": "deepseek-ai/DeepSeek-V3.2",
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "config": {**_DEEPSEEK, "index_topk": 2048},
        "attention": "sparse-mla",
        **_TEXT,
    },
    "tiny-mla-fp8-kv": {
        "ref": "tiny",
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "config": {**_MLA, "num_attention_heads": 4, "hidden_size": 256, "dtype": "bfloat16"},
        "attention": "mla",
        "kv_cache_quantization": {
            "dtype": "fp8",
            "sources": ["config.json:quantization_config.kv_cache_scheme", "hf_quant_config.json:quantization.kv_cache_quant_algo"],
        },
        **_TEXT,
    },
    "llama-8b": {
        "ref": "meta-llama/Llama-3.1-8B-Instruct",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "config": _LLAMA,
        "attention": "gqa",
        "kv_bytes_per_token": {"bf16": 131072, "fp8": 65536},
        "tensor_bytes": 16_060_000_000,
        "file_bytes": 16_060_000_000,
        **_TEXT,
    },
    "llama-fp8-kv": {
        "ref": "some/Llama-FP8-KV",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "config": _LLAMA,
        "attention": "gqa",
        "quantization": {"method": "compressed-tensors", "format": "fp8"},
        "kv_cache_quantization": _EMBEDDED,
        **_TEXT,
    },
    "qwen3-235b-fp8": {
        "ref": "Qwen/Qwen3-235B-A22B-FP8",
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "config": {
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_intermediate_size": 1536,
            "intermediate_size": 12288,
            "dtype": "bfloat16",
        },
        "attention": "gqa",
        "moe": {"num_experts": 128, "num_experts_per_tok": 8},
        "quantization": {"method": "fp8", "format": "fp8-block", "group_size": [128, 128]},
        **_TEXT,
    },
    "gpt-oss-120b": {
        "ref": "openai/gpt-oss-120b",
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "config": {"hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "dtype": "bfloat16"},
        "attention": "gqa",
        "moe": {"num_experts": 128, "num_experts_per_tok": 4},
        "quantization": {"method": "mxfp4", "format": "mxfp4", "group_size": 32},
        **_TEXT,
    },
}


def checkpoint(name: str, changes: dict[str, Any]) -> Checkpoint:
    return msgspec.convert({"format": "safetensors", **MODELS[name], **changes}, Checkpoint)
