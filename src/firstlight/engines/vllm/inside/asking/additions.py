"""What the engine adds to a model after its weights are loaded: it needs real data for that, so here are rules, each by name."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from .choices import kernel_of


def additions(model: Any) -> list[dict[str, Any]]:
    """Rules that apply to this model: {rule, sizes in bytes, because}."""
    found = [rule(model) for rule in (mla_absorbed, mxfp4_triton, nvfp4_scale_padding)]
    return [rule for rule in found if rule is not None and any(rule["sizes"])]


def mla_absorbed(model: Any) -> dict[str, Any] | None:
    """MLA keeps kv_b_proj and adds two bf16 copies of it for decoding: W_UV and W_UK_T. Releases differ in who holds the shape."""
    sizes: list[int] = []
    for module in model.modules():
        impl = getattr(module, "impl", None)
        if impl is None or not hasattr(impl, "kv_lora_rank"):
            continue
        shape = {name: getattr(impl, name, None) or getattr(module, name, 0) for name in ("kv_lora_rank", "v_head_dim", "qk_nope_head_dim")}
        sizes += [module.num_heads * shape["kv_lora_rank"] * shape[name] * 2 for name in ("v_head_dim", "qk_nope_head_dim")]
    return _rule("mla-absorbed", sizes, "W_UV and W_UK_T, bf16 copies of kv_b_proj for decoding, made after loading")


def mxfp4_triton(model: Any) -> dict[str, Any] | None:
    """Triton's MXFP4 kernels take swizzled scales and fp32 biases; early releases keep the scales as loaded beside them.

    Checked on gpt-oss-120b, 0.14.1, H100: the three terms are the 3.54 GiB between the tensors as made and what was reported.
    """
    sizes: list[int] = []
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if not re.search("mxfp4", type(method).__name__, re.I) or "TRITON" not in (kernel_of(method) or "").upper():
            continue
        keeps = not _drops_old_scales(method)
        for name in ("w13", "w2"):
            sizes += _mxfp4_sizes(module, name, keeps)
    return _rule("mxfp4-triton", sizes, "swizzled scales (rows in tiles of 256 on SM90) and fp32 biases of Triton's MXFP4 kernels")


def _mxfp4_sizes(module: Any, name: str, keeps: bool) -> list[int]:
    import torch

    scale, weight, bias = (getattr(module, f"{name}_{part}", None) for part in ("weight_scale", "weight", "bias"))
    sizes = []
    if scale is not None and scale.dim() == 3:
        experts, rows, groups = scale.shape
        blackwell = torch.cuda.get_device_capability()[0] >= 10
        swizzled = experts * (_up(rows, 128) * _up(groups, 8) if blackwell else _up(rows, 256) * _up(groups, 2))
        sizes.append(swizzled if keeps else swizzled - scale.numel())
        if blackwell and weight is not None:
            sizes.append(experts * rows * (_up(weight.shape[-1], 128) - weight.shape[-1]))
    if bias is not None and bias.element_size() == 2:
        sizes.append(bias.numel() * 2)
    return sizes


def _drops_old_scales(method: Any) -> bool:
    """Whether this release frees the scales as loaded, read in its source: it changed without a sign that could be asked for."""
    for place in ("vllm.model_executor.layers.fused_moe.oracle.mxfp4", type(method).__module__):
        try:
            if "del layer.w13_weight_scale" in inspect.getsource(importlib.import_module(place)):
                return True
        except (ImportError, OSError):
            continue
    return False


def nvfp4_scale_padding(model: Any) -> dict[str, Any] | None:
    """NVFP4 scales are swizzled into tiles of 128 rows and 4 columns, except by Marlin, which keeps their size."""
    sizes: list[int] = []
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if not re.search("nvfp4|w4a4", type(method).__name__, re.I) or "MARLIN" in (kernel_of(method) or "").upper():
            continue
        scale = getattr(module, "weight_scale", None)
        if scale is not None and scale.dim() == 2:
            rows, columns = scale.shape
            sizes.append(_up(rows, 128) * _up(columns, 4) - rows * columns)
    return _rule("nvfp4-scale-swizzle", sizes, "NVFP4 scales in tiles of 128 x 4")


def _up(value: int, to: int) -> int:
    return -(-int(value) // to) * to


def _rule(name: str, sizes: list[int], because: str) -> dict[str, Any] | None:
    return {"rule": name, "sizes": sizes, "because": because} if sizes else None
