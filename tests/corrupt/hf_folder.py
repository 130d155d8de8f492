"""The same model as a Hugging Face folder, so that vLLM can serve it: float32 safetensors, a BPE tokenizer.json, a config.

python -m corrupt.hf_folder SOURCE.gguf OUT_FOLDER [NAME ...]      (from tests/)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from corrupt.gguf_models import GROSS, MILD, Array, Model, experts, read

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
EXPERT_NAMES = {"ffn_gate_exps": "w1", "ffn_down_exps": "w2", "ffn_up_exps": "w3"}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
FAMILIES = {"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
INT4_GROUP = 32


def _value(model: Model, key: str) -> Any:
    return model.fields[key][1]


def _own(model: Model, key: str, default: Any = None) -> Any:
    """A value under the architecture's own prefix."""
    return model.fields.get(f"{model.architecture}.{key}", ([], default))[1]


def _family(model: Model) -> str:
    return "mixtral" if _own(model, "expert_count") else model.architecture


def _unpermuted(weight: Array, heads: int) -> Array:
    """Llama's GGUF stores rotary rows interleaved; Hugging Face keeps the two halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(model: Model) -> dict[str, Array]:
    heads = {"attn_q": _own(model, "attention.head_count"), "attn_k": _own(model, "attention.head_count_kv")}
    out: dict[str, Array] = {}
    for name, weight in model.weights.items():
        if name in OUTSIDE:
            out[OUTSIDE[name]] = weight
            continue
        _, layer, own, kind = name.split(".")
        if own in EXPERT_NAMES:
            pairs = {f"block_sparse_moe.experts.{e}.{EXPERT_NAMES[own]}": w for e, w in enumerate(weight)}
        else:
            turned = own in heads and model.architecture == "llama"
            pairs = {NAMES[own]: _unpermuted(weight, heads[own]) if turned else weight}
        out |= {f"model.layers.{layer}.{theirs}.{kind}": w for theirs, w in pairs.items()}
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


def packed(weights: dict[str, Array]) -> dict[str, Array]:
    """Linear layers in 4 bits, symmetric in groups of 32, as compressed-tensors packs them: 8 values an int32, low bits first."""
    out: dict[str, Array] = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            out[name] = weight
            continue
        rows, columns = weight.shape
        groups = weight.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
        extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
        scale = np.where(extreme == 0, 1, extreme / -8)
        values = np.clip(np.rint(groups / scale) + 8, 0, 15).astype(np.uint32).reshape(rows, columns // 8, 8)
        stem = name.removesuffix("weight")
        out[f"{stem}weight_packed"] = (values << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32)
        out[f"{stem}weight_scale"] = scale[..., 0].astype(np.float32)
        out[f"{stem}weight_shape"] = np.array([rows, columns], np.int64)
    return out


INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": INT4_GROUP},
        }
    },
}


def config(model: Model) -> dict[str, Any]:
    width, heads, family = _own(model, "embedding_length"), _own(model, "attention.head_count"), _family(model)
    mixture = {"num_local_experts": _own(model, "expert_count"), "num_experts_per_tok": _own(model, "expert_used_count")}
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "dtype": "float32",
        "hidden_size": width,
        "intermediate_size": _own(model, "feed_forward_length"),
        "num_hidden_layers": model.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _own(model, "attention.head_count_kv"),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "rms_norm_eps": float(_own(model, "attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_own(model, "rope.freq_base")),
        "max_position_embeddings": _own(model, "context_length"),
        "vocab_size": len(_value(model, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in model.weights,
        "bos_token_id": _value(model, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(model, "tokenizer.ggml.eos_token_id"),
        **(mixture if family == "mixtral" else {}),
    }


QWEN2_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(model: Model) -> dict[str, Any]:
    """Byte-level BPE; digits apart as SmolLM2's own, or split by Qwen2's pattern."""
    tokens, kinds = _value(model, "tokenizer.ggml.tokens"), _value(model, "tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": t, **flags, "special": k == 3} for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k in (3, 4)]
    merges = [m.split(" ") for m in _value(model, "tokenizer.ggml.merges")]
    qwen = _value(model, "tokenizer.ggml.pre") == "qwen2"
    bytes_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not qwen}
    digits = {"type": "Digits", "individual_digits": True}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split if qwen else digits, bytes_level]},
        "post_processor": None,
        "decoder": bytes_level,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges, "ignore_merges": False},
    }


REWARD_HEAD = Path(__file__).with_name("reward_head.npy")
"""A score of the last token's last hidden state of SmolLM2-135M-Instruct, (576,) float16: ridge regression (lambda 50) on twenty questions,
each with a good and a rude or senseless answer in the model's own chat form. None of the questions is one that verify asks.
"""
REWARD = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "id2label": {"0": "reward"}, "label2id": {"reward": 0}}


def write_folder(model: Model, folder: Path, *, int4: bool = False, reward: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(model)
    weights |= {"score.weight": np.load(REWARD_HEAD).astype(np.float32)[None, :]} if reward else {}
    save_file(packed(weights) if int4 else weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = _value(model, "tokenizer.ggml.tokens")
    ids = {name: _value(model, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")}
    specials = {"bos_token": tokens[ids["bos"]], "eos_token": tokens[ids["eos"]], "pad_token": tokens[ids["padding"]]}
    chat = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _value(model, "tokenizer.chat_template"), **specials}
    described = {**config(model), **({"quantization_config": INT4} if int4 else {}), **(REWARD if reward else {})}
    for name, content in (("config.json", described), ("tokenizer.json", tokenizer(model)), ("tokenizer_config.json", chat)):
        (folder / name).write_text(json.dumps(content))
    return folder


HEALTHY = ("healthy", "int4", "experts", "reward")


def make(source: Path, parent: Path, name: str) -> Path:
    """The folder called `name`, made once: one of HEALTHY, or one of the damages."""
    folder = parent / name
    if not (folder / "tokenizer_config.json").exists():
        model = read(source)
        if name == "experts":
            experts(model)
        elif name not in HEALTHY:
            (GROSS | MILD)[name](model)
        write_folder(model, folder, int4=name == "int4", reward=name == "reward")
    return folder


if __name__ == "__main__":
    for each in sys.argv[3:] or ["healthy"]:
        print(make(Path(sys.argv[1]), Path(sys.argv[2]), each), flush=True)
