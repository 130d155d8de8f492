"""Which kernels the engine chose: read from the model that it built, with the reasons it gave for what it did not choose."""

from __future__ import annotations

import enum
import re
from typing import Any

from .cache import backend_of
from .sweep import reasons


class Watch:
    """Listens at the platform's selector, so that a rejected backend keeps the engine's own reason."""

    def __init__(self, platform: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        if not hasattr(platform, "get_valid_backends"):  # platforms with one backend have no selector
            return
        original = platform.get_valid_backends

        def listening(device_capability: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> Any:
            valid, rejected = original(device_capability, attn_selector_config, *args, **kwargs)
            asked = attn_selector_config._asdict()
            row = {"layer": layer_name(asked), "kv_cache_dtype": str(asked["kv_cache_dtype"]), "valid": len(valid)}
            self.seen.append({**row, "rejected": reasons(rejected)})
            return valid, rejected

        platform.get_valid_backends = listening

    def rejected(self, layer: str, kv_cache_dtype: str) -> dict[str, list[str]]:
        for entry in self.seen:
            if entry["layer"] == layer and entry["kv_cache_dtype"] == kv_cache_dtype:
                return dict(entry["rejected"])
        return {}


def layer_name(config: dict[str, Any]) -> str:
    """The table's name for an attention layer: `gqa128`, `gqa64+sink`, `mla576+dsa`."""
    base = ("mla" if config.get("use_mla") else "gqa") + str(config["head_size"])
    return base + ("+sink" if config.get("has_sink") else "") + ("+dsa" if config.get("use_sparse") else "")


def attention(context: dict[str, Any], watch: Watch) -> list[dict[str, Any]]:
    """One row per kind of attention layer: {layer, kv_cache_dtype, chosen, rejected, count}."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for module in context.values():
        backend = backend_of(module)
        if backend is None or not hasattr(backend, "get_name"):
            continue
        layer, dtype = _layer_of(module), str(getattr(module, "kv_cache_dtype", "auto"))
        row = rows.setdefault((layer, dtype, backend.get_name()), {"count": 0, "rejected": watch.rejected(layer, dtype)})
        row["count"] += 1
    found = [{"layer": k[0], "kv_cache_dtype": k[1], "chosen": k[2], **row} for k, row in rows.items()]
    return sorted(found, key=lambda row: not re.match("gqa|mla", row["layer"]))  # attention first, state and index caches after it


def _layer_of(module: Any) -> str:
    mla = hasattr(module, "kv_lora_rank")
    if not mla and not hasattr(module, "head_size"):
        return type(module).__name__
    sparse = bool(getattr(module, "use_sparse", False) or getattr(module, "indexer", None))
    return layer_name(
        {
            "use_mla": mla,
            "head_size": getattr(module, "head_size", None) or module.kv_lora_rank + module.qk_rope_head_dim,
            "has_sink": bool(getattr(module, "has_sink", False)),
            "use_sparse": sparse,
        }
    )


def kernels(model: Any) -> list[dict[str, Any]]:
    """MoE and linear kernels: {layer: `moe` | `linear`, format: the quantization method, chosen, count}."""
    rows: dict[tuple[str, str, str | None], int] = {}
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None:
            continue
        name = type(method).__name__
        kind = "moe" if hasattr(module, "w13_weight") or re.search("moe|experts", name, re.I) else "linear"
        if kind == "linear" and re.match("Unquantized", name):
            continue
        scheme = getattr(module, "scheme", None)
        found = kernel_of(method) or (kernel_of(scheme) if scheme is not None else None)
        key = (kind, type(scheme).__name__ if scheme is not None else name, found)
        rows[key] = rows.get(key, 0) + 1
    return [{"layer": k[0], "format": k[1], "chosen": k[2], "count": n} for k, n in rows.items()]


def kernel_of(method: Any) -> str | None:
    """The kernel that a quantization method has picked: releases keep it as an enum, a kernel object, a class or a flag."""
    held = {name: value for name, value in vars(method).items() if value is not None}
    if held.get("use_marlin") is True:
        return "MARLIN"
    for name, value in held.items():
        if isinstance(value, enum.Enum) and re.search("backend|kernel", name, re.I):
            return str(value.name)
    # A method for blocks of scales keeps the kernel for whole tensors beside its own.
    block_first = sorted(held, key=lambda name: "block" not in name) if held.get("block_quant") else list(held)
    for name in block_first:
        if re.search("kernel|fp8_linear|experts_cls|block_fp8", name, re.I) and (found := _named(held[name])):
            return found
    for name, value in held.items():
        if re.search("backend", name, re.I) and isinstance(value, str):
            return value
    inner = next((v for n, v in held.items() if n in ("moe_quant_method", "scheme", "base_quant_method")), None)
    return kernel_of(inner) if inner is not None else None


def _named(value: Any) -> str | None:
    """A kernel object by its class; a dispatcher by the function that it dispatches to (`_run_cutlass` -> `CUTLASS`)."""
    if getattr(value, "is_deep_gemm_supported", False) is True:
        return "DEEP_GEMM"
    run = getattr(value, "w8a8_blockscale_op", None)
    if callable(run):
        return str(getattr(run, "__name__", type(run).__name__)).removeprefix("_run_").upper()
    kind = value if isinstance(value, type) else type(value)
    return kind.__name__ if re.search("Kernel|Experts|Linear", kind.__name__) else None
