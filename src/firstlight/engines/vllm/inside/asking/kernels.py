"""Builds one layer per number format on every GPU generation and reads which MoE and linear kernels the engine gave it."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import tempfile
from typing import Any

from . import cache, choices, late, rank, reach, settings
from .sweep import cache_dtypes

# Qwen3-30B-A3B and gpt-oss-20b with one layer: shapes that every kernel's alignment rules accept.
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "layer_types": ["full_attention"],
    "torch_dtype": "bfloat16",
    "rope_theta": 150000.0,
}
_NVFP4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
_MXFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False, "actorder": None}
# Format name -> (model, its quantization_config as published checkpoints write it).
FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "bf16": (QWEN3_MOE, None),
    "nvfp4": (
        QWEN3_MOE,
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": ["lm_head"],
            "producer": {"name": "modelopt", "version": "0.41.0"},
            "config_groups": {"group_0": {"input_activations": _NVFP4, "weights": _NVFP4, "targets": ["Linear"]}},
        },
    ),
    "fp8-block": (
        QWEN3_MOE,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
    ),
    "fp8": (QWEN3_MOE, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "mxfp4": (
        GPT_OSS,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]},
    ),
    "mxfp4-dense": (
        QWEN3_MOE,
        {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*mlp.experts.*"],
            "config_groups": {
                "group_0": {"format": "mxfp4-pack-quantized", "targets": ["Linear"], "weights": _MXFP4, "input_activations": None}
            },
        },
    ),
    "int4": (
        QWEN3_MOE,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*mlp.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INT4, "input_activations": None, "output_activations": None}},
        },
    ),
    "awq": (QWEN3_MOE, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}),
}


# KV cache dtypes that a selector may take and a constructor refuse; common ones are used too widely for that.
LATE_DTYPES = ("nvfp4", "int8_per_token_head", "fp8_per_token_head", "fp8_e5m2")
# One GPU generation each: 8.6, 10.3 and 12.1 chose as 8.0, 10.0 and 12.0 did wherever both were asked.
KERNEL_SMS = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0))
REFUSALS = ("ValueError", "ValidationError", "NotImplementedError", "AssertionError", "RuntimeError")


def kernel_cells(request: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """(rows {sm, layer: `moe-nvfp4` | `linear-fp8` | …, chosen, why}, late refusals {sm, kv_cache_dtype, raises}, problems).

    `why` where the engine refuses. One process for each GPU generation, forked after torch and before anything of the engine is imported:
    its modules remember the GPU that they were imported on.
    """
    reach.surround(request)
    _preload()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: _write(folder, name, model, quantization) for name, (model, quantization) in FORMATS.items()}
        with context.Pool(processes=2, maxtasksperchild=1) as pool:
            found = pool.starmap(_on, [(sm, paths, request) for sm in KERNEL_SMS], chunksize=1)
    return [c for f in found for c in f[0]], [x for f in found for x in f[1]], [p for f in found for p in f[2]]


def _preload() -> None:
    """What the engine imports and what knows nothing of GPUs: most of the time goes there, so it is done once for all of them."""
    for name in ("transformers", "compressed_tensors", "openai", "fastapi", "pydantic"):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _on(
    sm: tuple[int, int], paths: dict[str, str], request: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    number = sm[0] * 10 + sm[1]
    reach.on_gpu(request, number)
    rank.prepare_engine()
    cells: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, path in paths.items():
        try:
            cells += [{"sm": number, "layer": _row_name(kind, name), **row} for kind, row in _layer(path, name).items()]
        except Exception as e:
            if type(e).__name__ in REFUSALS:
                cells += [{"sm": number, "layer": _row_name(kind, name), "chosen": None, "why": _why(e)} for kind in _kinds(name)]
            else:
                problems.append(f"sm{number} {name}: {_why(e)}")
    found = [{"sm": number, "kv_cache_dtype": dtype, "raises": text} for dtype in _dtypes() if (text := _late(paths["bf16"], dtype))]
    return cells, found, problems


def _dtypes() -> list[str]:
    return [dtype for dtype in LATE_DTYPES if dtype in cache_dtypes()]


def _late(path: str, dtype: str) -> str | None:
    """What is raised for a KV cache dtype outside the selector; its own refusals are in the table already."""
    try:
        config, _ = settings.engine_config(path, ["--kv-cache-dtype", dtype])
        rank.fake_world(1, 0)
        with rank.as_rank(config, 0):
            rank.build(config, 0)
            layers = cache.specs(config)
            cache.settle_layout(config, [layers])
            return late.refusal(config, layers)
    except Exception as e:
        own = type(e).__name__ in REFUSALS and "No valid attention backend" not in str(e)
        return _why(e).split(": ", 1)[1] if own else None


def _kinds(name: str) -> tuple[str, ...]:
    """gpt-oss quantizes its experts alone; bf16 linear layers have one kernel. MXFP4's linear layers are asked about on their own."""
    return {"bf16": ("moe",), "mxfp4": ("moe",), "mxfp4-dense": ("linear",)}.get(name, ("moe", "linear"))


def _row_name(kind: str, name: str) -> str:
    return f"{kind}-{name.removesuffix('-dense')}"


def _layer(path: str, name: str) -> dict[str, dict[str, Any]]:
    config, _ = settings.engine_config(path, [])
    rank.fake_world(1, 0)
    with rank.as_rank(config, 0):
        rows = choices.kernels(rank.build(config, 0))
    found = {row["layer"]: {"chosen": row["chosen"] or row["format"]} for row in rows if "KVCache" not in row["format"]}
    return {kind: found[kind] for kind in _kinds(name) if kind in found}


def _write(folder: str, name: str, model: dict[str, Any], quantization: dict[str, Any] | None) -> str:
    path = os.path.join(folder, name)
    os.makedirs(path)
    document = dict(model) if quantization is None else {**model, "quantization_config": quantization}
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(document, file)
    return path


def _why(error: Exception) -> str:
    text = str(error)
    with contextlib.suppress(IndexError):
        text = text.split("Value error, ", 1)[1].split(" [type=", 1)[0]
    return f"{type(error).__name__}: {text[:300]}"
