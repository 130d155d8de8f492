"""Writes model folders with published shapes and no weights, for starts with dummy weights: config, quantization config, a toy tokenizer.

    python models.py FOLDER [NAME ...]        needs transformers and tokenizers

Shapes are those of the models' own config.json files; `kimiN` is Kimi-K2.5-NVFP4's language model with N of its 61 layers.
"""

import json
import sys
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
    "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
# gpt-oss's reasoning parser looks these up.
HARMONY = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"]
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


def kimi(layers: int, *, embedded_fp8_kv: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """DeepSeek-V3's architecture in Kimi-K2.5's size, NVFP4 by ModelOpt; attention, router and head stay bf16."""
    config = COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 1, "topk_group": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.827, "norm_topk_prob": True, "vocab_size": 163840,
        "max_position_embeddings": 262144, "rope_theta": 50000.0, "rms_norm_eps": 1e-5, "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                         "mscale": 1.0, "mscale_all_dim": 1.0},
    }  # fmt: skip
    ignore = ["lm_head", "model.embed_tokens*", *(f"model.layers.{i}.self_attn*" for i in range(layers))]
    ignore += [f"model.layers.{i}.mlp.gate" for i in range(1, layers)]
    producer = {"name": "modelopt", "version": "0.41.0"}
    number = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    config["quantization_config"] = {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore, "producer": producer,
        "config_groups": {"group_0": {"input_activations": number, "weights": number, "targets": ["Linear"]}},
    }  # fmt: skip
    quant: dict[str, Any] = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ignore}
    if embedded_fp8_kv:
        config["quantization_config"]["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
        quant["kv_cache_quant_algo"] = "FP8"
    return config, {"producer": producer, "quantization": quant}


def llama8b(**more: Any) -> dict[str, Any]:
    """Llama-3.1-8B."""
    return COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
    } | more  # fmt: skip


def qwen3moe(**more: Any) -> dict[str, Any]:
    """Qwen3-30B-A3B."""
    return COMMON | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
    } | more  # fmt: skip


def gptoss20b() -> dict[str, Any]:
    """gpt-oss-20b, MXFP4 experts, alternating sliding and full attention."""
    return COMMON | {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
        "experts_per_token": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "initial_context_length": 4096,
        "rope_theta": 150000.0, "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": True, "rms_norm_eps": 1e-5,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                         "truncate": False},
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    }  # fmt: skip


def glm45air(layers: int = 46) -> dict[str, Any]:
    """GLM-4.5-Air in FP8 blocks would not be published so; the bf16 shape with fewer layers fits one GPU."""
    return COMMON | {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": layers, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "vocab_size": 151552, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": False, "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-5,
    }  # fmt: skip


def minimax_m2(layers: int = 12) -> dict[str, Any]:
    """MiniMax-M2 with fewer layers, FP8 blocks."""
    return COMMON | {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536,
        "num_hidden_layers": layers, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256,
        "num_experts_per_tok": 8, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
        "rotary_dim": 64, "rope_theta": 5000000.0, "vocab_size": 200064, "max_position_embeddings": 196608, "rms_norm_eps": 1e-6,
        "quantization_config": FP8_BLOCK | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
    }  # fmt: skip


def deepseek_v32(layers: int) -> dict[str, Any]:
    """DeepSeek-V3.2 with fewer layers: MLA with the sparse indexer, FP8 blocks."""
    return COMMON | {
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": layers, "num_attention_heads": 128, "num_key_value_heads": 128,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "norm_topk_prob": True, "vocab_size": 129280,
        "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "max_position_embeddings": 163840, "rope_theta": 10000,
        "rms_norm_eps": 1e-6, "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "ep_size": 1,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                         "mscale": 1.0, "mscale_all_dim": 1.0},
        "quantization_config": FP8_BLOCK | {"scale_fmt": "ue8m0"},
    }  # fmt: skip


def qwen3next(layers: int) -> dict[str, Any]:
    """Qwen3-Next-80B-A3B with fewer layers: three linear-attention layers to one full one."""
    return COMMON | {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "partial_rotary_factor": 0.25, "vocab_size": 151936, "max_position_embeddings": 262144, "rope_theta": 10000000,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip


def gemma3_27b() -> dict[str, Any]:
    """Gemma-3-27B's language model: five sliding layers to one full one, tied embeddings."""
    return COMMON | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
        "sliding_window": 1024, "sliding_window_pattern": 6, "vocab_size": 262208, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    }  # fmt: skip


MODELS: dict[str, Any] = {
    "kimi3": lambda: kimi(3),
    "kimi5": lambda: kimi(5),
    "kimi9": lambda: kimi(9),
    "kimi61": lambda: kimi(61),
    "llama8b": llama8b,
    "llama8b-fp8": lambda: llama8b(quantization_config=FP8_BLOCK),
    "qwen3moe": qwen3moe,
    "qwen3moe-fp8": lambda: qwen3moe(quantization_config=FP8_BLOCK),
    "gptoss20b": gptoss20b,
    "glm45air-12": lambda: glm45air(12),
    "minimax-m2-12": lambda: minimax_m2(12),
    "dsv32-5": lambda: deepseek_v32(5),
    "qwen3next-24": lambda: qwen3next(24),
    "gemma3-27b": gemma3_27b,
}


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<pad>", *HARMONY], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(["first light falls on the machine and the machine answers"] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(folder)


def write_model(root: Path, name: str) -> Path:
    """The folder of one model; an existing one is kept."""
    folder = root / name
    if (folder / "tokenizer.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    made = MODELS[name]()
    config, quant = made if isinstance(made, tuple) else (made, None)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if quant:
        (folder / "hf_quant_config.json").write_text(json.dumps(quant, indent=1))
    write_tokenizer(folder)
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[2:] or MODELS:
        print(write_model(Path(sys.argv[1]), wanted))
