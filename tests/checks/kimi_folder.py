"""Kimi-K2.5-NVFP4's config.json and hf_quant_config.json from a compact table: nested, with a vision tower, FP8 KV cache embedded twice."""

import json
from pathlib import Path
from typing import Any

TEXT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 262144,
    "vocab_size": 163840,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0,
}
VISION = {
    "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304,
    "vt_num_attention_heads": 16,
    "vt_num_hidden_layers": 27,
    "mm_hidden_size": 1152,
    "text_hidden_size": 7168,
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "init_pos_emb_time": 4,
}
_FOUR_BITS = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}


def ignored() -> list[str]:
    attention = [f"language_model.model.layers.{n}.self_attn*" for n in range(61)]
    return ["language_model.lm_head", *attention, "vision_tower*", "mm_projector*"]


def config() -> dict[str, Any]:
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": TEXT,
        "vision_config": VISION,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "config_groups": {"group_0": {"weights": _FOUR_BITS, "input_activations": _FOUR_BITS, "targets": ["Linear"]}},
            "ignore": ignored(),
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.41.0"},
        },
    }


def hf_quant() -> dict[str, Any]:
    return {
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ignored()},
    }


def write(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant()))
    return folder
