"""The same model as a Hugging Face folder, so that vLLM can serve it: float32 safetensors, a BPE tokenizer.json, a config.

python -m corrupt.hf_folder SOURCE.gguf OUT_FOLDER [NAME ...]      (from tests/)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from corrupt.gguf_models import GROSS, MILD, Array, Model, read

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
}


def _value(model: Model, key: str) -> Any:
    return model.fields[key][1]


def _unpermuted(weight: Array, heads: int) -> Array:
    """GGUF stores rotary rows interleaved; Hugging Face keeps the two halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(model: Model) -> dict[str, Array]:
    heads = {"attn_q": _value(model, "llama.attention.head_count"), "attn_k": _value(model, "llama.attention.head_count_kv")}
    out = {"model.embed_tokens.weight": model.weights["token_embd.weight"], "model.norm.weight": model.weights["output_norm.weight"]}
    for i in range(model.layers):
        for own, theirs in NAMES.items():
            weight = model.weights[f"blk.{i}.{own}.weight"]
            out[f"model.layers.{i}.{theirs}.weight"] = _unpermuted(weight, heads[own]) if own in heads else weight
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


def config(model: Model) -> dict[str, Any]:
    width, heads = _value(model, "llama.embedding_length"), _value(model, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": width,
        "intermediate_size": _value(model, "llama.feed_forward_length"),
        "num_hidden_layers": model.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _value(model, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "rms_norm_eps": float(_value(model, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_value(model, "llama.rope.freq_base")),
        "max_position_embeddings": _value(model, "llama.context_length"),
        "vocab_size": len(_value(model, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": True,
        "bos_token_id": _value(model, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(model, "tokenizer.ggml.eos_token_id"),
    }


def tokenizer(model: Model) -> dict[str, Any]:
    """Byte-level BPE with digits apart, as SmolLM2's own."""
    tokens, kinds = _value(model, "tokenizer.ggml.tokens"), _value(model, "tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": t, **flags} for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k == 3]
    merges = [m.split(" ") for m in _value(model, "tokenizer.ggml.merges")]
    bytes_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_level]},
        "post_processor": None,
        "decoder": bytes_level,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges, "ignore_merges": False},
    }


def write_folder(model: Model, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    specials = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    chat = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _value(model, "tokenizer.chat_template"), **specials}
    for name, content in (("config.json", config(model)), ("tokenizer.json", tokenizer(model)), ("tokenizer_config.json", chat)):
        (folder / name).write_text(json.dumps(content))
    return folder


def make(source: Path, parent: Path, name: str) -> Path:
    """The folder called `name`, made once: `healthy`, or one of the damages."""
    folder = parent / name
    if not (folder / "tokenizer_config.json").exists():
        model = read(source)
        if name != "healthy":
            (GROSS | MILD)[name](model)
        write_folder(model, folder)
    return folder


if __name__ == "__main__":
    for each in sys.argv[3:] or ["healthy"]:
        print(make(Path(sys.argv[1]), Path(sys.argv[2]), each), flush=True)
