"""What a plan is computed from, with nonsense made unknown: configs, checkpoints and machines are files that anybody may have written.

Limits are far above anything that exists; what is beyond them, negative, not finite or of the wrong type is missing (None), never 0.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, MoeSpec, TensorGroup
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.units import GIB

LAYERS, POSITIONS, WIDTH, COUNT, HEADS = 4096, 1 << 31, 1 << 22, 1 << 20, 1 << 16
BYTES, SPEED = 1 << 50, 1e15
TENSOR = 1 << 44  # elements of one tensor
# Sizes that a plan reads, each with the largest that can be meant. A list (sizes by layer) is left out without a word.
SIZES: dict[str, float] = {
    **dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "head_dim", "global_head_dim", "v_head_dim"), HEADS
    ),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "rotary_dim"), HEADS),
    **dict.fromkeys(("hidden_size", "q_lora_rank", "o_lora_rank"), WIDTH),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 8 * WIDTH),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), COUNT),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token", "top_k_experts"), COUNT),
    **dict.fromkeys(("max_position_embeddings", "index_topk"), POSITIONS),
    "num_hidden_layers": LAYERS,
    "vocab_size": 1 << 26,
    "partial_rotary_factor": 1,
}
ZERO_IS_NONE = frozenset({"num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "num_hidden_layers", "vocab_size"})


def sound_checkpoint(checkpoint: Checkpoint) -> tuple[Checkpoint, Finding | None]:
    """The checkpoint without values that cannot be meant, and what they were."""
    absurd = {key: value for key, value in checkpoint.config.items() if key in SIZES and not _meant(key, value)}
    config = {k: v for k, v in checkpoint.config.items() if k not in absurd and not (k in SIZES and isinstance(v, list))}
    if not isinstance(config.get("model_type", ""), str):
        del config["model_type"]
    if not config.get("num_attention_heads"):
        config.pop("kv_lora_rank", None)  # a latent cache belongs to heads
    sound = msgspec.structs.replace(
        checkpoint,
        config=config,
        num_hidden_layers=_count(checkpoint.num_hidden_layers, LAYERS),
        hidden_size=_count(checkpoint.hidden_size, WIDTH),
        vocab_size=_count(checkpoint.vocab_size, 1 << 26),
        max_position_embeddings=_count(checkpoint.max_position_embeddings, POSITIONS),
        tensor_bytes=_count(checkpoint.tensor_bytes, BYTES),
        file_bytes=_count(checkpoint.file_bytes, BYTES),
        tensor_groups=_tensors(checkpoint.tensor_groups),
        kv_cache_groups=[g for g in map(_kv_group, checkpoint.kv_cache_groups) if g is not None],
        moe=_moe(checkpoint.moe),
        bytes_by_role={k: v for k, v in checkpoint.bytes_by_role.items() if 0 <= v <= BYTES},
    )
    return sound, _said(absurd)


def sound_machine(machine: Machine) -> Machine:
    return msgspec.structs.replace(
        machine,
        accelerators=[_accelerator(a) for a in machine.accelerators],
        memory_total_bytes=_count(machine.memory_total_bytes, BYTES),
        memory_available_bytes=_count(machine.memory_available_bytes, BYTES, least=0),
        memory_bandwidth_bytes_per_second=_speed(machine.memory_bandwidth_bytes_per_second),
        cgroup_memory_limit_bytes=_count(machine.cgroup_memory_limit_bytes, BYTES, least=0),
        cgroup_memory_used_bytes=_count(machine.cgroup_memory_used_bytes, BYTES, least=0),
        cpu_count=_count(machine.cpu_count, COUNT),
        numa_nodes=_count(machine.numa_nodes, 4096),
        storage=[msgspec.structs.replace(s, read_bytes_per_second=_speed(s.read_bytes_per_second)) for s in machine.storage],
    )


def _meant(key: str, value: Any) -> bool:
    """Missing, a list by layer, or a number within its limits."""
    if value is None or isinstance(value, list):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return (0 if key not in ZERO_IS_NONE else 1) <= value <= SIZES[key]


def _said(absurd: Mapping[str, Any]) -> Finding | None:
    if not absurd:
        return None
    return Finding(
        code="config-absurd-value",
        severity=Severity.WARNING,
        message="the config has sizes that cannot be meant: they count as missing",
        evidence=[f"{key}: {value!r}"[:120] for key, value in sorted(absurd.items())],
        hint="correct config.json, and plan again",
    )


def _count(value: Any, most: int, *, least: int = 1) -> Any:
    return value if isinstance(value, int) and least <= value <= most else None


def _speed(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and 0 < value <= SPEED else None


def _tensors(groups: Iterable[TensorGroup]) -> list[TensorGroup]:
    """Groups whose sizes can be; one that cannot makes the model's shape unknown."""
    found = list(groups)
    fine = all(
        0 <= g.count <= 1 << 32
        and all(0 < n <= TENSOR for n in g.shape)
        and math.prod(g.shape) <= TENSOR
        and max(g.layers, default=0) <= LAYERS
        for g in found
    )
    return found if fine else []


def _kv_group(group: KvCacheGroup) -> KvCacheGroup | None:
    """None: a page of that kind cannot be."""
    sizes = {k: v for k, v in group.bytes_per_token_per_layer.items() if math.isfinite(v) and 0 < v <= GIB}
    state = _count(group.state_bytes_per_request, BYTES)
    if not sizes and state is None and group.kind != "shared":
        return None
    heads, window = _count(group.kv_heads, HEADS), _count(group.window, 1 << 40)
    layers = [n for n in group.layers if 0 <= n <= LAYERS]
    return msgspec.structs.replace(
        group, layers=layers, bytes_per_token_per_layer=sizes, state_bytes_per_request=state, kv_heads=heads, window=window
    )


def _moe(moe: MoeSpec | None) -> MoeSpec | None:
    return moe if moe is None or 0 < moe.num_experts <= COUNT else None


def _accelerator(gpu: Accelerator) -> Accelerator:
    return msgspec.structs.replace(
        gpu,
        sm=_count(gpu.sm, 999, least=10),
        cuda_total_bytes=_count(gpu.cuda_total_bytes, BYTES, least=1 << 20),
        driver_total_bytes=_count(gpu.driver_total_bytes, BYTES, least=1 << 20),
        free_bytes=_count(gpu.free_bytes, BYTES, least=0),
        memory_bandwidth_bytes_per_second=_speed(gpu.memory_bandwidth_bytes_per_second),
    )
