"""Sums over tensor groups: bytes by dtype and role, parameters in all and per token."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from firstlight.core.checkpoint import Parameters, TensorGroup
from firstlight.inspect.config import integer
from firstlight.inspect.gguf import BY_NAME, gguf_bytes
from firstlight.inspect.safetensors import BITS, tensor_bytes

_SCALES = (
    "scale",
    "scales",
    "zero_point",
    "qzeros",
    "g_idx",
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    "weight_shape",
    "quant_state",
)
_PACKED_BITS = {"weight_packed": 4, "qweight": 4, "blocks": 4}


def group_bytes(group: TensorGroup) -> int | None:
    """Bytes of all tensors of a group; None for a dtype nobody knows."""
    shape = tuple(group.shape)
    each = tensor_bytes(group.dtype, shape) if group.dtype in BITS else gguf_bytes(group.dtype, shape) if group.dtype in BY_NAME else None
    return None if each is None else each * group.count


def bytes_by_dtype(groups: Iterable[TensorGroup]) -> dict[str, int]:
    return _sum_by(groups, "dtype")


def bytes_by_role(groups: Iterable[TensorGroup]) -> dict[str, int]:
    return _sum_by(groups, "role")


def _sum_by(groups: Iterable[TensorGroup], field: str) -> dict[str, int]:
    result: dict[str, int] = {}
    for g in groups:
        key = getattr(g, field)
        result[key] = result.get(key, 0) + (group_bytes(g) or 0)
    return dict(sorted(result.items(), key=lambda kv: -kv[1]))


def group_parameters(group: TensorGroup, bits: int | None = None) -> int:
    """Weights that a group stands for: packed ones are unpacked, scales count nothing. bits: of packed integers, where the config says."""
    last = group.pattern.rpartition(".")[2]
    if _is_scale(last):
        return 0
    numbers = prod(group.shape) * group.count
    if last.endswith(("qweight", "weight_packed")) and group.dtype in ("I32", "U32"):
        return numbers * 32 // (bits or 4)
    if last.endswith("_blocks") or (group.dtype in ("U8", "I8") and last in ("weight", "weight_packed")):
        return numbers * 2
    return numbers


def _is_scale(name: str) -> bool:
    return any(name == s or name.endswith("_" + s) for s in _SCALES) or "_scale" in name or name.startswith("scale")


def parameters(groups: Iterable[TensorGroup], config: Mapping[str, Any], bits: int | None = None) -> Parameters:
    """total: every weight. active: those one token meets: routed experts count in the share that is chosen; no draft layers."""
    listed = list(groups)
    if not listed:
        return Parameters()
    total = sum(group_parameters(g, bits) for g in listed)
    experts, chosen = integer(config, "num_experts"), integer(config, "num_experts_per_tok")
    routed = sum(group_parameters(g, bits) for g in listed if g.role == "routed_experts")
    aside = sum(group_parameters(g, bits) for g in listed if g.role in ("mtp", "vision", "projector"))
    if not routed:
        return Parameters(total=total, active=total - aside)
    active = total - routed - aside + routed * chosen // experts if experts and chosen else None
    return Parameters(total=total, active=active)
