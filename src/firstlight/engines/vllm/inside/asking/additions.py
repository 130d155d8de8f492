"""What the engine adds to a model after its weights are loaded: it needs real data for that, so here are rules, each by name."""

from __future__ import annotations

import re
from typing import Any

from .choices import kernel_of


def additions(model: Any) -> list[dict[str, Any]]:
    """Rules that apply to this model: {rule, sizes in bytes, because}."""
    found = [rule(model) for rule in (mla_absorbed, mxfp4_padding, nvfp4_scale_padding)]
    return [rule for rule in found if rule is not None and any(rule["sizes"])]


def mla_absorbed(model: Any) -> dict[str, Any] | None:
    """MLA keeps kv_b_proj and adds two bf16 copies of it for decoding: W_UV and W_UK_T."""
    sizes: list[int] = []
    for module in model.modules():
        if all(hasattr(module, a) for a in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "num_heads", "kv_b_proj", "impl")):
            sizes += [module.num_heads * module.kv_lora_rank * width * 2 for width in (module.v_head_dim, module.qk_nope_head_dim)]
    return _rule("mla-absorbed", sizes, "W_UV and W_UK_T, bf16 copies of kv_b_proj for decoding, made after loading")


def mxfp4_padding(model: Any) -> dict[str, Any] | None:
    """Triton's swizzled MXFP4 layout rounds both dimensions of an expert's matrices up to 256; others pad when the tensors are made."""
    sizes: list[int] = []
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if not re.search("mxfp4", type(method).__name__, re.I) or "TRITON" not in (kernel_of(method) or "").upper():
            continue
        for name in ("w13_weight", "w2_weight"):
            weight = getattr(module, name, None)
            if weight is not None and weight.dim() == 3:
                experts, rows, packed = weight.shape
                sizes.append(experts * (_up(rows, 256) * _up(packed * 2, 256) // 2 - rows * packed))
    return _rule("mxfp4-triton-swizzle", sizes, "Triton's MXFP4 layout pads rows and columns to 256")


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
