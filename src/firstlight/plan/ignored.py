"""ModelOpt's ignore list as vLLM reads it: an entry also excludes every module whose name merely contains it.

`model.layers.0.mlp.gate` (the router) thereby also excludes layer 0's `mlp.gate_up_proj`, which is then built in bf16. Only a model
without weights can be planned so: with quantized weights on disk the same reading makes the load fail, which preflight says.
Source: vllm/model_executor/layers/quantization/modelopt.py, `is_layer_excluded`; seen on vLLM 0.25.1 (H200).
"""

import re

import msgspec

from firstlight.core.checkpoint import Checkpoint, TensorGroup

_PART = re.compile(r"\.(gate_proj|up_proj|q_proj|k_proj|v_proj)\.")
_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}


def as_built(checkpoint: Checkpoint, groups: list[TensorGroup]) -> list[TensorGroup]:
    """The groups with what the engine would build unquantized; unchanged for any checkpoint that has weights."""
    quant = checkpoint.quantization
    if checkpoint.format != "config-only" or quant is None or quant.method != "modelopt":
        return groups
    entries = [e.removeprefix("language_model.") for e in quant.ignore if "*" not in e]
    return [part for group in groups for part in _parts(group, entries)]


def _parts(group: TensorGroup, entries: list[str]) -> list[TensorGroup]:
    """A quantized group split into layers that stay quantized and layers that do not."""
    match = _PART.search(group.pattern)
    if match is None or group.dtype not in ("U8", "F8_E4M3", "F32") or not group.layers or "{expert}" in group.pattern:
        return [group]
    module = group.pattern[: match.start(1)] + _FUSED[match[1]]
    caught = [n for n in group.layers if any(e in module.replace("{layer}", str(n)) for e in entries)]
    if not caught:
        return [group]
    rest = [n for n in group.layers if n not in caught]
    out = [msgspec.structs.replace(group, layers=rest, count=len(rest))] if rest else []
    if group.pattern.endswith(".weight"):
        shape = [*group.shape[:-1], group.shape[-1] * (2 if group.dtype == "U8" else 1)]
        out.append(msgspec.structs.replace(group, dtype="BF16", shape=shape, layers=caught, count=len(caught)))
    return out
