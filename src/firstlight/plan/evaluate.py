"""One layout's budget: weights, reserve, KV pool, tokens, the longest request; every figure with its interval."""

import math
from collections.abc import Callable

import msgspec
from msgspec import Struct

from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import Candidate, MemoryBudget, RankBudget
from firstlight.core.units import GIB, gib
from firstlight.plan.draft import Draft, plus
from firstlight.plan.figures import interval, known, unknown
from firstlight.plan.flags import as_args
from firstlight.plan.kv import STATES, KvPlan, dtype_key, kv_plan, token_bytes
from firstlight.plan.layouts import Layout
from firstlight.plan.legality import Refusal
from firstlight.plan.reserve import activation_peak, cuda_graphs, non_torch
from firstlight.plan.resident import StageWeights
from firstlight.plan.rungs import lifted
from firstlight.plan.serving import serving_flags
from firstlight.plan.situation import Situation
from firstlight.plan.speed import predict

OUTSIDE = "outside the utilization: CUDA context, NCCL, fragments"
CONTEXT_BYTES = round(0.6 * GIB)  # CUDA context and NCCL's eager buffers, outside the utilization
ROUND_LENGTH = 1024
MEASURED = (Rung.REHEARSED, Rung.MEASURED)


class Choice(Struct, frozen=True, kw_only=True):
    """What a search varies besides the layout. kv_dtype: what the cache will hold; kv_flag: what the command says (None: nothing)."""

    layout: Layout
    kv_dtype: str = "auto"
    kv_flag: str | None = None
    max_num_seqs: int
    max_num_batched_tokens: int
    utilization: float


class Outcome(Struct, frozen=True, kw_only=True):
    """candidate: as planned; refusal: why it does not fit; missing: bytes short (per GPU), for ranking what failed.

    state_blocks_low: blocks at the interval's low end where states need them and they may be too few; None: no such doubt.
    """

    candidate: Candidate
    refusal: Refusal | None = None
    missing: float = 0.0
    capacity: int = 0
    uncertain: bool = False
    seqs_lowered: bool = False
    state_blocks_low: int | None = None


class _Rank(Struct, frozen=True, kw_only=True):
    stage: StageWeights
    budget: MemoryBudget
    pool: Figure


def evaluate(s: Situation, choice: Choice) -> Outcome:
    """Budgets every stage, takes the one that binds, and asks whether the wanted context fits."""
    dtype = dtype_key(choice.kv_dtype)
    wanted = s.wish.max_model_len
    limit = s.checkpoint.max_position_embeddings or wanted or 32768
    stages = s.resident.stages(choice.layout)
    kv = kv_of(s, choice, dtype)
    ranks = [_rank(s, choice, stage, len(stages), wanted or limit) for stage in stages]
    binding = min(ranks, key=lambda r: r.pool.mid or 0.0)
    pool = binding.pool
    length = wanted or _longest_request(kv, pool, s.wish.cap("max_model_len", limit))
    refusal, missing = _verdict(s, choice, kv, pool, length, binding)
    candidate = _candidate(s, choice, kv, ranks, binding, length, dtype)
    certain = kv.needed_bytes(length) <= (pool.low or 0)
    return Outcome(
        candidate=candidate,
        refusal=refusal,
        missing=missing,
        capacity=kv.capacity(pool.low or 0, length) if length else 0,
        uncertain=refusal is None and not certain,
        state_blocks_low=few if kv.has_state and (few := kv.blocks(max(pool.low or 0, 0))) < choice.max_num_seqs else None,
    )


def _longest_request(kv: KvPlan, pool: Figure, limit: int) -> int:
    """What fits for certain; where the interval's low end holds next to nothing, what its middle holds. 0: nothing."""
    certain = _round_down(kv.longest(pool.low or 0, limit))
    return certain if certain >= ROUND_LENGTH // 2 else _round_down(kv.longest(pool.mid or 0, limit))


def kv_of(s: Situation, choice: Choice, dtype: str) -> KvPlan:
    """Groups, pages and blocks of a choice. dtype: a key of `dtype_key`."""
    return kv_plan(
        s.speculation.checkpoint,
        choice.layout,
        dtype,
        block_size=s.wish.pins.block_size or 16,
        max_num_batched_tokens=choice.max_num_batched_tokens,
        concurrent_batches=s.terms.concurrent_batches,
        prefix_caching_of_states=s.terms.state_blocks > 1,
        null_blocks=s.terms.null_blocks,
        hybrid=s.terms.hybrid_kv_groups,
        draft_layers=s.speculation.layers,
        speculative_states=s.speculation.states,
    )


def _rank(s: Situation, choice: Choice, stage: StageWeights, stages: int, length: int) -> _Rank:
    """One stage's budget. A pinned KV size takes the place of what profiling would leave."""
    pins, total = s.wish.pins, s.total_bytes
    eager, usable = bool(pins.enforce_eager), math.ceil(total * choice.utilization)
    activation = activation_peak(
        s.checkpoint.config,
        choice.layout,
        s.terms,
        max_num_batched_tokens=choice.max_num_batched_tokens,
        max_num_seqs=choice.max_num_seqs,
        max_model_len=length,
        total_bytes=total,
        multimodal=len(s.checkpoint.modalities) > 1 and not pins.language_model_only,
        first=stage.stage == 0,
        last=stage.stage == stages - 1,
    )
    drafter = s.draft if stage.stage == stages - 1 else None
    graphs = cuda_graphs(
        len(stage.layers) + (s.speculation.layers if stage.stage == stages - 1 else 0),
        s.terms,
        max_num_seqs=choice.max_num_seqs,
        max_num_batched_tokens=choice.max_num_batched_tokens,
        enforce_eager=eager,
        usable_bytes=usable,
        has_states=any(g.kind in STATES for g in s.checkpoint.kv_cache_groups),
    )
    pinned = pins.kv_cache_memory_bytes
    computed = MemoryBudget(
        total=known(total, "what CUDA reports"),
        usable=known(usable, f"ceil({gib(total)} x {choice.utilization:g})"),
        weights=interval(stage.allocated, 0.005, "each tensor's shard or replica, as the allocator rounds it"),
        activation_peak=activation,
        cuda_graphs=graphs,
        non_torch=non_torch(choice.layout, s.terms),
        kv_pool=Figure(),
        headroom=Figure(),
    )
    budget = lifted(computed, s.evidence, choice.layout)
    if drafter is not None:
        budget = _with_drafter(budget, drafter, choice)
    parts = (budget.weights, budget.activation_peak, budget.cuda_graphs, budget.non_torch)
    pool, room = _left(usable, parts), _room(s, total)
    if pinned:
        pool = known(pinned, "pinned by --kv-cache-memory-bytes: the engine allocates exactly this")
        unpinned = known(room - CONTEXT_BYTES, "the utilization does not bound what is allocated when KV bytes are pinned")
        budget = msgspec.structs.replace(budget, usable=unpinned)
    headroom = _pinned_headroom(room, pinned, parts) if pinned else known(total - usable, OUTSIDE)
    budget = msgspec.structs.replace(budget, kv_pool=pool, headroom=headroom)
    return _Rank(stage=stage, budget=budget, pool=pool)


def _with_drafter(budget: MemoryBudget, draft: Draft, choice: Choice) -> MemoryBudget:
    """The drafter's part on top; a rehearsal has measured it with the rest, an engine that was asked built the model alone."""
    weights, activation = budget.weights, budget.activation_peak
    if weights.rung not in MEASURED:
        weights = plus(weights, draft.weights(choice.layout), f"with the drafter {draft.name}")
    if activation.rung not in MEASURED:
        activation = plus(activation, draft.buffers(choice.max_num_batched_tokens), "with the drafter's inputs")
    return msgspec.structs.replace(budget, weights=weights, activation_peak=activation)


def _left(usable: int, parts: tuple[Figure, ...]) -> Figure:
    """What profiling leaves for KV: independent errors add up by squares, not by sums."""
    mid = usable - sum(p.mid or 0 for p in parts)
    down = math.hypot(*((p.high or 0) - (p.mid or 0) for p in parts))
    up = math.hypot(*((p.mid or 0) - (p.low or 0) for p in parts))
    rung = min((p.rung for p in parts), key=list(Rung).index)
    return Figure(
        low=round(mid - down), mid=round(mid), high=round(mid + up), rung=rung, because="what profiling leaves of the usable memory"
    )


def _room(s: Situation, total: int) -> int:
    """The GPU's bytes that this engine may have: all of them, or what others leave at this moment."""
    free = s.free_bytes
    return total if free is None or free > total - CONTEXT_BYTES else free


def _pinned_headroom(room: int, pinned: int, parts: tuple[Figure, ...]) -> Figure:
    left = room - pinned - sum(p.mid or 0 for p in parts)
    return Figure(low=round(left * 0.9), mid=round(left), high=round(left * 1.1), because="what pinned KV bytes leave free")


def _verdict(s: Situation, choice: Choice, kv: KvPlan, pool: Figure, length: int, rank: _Rank) -> tuple[Refusal | None, float]:
    """Why it does not fit, and by how many bytes. The middle of the interval decides; near misses are marked uncertain elsewhere."""
    mid = float(pool.mid or 0)
    weights = float(rank.budget.weights.mid or 0)
    usable = float(rank.budget.usable.mid or 0)
    if weights > usable:
        return Refusal(code="oom-weight-load", because=f"{gib(weights)} of weights per GPU, {gib(usable)} usable"), weights - usable
    if s.wish.pins.kv_cache_memory_bytes and (rank.budget.headroom.mid or 0) < CONTEXT_BYTES:
        short = CONTEXT_BYTES - float(rank.budget.headroom.mid or 0)
        return Refusal(code="oom-kv-allocation", because=f"the pinned KV cache leaves {gib(rank.budget.headroom.mid)} of the GPU"), short
    if mid <= 0:
        return Refusal(
            code="no-memory-for-cache-blocks", because=f"weights and activations leave {gib(mid)} for the KV cache"
        ), -mid + kv.block_bytes
    needed = kv.needed_bytes(max(length, ROUND_LENGTH // 2))
    if needed > mid:
        longest = kv.longest(mid, s.checkpoint.max_position_embeddings or length)
        why = f"{length:,} tokens need {gib(needed)} of KV cache, {gib(mid)} is there (up to {longest:,} tokens)"
        return Refusal(code="kv-too-small-for-max-len", because=why), needed - mid
    blocks = kv.blocks(mid if s.wish.pins.max_num_seqs else max(pool.low or 0, 0))  # unnamed, the number of sequences is chosen for certain
    if kv.has_state and blocks < choice.max_num_seqs:
        why = f"{blocks} state blocks are fewer than max_num_seqs {choice.max_num_seqs}"
        return Refusal(code="mamba-blocks-lt-max-num-seqs", because=why), 0.0
    return None, 0.0


def _candidate(s: Situation, choice: Choice, kv: KvPlan, ranks: list[_Rank], binding: _Rank, length: int, dtype: str) -> Candidate:
    layout, pool = choice.layout, binding.pool
    limit = max(s.checkpoint.max_position_embeddings or 0, length)
    stages = [r.stage for r in ranks]
    return Candidate(
        engine=s.engine,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        decode_context_parallel_size=layout.decode_context_parallel_size,
        enable_expert_parallel=layout.enable_expert_parallel,
        nodes=layout.nodes,
        max_model_len=length or None,
        max_num_seqs=choice.max_num_seqs,
        max_num_batched_tokens=choice.max_num_batched_tokens,
        gpu_memory_utilization=choice.utilization,
        kv_cache_memory_bytes=s.wish.pins.kv_cache_memory_bytes,
        kv_cache_dtype=choice.kv_flag or choice.kv_dtype,
        args=_args(s, choice, length),
        env=dict(s.wish.env),
        per_gpu=binding.budget,
        ranks=_rank_budgets(layout, ranks),
        kv_bytes_per_token=token_bytes(s.speculation.checkpoint, dtype, layout.tensor_parallel_size) or None,
        kv_tokens=_tokens(kv, pool, length),
        max_model_len_that_fits=_over(pool, lambda b: kv.longest(b, limit)) if kv.block_bytes else unknown(_no_tokens(kv)),
        max_concurrency=_concurrency(kv, pool, length, layout.data_parallel_size),
        predicted=predict(s, layout, stages, enforce_eager=bool(s.wish.pins.enforce_eager)),
        because=_reasons(s, choice, kv, pool, length),
    )


def _tokens(kv: KvPlan, pool: Figure, length: int) -> Figure:
    if not kv.block_bytes or not length:
        return unknown(_no_tokens(kv))
    figure = _over(pool, lambda b: kv.capacity(b, length))
    return msgspec.structs.replace(figure, because=f"tokens of requests of {length:,} that the pool holds at once, per replica")


def _concurrency(kv: KvPlan, pool: Figure, length: int, replicas: int) -> Figure:
    if not kv.block_bytes or not length:
        return unknown(_no_tokens(kv))
    return _over(pool, lambda b: round(kv.concurrency(b, length) * replicas, 2))


def _no_tokens(kv: KvPlan) -> str:
    return "no request of any length fits" if kv.block_bytes else "the KV cache's sizes are not known"


def _over(pool: Figure, measure: Callable[[float], float]) -> Figure:
    """A figure over the pool's interval."""
    low, mid, high = (measure(max(float(b or 0), 0.0)) for b in (pool.low, pool.mid, pool.high))
    return Figure(low=low, mid=mid, high=high)


def _rank_budgets(layout: Layout, ranks: list[_Rank]) -> list[RankBudget]:
    """One entry per pipeline stage where stages differ; ranks are global numbers within one replica."""
    if len(ranks) < 2:
        return []
    tp = layout.tensor_parallel_size
    return [RankBudget(ranks=list(range(n * tp, (n + 1) * tp)), per_gpu=r.budget) for n, r in enumerate(ranks)]


def _args(s: Situation, choice: Choice, length: int) -> list[str]:
    """The engine's flags: what the plan chose, what the user pinned, what the model needs."""
    pins, layout = s.wish.pins, choice.layout
    pinned_kv = pins.kv_cache_memory_bytes
    fields = {
        "tensor_parallel_size": layout.tensor_parallel_size if layout.tensor_parallel_size > 1 else None,
        "pipeline_parallel_size": layout.pipeline_parallel_size if layout.pipeline_parallel_size > 1 else None,
        "data_parallel_size": layout.data_parallel_size if layout.data_parallel_size > 1 else None,
        "decode_context_parallel_size": layout.decode_context_parallel_size if layout.decode_context_parallel_size > 1 else None,
        "enable_expert_parallel": layout.enable_expert_parallel,
        "max_model_len": length or None,
        "max_num_seqs": choice.max_num_seqs,
        "max_num_batched_tokens": choice.max_num_batched_tokens,
        "gpu_memory_utilization": _utilization(s, choice),
        "kv_cache_memory_bytes": pinned_kv,
        "kv_cache_dtype": choice.kv_flag,
        "dtype": pins.dtype,
        "block_size": pins.block_size,
        "enforce_eager": pins.enforce_eager,
        "mm_encoder_tp_mode": pins.mm_encoder_tp_mode,
        "language_model_only": pins.language_model_only,
        "speculative_config": pins.speculative_config,
    }
    several = ["--nnodes", str(layout.nodes)] if layout.nodes > 1 else []
    return as_args(fields) + several + serving_flags(s) + s.wish.flags


def _utilization(s: Situation, choice: Choice) -> float | None:
    """With pinned KV bytes it bounds nothing, but the engine still refuses to start unless as much is free: said where it matters."""
    same = choice.utilization == s.terms.gpu_memory_utilization and s.wish.pins.gpu_memory_utilization is None
    return None if s.wish.pins.kv_cache_memory_bytes and same else choice.utilization


def _reasons(s: Situation, choice: Choice, kv: KvPlan, pool: Figure, length: int) -> list[str]:
    out: list[str] = []
    if kv.block_bytes and length:
        logged = kv.logged_tokens(float(pool.mid or 0), length, s.terms.version)
        honest = kv.capacity(float(pool.mid or 0), length)
        out.append(f"the engine's `KV cache size` line will say about {logged:,} tokens; requests of {length:,} hold {honest:,}")
    low = round(pool.low or 0)
    if s.terms.kv_cache_memory_bytes and not s.wish.pins.kv_cache_memory_bytes and low > kv.needed_bytes(length) > 0:
        pin = low // (64 << 20) * (64 << 20)
        out.append(
            f"--kv-cache-memory-bytes {pin} ({gib(pin)}) would make tokens exact: the engine then allocates that and does not profile; "
            "worth it after one start has shown that it fits"
        )
    return out


def _round_down(length: int) -> int:
    return length // ROUND_LENGTH * ROUND_LENGTH if length > 4 * ROUND_LENGTH else length
