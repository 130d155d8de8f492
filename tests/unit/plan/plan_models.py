"""Checkpoints of published models from the shape table in tests/data/plan: config alone, no files."""

import importlib.util
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from plan_shapes import groups_from_config

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, QuantSpec
from firstlight.inspect.checkpoint import inspect
from firstlight.inspect.sources import open_source
from firstlight.probe.hosts import open_host

DATA = Path(__file__).parents[2] / "data" / "plan"
GPU_MODELS = Path(__file__).parents[3] / "bench" / "gpu" / "models.py"
KIMI: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mistral": "Mistral3ForConditionalGeneration",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
VISION = {
    "moonvit": {
        "vt_hidden_size": 1152,
        "vt_num_hidden_layers": 27,
        "vt_intermediate_size": 4304,
        "patch_size": 14,
        "init_pos_emb_height": 64,
    },
    "siglip": {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "patch_size": 14},
    "qwen3_5": {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304, "patch_size": 16},
    "pixtral": {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "patch_size": 14},
}


@cache
def table() -> dict[str, Any]:
    return dict(json.loads((DATA / "models.json").read_text()))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


@cache
def checkpoint(name: str) -> Checkpoint:
    """A config-only checkpoint: from the table's shapes by hand, or a whole config through inspect (`gpu/NAME`: bench/gpu/models.py)."""
    if name.startswith("gpu/") and name not in table():
        return inspected(name, *gpu_model(name.removeprefix("gpu/")))
    row = table()[name]
    if "whole_config" in row:
        return inspected(name, row["whole_config"])
    config = dict(KIMI, num_hidden_layers=row["layers"]) if row.get("family") == "kimi" else dict(row["config"])
    config["model_type"] = row.get("model_type", config["model_type"])
    if row.get("vision"):
        config["vision_config"] = VISION[row["vision"]]
    quant = QuantSpec(**row["quant"]) if row.get("quant") else None
    groups = kv_groups(config, row)
    growing = [g for g in groups if g.kind in ("full", "mla")]
    per_token = {d: round(sum(g.bytes_per_token_per_layer[d] * len(g.layers) for g in growing)) for d in ("bf16", "fp8")}
    made = Checkpoint(
        ref=name,
        name=name,
        format="config-only",
        architectures=row.get("architectures") or [ARCHITECTURES.get(config["model_type"], "Unknown")],
        model_type=config["model_type"],
        config=config,
        num_hidden_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        quantization=quant,
        kv_cache_groups=groups,
        kv_bytes_per_token=per_token,
        modalities=["text", "image"] if row.get("vision") else ["text"],
    )
    return msgspec.structs.replace(made, tensor_groups=groups_from_config(made))


def raw_config(name: str) -> dict[str, Any] | None:
    """config.json as it stands, where a model is known by its whole config."""
    return table()[name].get("whole_config") if name in table() else gpu_model(name.removeprefix("gpu/"))[0]


def gpu_model(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(config, quantization config) of a folder that was started on a GPU."""
    spec = importlib.util.spec_from_file_location("gpu_models", GPU_MODELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.MODELS[name]()
    return made if isinstance(made, tuple) else (made, None)


def inspected(name: str, config: dict[str, Any], quant: dict[str, Any] | None = None) -> Checkpoint:
    """What inspect derives from a folder that has nothing but configs."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        if quant:
            (Path(folder) / "hf_quant_config.json").write_text(json.dumps(quant))
        found = inspect(open_source(folder, open_host("local")))
    return msgspec.structs.replace(found, ref=name, name=name, path=None)


def kv_groups(config: dict[str, Any], row: dict[str, Any]) -> list[KvCacheGroup]:
    layers = list(range(config["num_hidden_layers"]))
    if config.get("kv_lora_rank"):
        width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        return [
            KvCacheGroup(
                kind="mla", layers=layers, bytes_per_token_per_layer={"bf16": 2.0 * width, "fp8": 1.0 * width}, kv_heads=1, head_dim=width
            )
        ]
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    per = {"bf16": 4.0 * heads * dim, "fp8": 2.0 * heads * dim}
    shape = {"bytes_per_token_per_layer": per, "kv_heads": heads, "head_dim": dim, "head_dim_v": dim}
    if config.get("linear_num_value_heads"):
        every = config["full_attention_interval"]
        full = [n for n in layers if n % every == every - 1]
        conv = (
            2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
            + config["linear_num_value_heads"] * config["linear_value_head_dim"]
        )
        state = conv * 3 * 2 + config["linear_num_value_heads"] * config["linear_key_head_dim"] * config["linear_value_head_dim"] * 4
        return [
            KvCacheGroup(kind="full", layers=full, **shape),
            KvCacheGroup(kind="linear", layers=sorted(set(layers) - set(full)), state_bytes_per_request=state),
        ]
    every = row.get("sliding_every") or row.get("chunked_every")
    if not every:
        return [KvCacheGroup(kind="full", layers=layers, **shape)]
    full = [n for n in layers if (n % every == every - 1 if every > 0 else (n + 1) % -every == 0)]
    kind = "chunked" if row.get("chunked_every") else "sliding-window"
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    return [
        KvCacheGroup(kind="full", layers=full, **shape),
        KvCacheGroup(kind=kind, layers=sorted(set(layers) - set(full)), window=window, **shape),
    ]
