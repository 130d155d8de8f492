"""Writes a checkpoint with the headers of Kimi-K2.5-NVFP4: 119 shards, 278,219 tensors, 550.2 GiB of holes (about 80 MB on the disk).

    python bench/kimi_headers.py OUT [--times N]      N: that many copies of the routed experts' numbers, for growth

The tensors are those that firstlight derives from the config, written in the order of layers as a quantizer writes them.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from firstlight.inspect.config import normalise
from firstlight.inspect.derive.derive import expected_groups
from firstlight.inspect.quant import quant_spec
from firstlight.inspect.safetensors import tensor_bytes

Tensor = tuple[str, str, list[int]]
SHARDS = 119
LAYERS = 61
TEXT = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "intermediate_size": 18432, "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840, "max_position_embeddings": 262144, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {
    "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "vt_num_hidden_layers": 27, "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304, "merge_kernel_size": [2, 2], "mm_hidden_size": 1152, "text_hidden_size": 7168,
}  # fmt: skip
IGNORE = [
    "language_model.lm_head",
    *(f"language_model.model.layers.{i}.self_attn*" for i in range(LAYERS)),
    "mm_projector*",
    "vision_tower*",
]
QUANT = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": IGNORE,
    "producer": {"name": "modelopt", "version": "0.41.0"},
}  # fmt: skip
HF_QUANT = {
    "producer": {"name": "modelopt", "version": "0.41.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": IGNORE},
}


def config(times: int) -> dict[str, Any]:
    text = TEXT | {"num_hidden_layers": LAYERS * times}
    return {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16", "text_config": text,
        "vision_config": VISION, "quantization_config": QUANT,
    }  # fmt: skip


def tensors(times: int) -> Iterator[Tensor]:
    """name, dtype, shape in layer order, experts one after another."""
    one = normalise(config(times))
    groups, reason = expected_groups(one.fields, quant_spec(one.quantization, None), one.quantization)
    assert reason is None, reason
    for g in groups:
        if not g.layers:
            yield g.pattern, g.dtype, g.shape
    for layer in range(LAYERS * times):
        members = [(g.pattern.replace("{layer}", str(layer)), g) for g in groups if layer in g.layers]
        yield from ((name, g.dtype, g.shape) for name, g in members if "{expert}" not in name)
        routed = [(name, g) for name, g in members if "{expert}" in name]
        for expert in range(384 if routed else 0):
            yield from ((name.replace("{expert}", str(expert)), g.dtype, g.shape) for name, g in routed)


def write(out: Path, times: int = 1) -> int:
    """Writes the checkpoint, a shard at a time, and returns the number of its tensors."""
    out.mkdir(parents=True, exist_ok=True)
    total = sum(_size(t) for t in tensors(times))
    shards = SHARDS * times
    count, number, done = 0, 1, 0
    part: list[Tensor] = []
    with (out / "model.safetensors.index.json").open("w") as index:
        index.write(f'{{\n  "metadata": {{\n    "total_size": {total}\n  }},\n  "weight_map": {{')
        for tensor in tensors(times):
            part.append(tensor)
            done += _size(tensor)
            if done >= total * number // shards:
                count += _flush(out, index, part, number, shards, first=number == 1)
                number, part = number + 1, []
        index.write("\n  }\n}\n")
    assert not part
    (out / "config.json").write_text(json.dumps(config(times), indent=2))
    (out / "hf_quant_config.json").write_text(json.dumps(HF_QUANT, indent=2))
    return count


def _size(tensor: Tensor) -> int:
    return tensor_bytes(tensor[1], tuple(tensor[2])) or 0


def _flush(out: Path, index: TextIO, part: list[Tensor], number: int, shards: int, *, first: bool) -> int:
    name = f"model-{number:05d}-of-{shards:05d}.safetensors"
    _write_shard(out / name, part)
    lines = ",\n".join(f'    "{n}": "{name}"' for n, _, _ in part)
    index.write(("\n" if first else ",\n") + lines)
    return len(part)


def _write_shard(path: Path, part: list[Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in part:
        end = at + (tensor_bytes(dtype, tuple(shape)) or 0)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        f.truncate(8 + len(raw) + at)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    print(f"{write(given.out, given.times):,} tensors")
