"""What may be varied: layouts, KV dtypes, batch sizes, utilization; and the best choice of them for one layout."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from firstlight.core.plan import Rejected
from firstlight.plan.evaluate import CONTEXT_BYTES, Choice, Outcome, evaluate
from firstlight.plan.kv import dtype_key
from firstlight.plan.layouts import Layout
from firstlight.plan.legality import Refusal, kv_dtype_refusal
from firstlight.plan.numbers import experts_of
from firstlight.plan.rank import wanted_capacity
from firstlight.plan.situation import Situation

FEWER_SEQS = (256, 64, 16)
CONTEXT_PARALLEL_SINCE = (0, 24)  # from here on every MLA backend returns what splitting a latent cache over GPUs needs


class KvDtype(Struct, frozen=True, kw_only=True):
    """A KV dtype to try. flag: what the command must say for it; None: nothing, it is the engine's own default here."""

    dtype: str
    flag: str | None = None


def layout_pinned(s: Situation) -> bool:
    """The user named a size: what was not named keeps the engine's default, and nothing is changed behind their back."""
    pins = s.wish.pins
    return any((pins.tensor_parallel_size, pins.pipeline_parallel_size, pins.data_parallel_size))


def layouts(s: Situation) -> Iterator[Layout]:
    """Every combination of the pinned and the possible sizes that uses at most the GPUs there are; one size pinned, the others are 1."""
    pins, named = s.wish.pins, layout_pinned(s)
    grid = [
        [size] if size is not None else [1] if named else _sizes(s.world)
        for size in (pins.tensor_parallel_size, pins.pipeline_parallel_size, pins.data_parallel_size)
    ]
    for tp in grid[0]:
        for pp in grid[1]:
            for dp in grid[2]:
                if named or tp * pp * dp <= s.world:
                    yield from _variants(s, tp, pp, dp)


def _sizes(world: int) -> list[int]:
    """Powers of two, and the whole machine."""
    powers = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= world]
    return powers if world in powers else [*powers, world]


def _variants(s: Situation, tp: int, pp: int, dp: int) -> Iterator[Layout]:
    """Expert and context parallelism on top of a grid."""
    pins, free = s.wish.pins, not layout_pinned(s)
    experts = [False, True] if experts_of(s.checkpoint.config) and tp * dp > 1 and free else [False]
    if pins.enable_expert_parallel is not None:
        experts = [pins.enable_expert_parallel]
    splits = bool(s.checkpoint.config.get("kv_lora_rank")) and tp > 1 and s.terms.version >= CONTEXT_PARALLEL_SINCE
    contexts = [1, tp] if splits and free else [1]
    if pins.decode_context_parallel_size:
        contexts = [pins.decode_context_parallel_size]
    for ep in experts:
        for dcp in contexts:
            yield Layout(
                tensor_parallel_size=tp,
                pipeline_parallel_size=pp,
                data_parallel_size=dp,
                decode_context_parallel_size=dcp,
                enable_expert_parallel=bool(ep),
                nodes=-(-tp * pp * dp // len(s.gpus)),
            )


def kv_dtypes(s: Situation) -> tuple[list[KvDtype], list[Rejected]]:
    """KV dtypes to try, the engine's own default first; and those that no backend takes.

    A checkpoint with an embedded FP8 cache turns `auto` into fp8: where no backend has that, full precision is asked for by name.
    """
    pinned = s.wish.pins.kv_cache_dtype
    if pinned and pinned != "auto":
        refusal = kv_dtype_refusal(s, pinned)
        return [KvDtype(dtype=pinned, flag=pinned)], [_kv_rejected(pinned, refusal)] if refusal else []
    embedded = s.checkpoint.kv_cache_quantization
    auto = embedded.dtype if embedded and dtype_key(embedded.dtype) == "fp8" else "auto"
    refusal = kv_dtype_refusal(s, auto)
    if refusal is None:
        return [KvDtype(dtype=auto)], []
    if auto == "auto":
        return [KvDtype(dtype=auto)], [_kv_rejected("auto", refusal)]
    full = "bfloat16" if kv_dtype_refusal(s, "bfloat16") is None else None
    return [KvDtype(dtype="bfloat16", flag=full)], [_kv_rejected(f"{auto} (embedded)", refusal)]


def smaller_kv(s: Situation, tried: list[KvDtype]) -> KvDtype | None:
    """An FP8 cache where a backend takes it and the plan was free to choose: half the bytes, some accuracy."""
    if s.wish.pins.kv_cache_dtype or any(dtype_key(k.dtype) == "fp8" for k in tried) or s.checkpoint.kv_cache_quantization:
        return None
    return KvDtype(dtype="fp8", flag="fp8") if s.sm is not None and s.sm >= 89 and kv_dtype_refusal(s, "fp8") is None else None


def _kv_rejected(dtype: str, refusal: Refusal) -> Rejected:
    return Rejected(layout=f"kv {dtype}", code=refusal.code, because=refusal.because)


def best_of(s: Situation, layout: Layout, dtype: KvDtype) -> Outcome:
    """A layout with the engine's own batch sizes; with fewer sequences where that makes it fit or reach what was asked."""
    outcome = evaluate(s, choice_of(s, layout, dtype))
    if s.wish.pins.max_num_seqs is not None or (outcome.refusal is None and outcome.capacity >= wanted_capacity(s)):
        return outcome
    for seqs in FEWER_SEQS:
        if seqs >= (outcome.candidate.max_num_seqs or 0) or seqs < (s.wish.concurrency or 1):
            continue
        fewer = evaluate(s, choice_of(s, layout, dtype, seqs))
        if fewer.refusal is None and (outcome.refusal is not None or fewer.capacity > outcome.capacity):
            outcome = msgspec.structs.replace(fewer, seqs_lowered=True)
        if outcome.refusal is None and outcome.capacity >= wanted_capacity(s):
            break
    return outcome


def choice_of(s: Situation, layout: Layout, dtype: KvDtype, seqs: int | None = None) -> Choice:
    """The engine's defaults for this GPU under the pins and limits."""
    pins, terms, kind = s.wish.pins, s.terms, s.gpu_class
    chosen = pins.max_num_seqs or seqs or _seqs_for(s, terms.max_num_seqs[kind])
    tokens = pins.max_num_batched_tokens or terms.max_num_batched_tokens[kind]
    return Choice(
        layout=layout,
        kv_dtype=dtype.dtype,
        kv_flag=dtype.flag,
        max_num_seqs=s.wish.cap("max_num_seqs", chosen),
        max_num_batched_tokens=s.wish.cap("max_num_batched_tokens", tokens),
        utilization=utilization_of(s),
    )


def _seqs_for(s: Situation, default: int) -> int:
    """Twice the stated concurrency, as a power of two, never above the engine's default."""
    if s.wish.concurrency is None:
        return default
    return min(max(1 << (2 * s.wish.concurrency - 1).bit_length(), 8), default)


def utilization_of(s: Situation) -> float:
    """Pinned, or the release's default, lowered to what is free at this moment (the engine refuses to start otherwise)."""
    pinned = s.wish.pins.gpu_memory_utilization
    if pinned is not None:
        return pinned
    value = s.wish.cap_fraction("gpu_memory_utilization", s.terms.gpu_memory_utilization)
    if s.free_bytes is not None and s.free_bytes < value * s.total_bytes:
        value = int((s.free_bytes - CONTEXT_BYTES / 4) / s.total_bytes * 100) / 100
    return max(round(value, 4), 0.05)
