"""Writes random but finite NVFP4 weights, in ModelOpt's layout, into a `kimiN` folder of models.py: real files for cold and warm starts.

python weights.py FOLDER [--shard-gib 4]        needs torch and safetensors; a GPU makes the numbers quickly (kimi3: 23 GiB)
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Tensors = dict[str, torch.Tensor]


def bf16(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * 0.02).to(torch.bfloat16).cpu()


def ones(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.bfloat16)


def nvfp4(name: str, rows: int, columns: int) -> Tensors:
    """One linear layer: two values a byte, an E4M3 scale for each 16 of them, and the two scalars."""
    scale = (torch.rand(rows, columns // 16, device=DEVICE) * 0.5 + 0.25).to(torch.float8_e4m3fn).cpu()
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=DEVICE).cpu()
    return {
        f"{name}.weight": packed,
        f"{name}.weight_scale": scale,
        f"{name}.weight_scale_2": torch.tensor(0.01),
        f"{name}.input_scale": torch.tensor(0.01),
    }


def mlp(name: str, hidden: int, inner: int) -> Tensors:
    return nvfp4(f"{name}.gate_proj", inner, hidden) | nvfp4(f"{name}.up_proj", inner, hidden) | nvfp4(f"{name}.down_proj", hidden, inner)


def attention(name: str, c: dict[str, Any]) -> Tensors:
    hidden, heads, q_rank, kv_rank = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    return {
        f"{name}.q_a_proj.weight": bf16(q_rank, hidden),
        f"{name}.q_a_layernorm.weight": ones(q_rank),
        f"{name}.q_b_proj.weight": bf16(heads * (nope + rope), q_rank),
        f"{name}.kv_a_proj_with_mqa.weight": bf16(kv_rank + rope, hidden),
        f"{name}.kv_a_layernorm.weight": ones(kv_rank),
        f"{name}.kv_b_proj.weight": bf16(heads * (nope + value), kv_rank),
        f"{name}.o_proj.weight": bf16(hidden, heads * value),
    }


def pieces(c: dict[str, Any]) -> Iterator[Tensors]:
    """The model's tensors in the order of its layers, a few at a time."""
    hidden = c["hidden_size"]
    yield {"model.embed_tokens.weight": bf16(c["vocab_size"], hidden)}
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield attention(f"{layer}.self_attn", c)
        yield {f"{layer}.input_layernorm.weight": ones(hidden), f"{layer}.post_attention_layernorm.weight": ones(hidden)}
        if number < c["first_k_dense_replace"]:
            yield mlp(f"{layer}.mlp", hidden, c["intermediate_size"])
            continue
        gate = f"{layer}.mlp.gate"
        yield {f"{gate}.weight": bf16(c["n_routed_experts"], hidden), f"{gate}.e_score_correction_bias": torch.zeros(c["n_routed_experts"])}
        yield mlp(f"{layer}.mlp.shared_experts", hidden, c["moe_intermediate_size"])
        for expert in range(c["n_routed_experts"]):
            yield mlp(f"{layer}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"])
    yield {"model.norm.weight": ones(hidden), "lm_head.weight": bf16(c["vocab_size"], hidden)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shard-gib", type=float, default=4.0)
    given = parser.parse_args()
    shard: Tensors = {}
    where: dict[str, str] = {}
    size = total = 0

    def flush() -> None:
        nonlocal size
        name = f"model-{len(set(where.values())) + 1:05d}.safetensors"
        save_file(shard, given.folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, name))
        shard.clear()
        size = 0

    for tensors in pieces(json.loads((given.folder / "config.json").read_text())):
        shard |= tensors
        added = sum(t.numel() * t.element_size() for t in tensors.values())
        size, total = size + added, total + added
        if size > given.shard_gib * 2**30:
            flush()
    flush()
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (given.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    print(f"{total / 2**30:.2f} GiB in {len(set(where.values()))} shards")


if __name__ == "__main__":
    main()
