"""Resident bytes per rank: each tensor's shard-or-replicate rule as vLLM builds it, not the stored bytes divided by GPUs.

Rules follow vllm/model_executor: linear.py (column, row, QKV and vocabulary sharding), layers/mla.py (replicated down-projections, the
extra W_UV and W_UK copies), layers/fused_moe (experts over TP x DP, by slice or whole), models/* for what stays replicated.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint, TensorGroup
from firstlight.plan.allocator import allocated_bytes
from firstlight.plan.ignored import as_built
from firstlight.plan.layouts import Layout, stage_layers
from firstlight.plan.numbers import number
from firstlight.plan.rope import rope_bytes

ELEMENT_BYTES = {
    "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "I32": 4, "I64": 8, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "F4": 0.5, "F6_E2M3": 0.75, "F6_E3M2": 0.75,
}  # fmt: skip
_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_KEEPS_FLOAT32 = re.compile(r"(e_score_correction_bias|A_log|scale\w*|weight_scale_\d|weight_global_scale)$")
VOCAB_PAD = 64


class Options(Struct, frozen=True, kw_only=True):
    """What changes residency besides the layout. mxfp4: MoE backend by its padding (marlin | triton | trtllm | exact).

    mxfp4_keeps_scales: Triton's scales stay in both their forms.
    """

    model_dtype_bytes: int = 2
    encoder_data_parallel: bool = False
    language_model_only: bool = False
    mxfp4: str = "exact"
    mxfp4_keeps_scales: bool = False
    draft: bool = False
    expandable_segments: bool = False


class StageWeights(Struct, frozen=True, kw_only=True):
    """One pipeline stage's rank. tensors: bytes of parameters; allocated: as the caching allocator counts them."""

    stage: int
    layers: range
    tensors: int
    allocated: int
    by_role: dict[str, int] = {}


# (pattern on the name, fused module, rule). The first match wins. Rules: column, row, kv, vocab, replicate, expert-column, expert-row.
_RULES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), module, rule)
    for pattern, module, rule in (
        (r"shared_expert_gate", "shared_gate", "replicate"),
        (r"(shared_experts?|share_expert|shared_mlp)\.(gate_proj|up_proj|w1|w3|gate_up_proj)", "shared_gate_up", "column"),
        (r"(shared_experts?|share_expert|shared_mlp)\.(down_proj|w2)", "shared_down", "row"),
        (r"experts.*\.?(gate_up_proj|gate_proj|up_proj|w1|w3|w13)", "w13", "expert-column"),
        (r"experts.*\.?(down_proj|w2)", "w2", "expert-row"),
        (r"\.(gate|router|wg)(\.|$)|e_score_correction_bias|\.router", "router", "replicate"),
        (r"\.indexer\.|\.index_", "indexer", "replicate"),
        (r"(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj)", "qkv_a", "replicate"),
        (r"(norm|layernorm|ln_\w+)(\.weight|\.bias)?$", "norm", "replicate"),
        (r"q_b_proj", "q_b", "column"),
        (r"kv_b_proj", "kv_b", "column"),
        (r"\.(k_proj|v_proj)", "qkv", "kv"),
        (r"\.(q_proj|qkv_proj|query_key_value|c_attn|W_pack)", "qkv", "column"),
        (r"\.sinks$", "sinks", "column"),
        (r"(linear_attn|mamba|mixer|ssm)\.(out_proj)", "out_proj", "row"),
        (r"linear_attn\.in_proj_(qkvz|qkv|z)", "in_proj_qkvz", "column"),
        (r"linear_attn\.in_proj_(ba|a|b)", "in_proj_ba", "column"),
        (r"(linear_attn|mamba|mixer|ssm)\.", "mixer", "column"),
        (r"\.(o_proj|out_proj|dense|c_proj|wo)(\.|$)", "o_proj", "row"),
        (r"\.(gate_proj|up_proj|gate_up_proj|w1|w3|fc1|c_fc|dense_h_to_4h)(\.|$)", "gate_up", "column"),
        (r"\.(down_proj|w2|fc2|dense_4h_to_h)(\.|$)", "down", "row"),
    )
)
_ORDER = {
    name: place
    for place, name in enumerate(
        ("qkv_a", "qkv", "q_b", "kv_b", "o_proj", "in_proj_qkvz", "in_proj_ba", "mixer", "out_proj", "sinks", "indexer", "router",
         "w13", "w2", "shared_gate", "shared_gate_up", "shared_down", "gate_up", "down", "norm")
    )
}  # fmt: skip


class Resident:
    """A model's resident bytes under every layout; what layouts share is computed once."""

    def __init__(self, checkpoint: Checkpoint, options: Options) -> None:
        self.checkpoint = checkpoint
        self.options = options
        self.layers = checkpoint.num_hidden_layers or 0
        self.groups = [g for g in as_built(checkpoint, checkpoint.tensor_groups) if _kept(g, self.layers, options)]
        self._kinds = _layer_kinds([g for g in self.groups if _in_stack(g, self.layers)])
        self._known: dict[tuple[int, int, int, bool], list[StageWeights]] = {}

    def stages(self, layout: Layout) -> list[StageWeights]:
        """One entry per pipeline stage; the ranks of a stage hold the same number of bytes."""
        key = (layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.expert_ways, layout.enable_expert_parallel)
        if key not in self._known:
            self._known[key] = self._build(layout)
        return self._known[key]

    def least_bytes(self, world: int) -> float:
        """No rank of `world` can hold less than this: everything split evenly."""
        return sum(math.prod(g.shape) * g.count * _element_bytes(g, self.options) for g in self.groups) * 0.97 / world

    def _build(self, layout: Layout) -> list[StageWeights]:
        ranges = stage_layers(self.layers, layout.pipeline_parallel_size)
        per_layer: dict[int, list[tuple[str, int]]] = {}
        for groups, layers in self._kinds:
            parameters = _layer_parameters(self.checkpoint, groups, layout, self.options)
            per_layer |= dict.fromkeys(layers, parameters)
        return [
            _stage(self.checkpoint, n, layers, per_layer, self.groups, layout, self.options, len(ranges)) for n, layers in enumerate(ranges)
        ]


def weights_by_stage(checkpoint: Checkpoint, layout: Layout, options: Options) -> list[StageWeights]:
    """One layout's resident bytes, a stage an entry."""
    return Resident(checkpoint, options).stages(layout)


def _layer_kinds(groups: Sequence[TensorGroup]) -> list[tuple[list[TensorGroup], list[int]]]:
    """Layers that are made of the same groups, with those groups."""
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        for layer in group.layers:
            members.setdefault(layer, []).append(place)
    kinds: dict[tuple[int, ...], list[int]] = {}
    for layer, numbers in members.items():
        kinds.setdefault(tuple(numbers), []).append(layer)
    return [([groups[n] for n in numbers], layers) for numbers, layers in kinds.items()]


def shard_bytes(group: TensorGroup, rule: str, config: dict[str, Any], layout: Layout, options: Options) -> int:
    """Bytes of one of the group's tensors on one rank (for expert rules: of one expert's tensor, or of the stacked tensor)."""
    tp, element = layout.tensor_parallel_size, _element_bytes(group, options)
    count = math.prod(group.shape) if group.shape else 1
    if rule == "vocab":
        rows = -(-group.shape[0] // VOCAB_PAD) * VOCAB_PAD
        return round(-(-rows // tp) * (count // max(group.shape[0], 1)) * element)
    if rule in ("replicate", "expert-column", "expert-row") or count == 1:
        return round(count * element)
    if rule == "row" and (group.pattern.endswith("bias") or (len(group.shape) == 2 and group.shape[1] == 1)):
        return round(count * element)
    ways = min(tp, kv_heads(config)) if rule == "kv" else tp
    if len(group.shape) >= 2 and group.dtype == "F8_E4M3" and group.pattern.endswith("weight_scale"):
        return _swizzled_scale(group.shape, rule, ways)
    return -(-round(count * element) // ways)


def kv_heads(config: dict[str, Any]) -> int:
    return number(config, "num_key_value_heads") or number(config, "num_attention_heads") or 1


def _swizzled_scale(shape: Sequence[int], rule: str, ways: int) -> int:
    """NVFP4 block scales after swizzling: rows to 128, columns to 4."""
    rows, columns = shape[0], math.prod(shape[1:])
    rows, columns = (rows, -(-columns // ways)) if rule == "row" else (-(-rows // ways), columns)
    return -(-rows // 128) * 128 * (-(-columns // 4) * 4)


def _element_bytes(group: TensorGroup, options: Options) -> float:
    """Floating-point parameters take the model's dtype whatever the file has; scales and a few others stay float32."""
    if group.pattern.endswith("weight_scale_inv"):
        return 4
    if options.mxfp4 == "triton" and group.role == "routed_experts" and group.pattern.endswith("_bias"):
        return 4  # gpt-oss's expert biases
    if group.dtype in _FLOATS:
        return 4 if _KEEPS_FLOAT32.search(group.pattern) else options.model_dtype_bytes
    return ELEMENT_BYTES.get(group.dtype, 2)


def _kept(group: TensorGroup, layers: int, options: Options) -> bool:
    """Multi-token prediction is loaded only as a drafter, encoders not at all with --language-model-only."""
    if group.role == "mtp" or (group.layers and min(group.layers) >= layers and group.role not in ("vision", "projector")):
        return options.draft
    return not (options.language_model_only and group.role in ("vision", "projector"))


def _in_stack(group: TensorGroup, layers: int) -> bool:
    return bool(group.layers) and group.role not in ("vision", "projector", "mtp") and min(group.layers) < layers


def rule_of(group: TensorGroup) -> tuple[str, str]:
    """(fused module, rule) of a group in the stack."""
    for pattern, module, rule in _RULES:
        if pattern.search(group.pattern):
            return module, rule
    return group.pattern.rsplit(".", 2)[-2], "column" if group.role in ("attention", "dense_mlp") and len(group.shape) > 1 else "replicate"


def _layer_parameters(checkpoint: Checkpoint, groups: Iterable[TensorGroup], layout: Layout, options: Options) -> list[tuple[str, int]]:
    """One layer's (role, bytes) of each fused parameter, in the order that the engine creates them."""
    fused: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        module, rule = rule_of(group)
        last = group.pattern.rpartition(".")[2]
        suffix = group.pattern if module == "norm" else last.replace("blocks", "").replace("scales", "")
        entry = fused.setdefault((module, suffix), [group.role, 0])
        entry[1] += _layer_bytes(group, rule, checkpoint, layout, options)
    ordered = sorted(fused.items(), key=lambda p: _ORDER.get(p[0][0], len(_ORDER)))
    copies = mla_copies(checkpoint.config, layout) if any(module == "kv_b" for module, _ in fused) else []
    return [(role, size) for _, (role, size) in ordered] + [("attention", c) for c in copies]


def _layer_bytes(group: TensorGroup, rule: str, checkpoint: Checkpoint, layout: Layout, options: Options) -> int:
    """One layer's bytes of a group on one rank, experts and MXFP4 padding included."""
    one = shard_bytes(group, rule, checkpoint.config, layout, options)
    per_layer = group.count // max(len(group.layers), 1)
    if not rule.startswith("expert"):
        return one * per_layer
    if group.pattern.endswith(("_blocks", "_scales")):
        return _mxfp4_bytes(group, layout, options)
    total = one * per_layer
    ways = layout.expert_ways
    if not layout.enable_expert_parallel and ((group.pattern.endswith("bias") and rule == "expert-row") or not group.shape):
        return total
    experts = group.shape[0] if len(group.shape) >= 3 and "{expert}" not in group.pattern else per_layer
    return total * -(-experts // ways) // experts if layout.enable_expert_parallel else -(-total // ways)


def _mxfp4_bytes(group: TensorGroup, layout: Layout, options: Options) -> int:
    """gpt-oss experts `[E, rows, columns/32(, 16)]` as the MoE backend wants them.

    marlin, trtllm: intermediate padded to 128, hidden to 256, when the parameter is made. triton: intermediate to 64; Hopper's scale
    layout pads rows to 256, and up to 0.24 the scales as loaded stay beside it. Sources: fused_moe/oracle/mxfp4.py, triton_kernels'
    hopper_scale.py; checked on two public figures of gpt-oss-120b and an own start of gpt-oss-20b.
    """
    experts, rows, blocks = (*group.shape[:3], 1, 1, 1)[:3]
    ways = 1 if layout.enable_expert_parallel else layout.expert_ways
    experts = -(-experts // layout.expert_ways) if layout.enable_expert_parallel else experts
    up = "gate_up" in group.pattern
    hidden, inner = (blocks * 32, -(-rows // 2 // ways)) if up else (rows, -(-blocks * 32 // ways))
    if options.mxfp4 in ("marlin", "trtllm"):
        hidden, inner = _pad(hidden, 256), _pad(inner, 128)
    elif options.mxfp4 == "triton":
        inner = _pad(inner, 64)
    rows, columns = (2 * inner, hidden) if up else (hidden, inner)
    if group.pattern.endswith("_blocks"):
        return experts * rows * columns // 2
    scales = experts * rows * columns // 32
    if options.mxfp4 != "triton":
        return scales
    swizzled = experts * _pad(rows, 256) * _pad(columns // 32, 2)
    return swizzled + (scales if options.mxfp4_keeps_scales else 0)


def mla_copies(config: dict[str, Any], layout: Layout) -> list[int]:
    """W_UV and W_UK_T, kept next to kv_b_proj in bf16 for the absorbed form. Bytes per layer."""
    rank, nope, value = (number(config, key) for key in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    if not rank or not nope:
        return []
    heads = -(-number(config, "num_attention_heads") // layout.tensor_parallel_size)
    return [heads * rank * value * 2, heads * rank * nope * 2]


def _stage(
    checkpoint: Checkpoint,
    stage: int,
    layers: range,
    per_layer: dict[int, list[tuple[str, int]]],
    groups: Sequence[TensorGroup],
    layout: Layout,
    options: Options,
    stages: int,
) -> StageWeights:
    """The stage's parameters in creation order: embedding, layers, head, encoders."""
    sizes: list[tuple[str, int]] = []
    total = checkpoint.num_hidden_layers or 0
    first, last = stage == 0, stage == stages - 1
    outside = [g for g in groups if not _in_stack(g, total)]
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    for group in outside:
        if group.role == "embedding" and (first or (last and tied)):
            sizes.append(("embedding", _outside_bytes(group, checkpoint, layout, options)))
    for layer in layers:
        sizes += per_layer.get(layer, ())
    for group in outside:
        here = last if group.role in ("lm_head", "norm", "mtp") or min(group.layers, default=0) >= total > 0 else first
        if group.role == "lm_head" and tied:
            continue
        if group.role != "embedding" and here:
            one = _outside_bytes(group, checkpoint, layout, options)
            sizes += [(group.role, one)] * group.count
    sizes.append(("other", rope_bytes(checkpoint.config, options.model_dtype_bytes)))
    by_role: dict[str, int] = {}
    for role, size in sizes:
        by_role[role] = by_role.get(role, 0) + size
    return StageWeights(
        stage=stage,
        layers=layers,
        tensors=sum(by_role.values()),
        allocated=allocated_bytes((size for _, size in sizes), expandable=options.expandable_segments),
        by_role=by_role,
    )


def _outside_bytes(group: TensorGroup, checkpoint: Checkpoint, layout: Layout, options: Options) -> int:
    """One tensor outside the stack: vocabulary tables, encoders, projectors, drafters."""
    if group.role in ("embedding", "lm_head") and len(group.shape) == 2:
        return shard_bytes(group, "vocab", checkpoint.config, layout, options)
    if group.role == "vision" and len(group.shape) == 2 and group.layers and not options.encoder_data_parallel:
        return shard_bytes(group, "column", checkpoint.config, layout, options)
    if group.role == "projector" and re.search(r"merger", group.pattern) and len(group.shape) == 2 and not options.encoder_data_parallel:
        return shard_bytes(group, "column", checkpoint.config, layout, options)
    if group.role == "mtp" or (group.layers and group.role not in ("vision", "projector")):
        _module, rule = rule_of(group)
        one = shard_bytes(group, rule, checkpoint.config, layout, options)
        return -(-one // layout.expert_ways) if rule.startswith("expert") else one
    return shard_bytes(group, "replicate", checkpoint.config, layout, options)


def _pad(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
