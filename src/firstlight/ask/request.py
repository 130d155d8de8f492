"""What is put to vLLM: the plan's flags, the GPU it is asked about, the ranks worth building, the bytes left for KV cache."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from firstlight.core.errors import InputError
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.plan import Candidate, MemoryBudget

# Candidate's field -> the engine's flag and its short forms.
FLAGS = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "data_parallel_size": ("--data-parallel-size", "-dp"),
    "decode_context_parallel_size": ("--decode-context-parallel-size", "-dcp"),
    "max_model_len": ("--max-model-len",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "gpu_memory_utilization": ("--gpu-memory-utilization",),
    "kv_cache_memory_bytes": ("--kv-cache-memory-bytes", "--kv-cache-memory"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
}
# The HTTP server's own business: they change no byte, and some want the tokenizer. Flag -> how many values follow it.
LEFT_OUT = {
    "--reasoning-parser": 1,
    "--tool-call-parser": 1,
    "--enable-auto-tool-choice": 0,
    "--chat-template": 1,
    "--served-model-name": 1,
}
_ALONE = {"data_parallel_size": 1, "decode_context_parallel_size": 1, "pipeline_parallel_size": 1, "tensor_parallel_size": 1}


class Gpu(Struct, frozen=True, kw_only=True):
    """The GPU asked about. sm: 120; memory: CUDA's total in bytes."""

    sm: int
    count: int
    memory: int
    name: str


def gpu_of(machine: Machine) -> Gpu:
    """The machine's GPUs as one kind. Raises InputError `no-gpu`, `gpu-unknown`."""
    if not machine.accelerators:
        raise InputError(
            "no-gpu",
            "this machine has no GPU to ask about",
            evidence=(f"machine: {machine.hostname}",),
            hint="name one with --gpu 8xrtx-pro-6000-blackwell",
        )
    smallest = min(machine.accelerators, key=_memory)
    if smallest.sm is None or not _memory(smallest):
        raise InputError(
            "gpu-unknown",
            f"nothing is known about the GPU {smallest.name}",
            evidence=(f"compute capability: {smallest.sm}", f"memory: {_memory(smallest) or 'unknown'}"),
            hint="`firstlight get gpus` lists the known ones",
        )
    return Gpu(sm=smallest.sm, count=len(machine.accelerators), memory=_memory(smallest), name=smallest.name)


def cpu_of(machine: Machine) -> Gpu:
    """A host without GPUs, for the CPU build that serves on it: its memory is the host's."""
    return Gpu(sm=0, count=1, memory=machine.memory_total_bytes or 0, name=machine.cpu_model or "CPU")


def _memory(gpu: Accelerator) -> int:
    return gpu.cuda_total_bytes or gpu.driver_total_bytes or 0


def flags(candidate: Candidate) -> list[str]:
    """The engine's flags for a candidate: its own `args`, and every field that they do not say already."""
    said = {re.sub("_", "-", a.split("=", 1)[0]) for a in candidate.args if a.startswith("-")}
    out = _engine_args(candidate.args)
    for field, names in FLAGS.items():
        value = getattr(candidate, field)
        if value is not None and value != _ALONE.get(field) and not said.intersection(names):
            out += [names[0], str(value)]
    if candidate.enable_expert_parallel and not said & {"--enable-expert-parallel", "-ep"}:
        out.append("--enable-expert-parallel")
    return out


def _engine_args(args: Sequence[str]) -> list[str]:
    out: list[str] = []
    skip = 0
    for arg in args:
        if skip:
            skip -= 1
            continue
        name, equals, _ = arg.partition("=")
        if name in LEFT_OUT:
            skip = 0 if equals else LEFT_OUT[name]
        else:
            out.append(arg)
    return out


def stages(candidate: Candidate) -> list[int]:
    """One rank of every pipeline stage: ranks of one stage hold the same bytes."""
    size = candidate.tensor_parallel_size
    return [stage * size for stage in range(candidate.pipeline_parallel_size)]


def request(candidate: Candidate, gpu: Gpu, folder: str) -> dict[str, Any]:
    """The question without what concerns its answering (where the engine is, time and memory limits)."""
    return {
        "do": "ask",
        "gpu": {"sm": gpu.sm, "count": max(gpu.count, _world(candidate)), "memory": gpu.memory, "name": gpu.name},
        "memory": gpu.memory,
        "model": folder,
        "args": flags(candidate),
        "ranks": stages(candidate),
        "kv_bytes": candidate.kv_cache_memory_bytes,
        "beside_weights": beside_weights(candidate.per_gpu),
    }


def beside_weights(budget: MemoryBudget | None) -> int | None:
    """Bytes that the plan leaves to everything but weights and KV cache; None when it does not know."""
    if budget is None:
        return None
    parts = [budget.activation_peak.mid, budget.cuda_graphs.mid, budget.non_torch.mid]
    return sum(int(p) for p in parts if p is not None) if any(p is not None for p in parts) else None


def _world(candidate: Candidate) -> int:
    return candidate.tensor_parallel_size * candidate.pipeline_parallel_size * candidate.data_parallel_size
