"""KV cache: the engine's own specs of its layers, its groups, and how many blocks and tokens a number of bytes gives."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from .settings import accepted


def specs(config: Any) -> dict[str, Any]:
    """Layer name -> KVCacheSpec, without layers that share another's cache or need none."""
    found = {}
    customize = _find("customize_attention_spec", "vllm.v1.worker.utils")
    attention = importlib.import_module("vllm.v1.kv_cache_interface").AttentionSpec
    for name, layer in config.compilation_config.static_forward_context.items():
        if getattr(layer, "kv_sharing_target_layer_name", None) or not hasattr(layer, "get_kv_cache_spec"):
            continue
        spec = layer.get_kv_cache_spec(config)
        if not spec:
            continue
        if customize is not None and isinstance(spec, attention):
            spec = customize(layer.get_attn_backend(), spec)
        found[name] = spec
    return found


def align_block_size(config: Any, platform: Any) -> None:
    """Releases from 0.17 on settle the block size after the model is built, from the backends that its layers took."""
    if hasattr(platform, "update_block_size_for_backend"):
        platform.update_block_size_for_backend(config)


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Layers that cache alike: {kind, layers, block_size, page_bytes, bytes_per_token, dtype}."""
    rows: dict[tuple[Any, ...], int] = {}
    for spec in found.values():
        key = (type(spec).__name__, getattr(spec, "block_size", None), spec.page_size_bytes, _dtype(spec), _window(spec))
        rows[key] = rows.get(key, 0) + 1
    return [
        {
            "kind": kind,
            "layers": count,
            "block_size": block,
            "page_bytes": page,
            "bytes_per_token_per_layer": page / block if block and "Mamba" not in kind else None,
            "dtype": dtype,
            "window": window,
        }
        for (kind, block, page, dtype, window), count in rows.items()
    ]


def _dtype(spec: Any) -> str | None:
    dtype = getattr(spec, "cache_dtype_str", None) or getattr(spec, "dtype", None)
    return str(dtype).replace("torch.", "") if dtype is not None else None


def _window(spec: Any) -> int | None:
    return getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)


def blocks(config: Any, found: list[dict[str, Any]], available: list[int]) -> dict[str, Any]:
    """What `available` bytes (one number a rank, with that rank's specs) become. Raises the engine's ValueError when too little.

    {num_gpu_blocks, kv_tokens, max_concurrency, max_model_len, groups}. kv_tokens: max_concurrency x max_model_len, as the
    engine prints it from 0.20 on.
    """
    settle_layout(config, found)
    plan = _find("get_kv_cache_configs", "vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
    groups_of = _find("get_global_kv_cache_groups", "vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
    more = accepted(plan, global_kv_cache_groups=None) if groups_of is not None else {}
    if more:
        more = {"global_kv_cache_groups": groups_of(config, found)}
    configs = plan(config, found, available, **more)
    smallest = min(configs, key=lambda c: c.num_blocks)
    concurrency = _concurrency(config, smallest)
    length = config.model_config.max_model_len
    return {
        "num_gpu_blocks": smallest.num_blocks,
        "kv_tokens": int(concurrency * length) if concurrency is not None else None,
        "max_concurrency": round(concurrency, 4) if concurrency is not None else None,
        "max_model_len": length,
        "groups": [_group(g) for g in smallest.kv_cache_groups],
    }


def _group(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    return {"kind": type(spec).__name__, "layers": len(group.layer_names), "block_size": getattr(spec, "block_size", None)}


def _concurrency(config: Any, cache_config: Any) -> float | None:
    count = _find("get_max_concurrency_for_kv_cache_config", "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning")
    with contextlib.suppress(Exception):
        return float(count(config, cache_config))
    return None


def settle_layout(config: Any, found: list[dict[str, Any]]) -> None:
    """From 0.30 on the layout of the whole model is settled before the blocks are counted, from what all its backends support."""
    resolve = _find("resolve_kv_cache_layout", "vllm.v1.attention.backends.utils")
    supported = _find("get_supported_kv_cache_layouts", "vllm.v1.attention.backends.utils")
    if resolve is None or supported is None or getattr(config.cache_config, "kv_cache_layout", None) is not None:
        return
    layers = config.compilation_config.static_forward_context.values()
    backends = list(dict.fromkeys(b for layer in layers if (b := backend_of(layer)) is not None))
    names = [layout.name for layout in supported(backends)]
    resolve(config, [names], [spec for rank in found for spec in rank.values()])


def backend_of(layer: Any) -> Any:
    """The attention backend of a layer of the forward context; None for layers without one."""
    backend = getattr(layer, "attn_backend", None)
    if backend is None and hasattr(layer, "get_attn_backend"):
        with contextlib.suppress(Exception):
            backend = layer.get_attn_backend()
    return backend


def _find(name: str, *places: str) -> Any:
    """The function in the first of these modules that has it; a module that fails to import is an error, not an absence."""
    for place in places:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as e:
            if e.name is None or not place.startswith(e.name):
                raise
            continue
        if hasattr(module, name):
            return getattr(module, name)
    return None
