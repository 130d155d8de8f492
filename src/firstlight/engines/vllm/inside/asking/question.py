"""One question about one model: configuration, then per rank the model, its bytes and backends, then the KV cache."""

from __future__ import annotations

import importlib
import time
from typing import Any

from . import additions, cache, choices, late, memory, rank, settings


def ask(request: dict[str, Any], platform: Any, answer: dict[str, Any]) -> None:
    """Fills `answer` step by step, so that a refusal keeps everything that was known before it."""
    began = time.monotonic()
    platform = platform or type(importlib.import_module("vllm.platforms").current_platform)
    watch = choices.Watch(platform)
    rank.prepare_engine()
    answer["phase"] = "config"
    config, unknown = settings.engine_config(request["model"], request.get("args", []))
    answer["config"], answer["unknown_flags"] = settings.resolved(config), unknown
    answer["seconds_config"] = round(time.monotonic() - began, 2)
    answer["ranks"], found = [], []
    for number in request.get("ranks") or [0]:
        answer["phase"] = "model"
        one, layers = _rank(config, number, platform, watch, answer)
        answer["ranks"].append(one)
        found.append(layers)
    answer["phase"] = "kv-cache"
    answer["config"] = settings.resolved(config)
    answer["kv_bytes"] = available = _kv_bytes(request, config, answer["ranks"])
    if available and any(found):
        answer["blocks"] = cache.blocks(config, found, [available] * len(found))
        answer["config"]["max_model_len"] = config.model_config.max_model_len


def _kv_bytes(request: dict[str, Any], config: Any, ranks: list[dict[str, Any]]) -> int | None:
    """Bytes for KV cache on the rank with least of them: as told, or what its weights and the plan's other parts leave."""
    if request.get("kv_bytes"):
        return int(request["kv_bytes"])
    if request.get("beside_weights") is None or not ranks:
        return None
    usable = int(request["memory"] * config.cache_config.gpu_memory_utilization)
    heaviest: int = max(rank["weights"]["allocated_bytes"] for rank in ranks)
    return max(0, usable - heaviest - int(request["beside_weights"]))


def _rank(config: Any, number: int, platform: Any, watch: choices.Watch, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    parallel = config.parallel_config
    rank.fake_world(parallel.world_size * parallel.data_parallel_size, number)
    with rank.as_rank(config, number):
        try:
            model = rank.build(config, number)
        finally:
            answer.setdefault("selector", watch.seen[:8])
        one: dict[str, Any] = {"rank": number, "model": type(model).__name__}
        one["weights"] = memory.weights(model, additions.additions(model))
        context = config.compilation_config.static_forward_context
        one["attention"], one["kernels"] = choices.attention(context, watch), choices.kernels(model)
        answer["phase"] = "kv-spec"
        cache.align_block_size(config, platform)
        layers = cache.specs(config)
        one["kv"] = cache.summary(layers)
        if layers:
            cache.settle_layout(config, [layers])
            one["late_refusal"] = late.refusal(config, layers)
    return one, layers
