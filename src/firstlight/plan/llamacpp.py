"""llama.cpp: weights, KV cache, compute buffers, and whether the host's memory really holds them.

llama-server maps the file, so a model larger than memory starts and then reads from disk for every token; a plan calls that `does-not-fit`.
"""

from collections.abc import Sequence

from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.plan import Candidate, EngineRef, MemoryBudget, PlanSet, Predicted, Rejected
from firstlight.core.units import GIB, MIB, gib
from firstlight.plan.figures import interval, known, unknown
from firstlight.plan.host import decode_bound, host_bandwidth, host_free, later, load_seconds, touched_bytes
from firstlight.plan.wish import Wish

UBATCH = 512  # llama-server's default physical batch
ACTIVATIONS = 8  # float32 rows of the hidden size that live at once
PROMPT_CACHE = 8 * GIB  # what llama-server may keep of earlier prompts in host memory (--cache-ram)
CHAT_CONTEXT = 8192  # where nobody says how long, and the model can
READY_SECONDS = (0.5, 2.0, 6.0)
HOST_RESERVE = 1 * GIB  # the system and llama-server itself
GPU_RESERVE = 768 * MIB  # CUDA context, cuBLAS workspace, llama.cpp's own margin
# Bytes per cached element: f16 and the quantized cache types (a block of 32 values and its scale).
CACHE_TYPES = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32}


class Place(Struct, frozen=True):
    """Where the model goes. layers: how many of the stack are on GPUs; budget_bytes: what that place may hold."""

    device: str
    total_bytes: int | None
    free_bytes: int | None
    layers: int


def plan_llamacpp(checkpoint: Checkpoint, machine: Machine, wish: Wish, engine: EngineRef, device: str | None) -> PlanSet:
    """Slots and context that fit, most of what was asked first."""
    parallel = wish.cap("max_num_seqs", wish.pins.max_num_seqs or wish.concurrency or 1)
    wanted = wish.cap("max_model_len", wish.max_model_len or _default_context(checkpoint))
    pinned = wish.max_model_len is not None
    rejected: list[Rejected] = []
    gpus = [] if device == "cpu" else list(machine.accelerators)
    for context in [wanted] if pinned else _shorter(wanted):
        candidate, shortfall = _candidate(checkpoint, machine, gpus, wish, engine, context, parallel)
        if shortfall <= 0:
            return _answer("fits", checkpoint, machine, candidate, rejected, _advice(checkpoint, machine, candidate))
        rejected.append(
            Rejected(
                layout=f"ctx {context} x {parallel}",
                code="memory-does-not-fit",
                because=f"needs {gib(shortfall)} more than {machine.hostname} has free",
            )
        )
    return _answer("does-not-fit", checkpoint, machine, candidate, rejected, [_too_big(checkpoint, machine, candidate, shortfall)])


def kv_bytes_per_token(groups: Sequence[KvCacheGroup], cache_type: str, growing_only: bool = True) -> float:
    """Bytes of every layer for one more token; sliding windows count only with `growing_only` off."""
    kinds = {"full", "mla", "sparse-mla", "indexer"} | (set() if growing_only else {"sliding-window", "chunked"})
    return sum(_per_token(g, cache_type) * len(g.layers) for g in groups if g.kind in kinds)


def kv_cache_bytes(groups: Sequence[KvCacheGroup], cache_type: str, context: int, parallel: int) -> int:
    """llama.cpp's cache: every slot's full context; a sliding window keeps window + ubatch cells, padded to 256; states per slot."""
    total = 0.0
    for group in groups:
        window = group.window or context
        cells = context if group.kind not in ("sliding-window", "chunked") else min(context, _pad(window + UBATCH, 256))
        total += _per_token(group, cache_type) * len(group.layers) * cells * parallel
        total += (group.state_bytes_per_request or 0) * len(group.layers) * parallel
    return round(total)


def compute_buffer_bytes(checkpoint: Checkpoint, context: int, parallel: int) -> Figure:
    """The graph's scratch for one physical batch, one slot's attention mask in f16, and the logits of every slot.

    Measured with llama.cpp b11549 on SmolLM2-135M: 22.64 MiB at 1 x 8,192 tokens, 16.64 MiB at 4 x 2,048.
    """
    vocab, hidden = checkpoint.vocab_size, checkpoint.hidden_size
    if not vocab or not hidden:
        return unknown("the vocabulary's or the hidden size is not known")
    wide = int(checkpoint.config.get("intermediate_size") or 4 * hidden)
    scratch = UBATCH * 4 * (ACTIVATIONS * hidden + 2 * wide)
    mask = context * UBATCH * 2
    return interval(scratch + mask + vocab * 4 * parallel, 0.3, because=f"{UBATCH} rows of activations, the mask, one row of logits a slot")


def _candidate(
    checkpoint: Checkpoint, machine: Machine, gpus: list[Accelerator], wish: Wish, engine: EngineRef, context: int, parallel: int
) -> tuple[Candidate, float]:
    """A layout and by how many bytes it misses (negative: what is left)."""
    cache_type = _cache_type(wish.pins.kv_cache_dtype)
    groups = checkpoint.kv_cache_groups
    weights = checkpoint.tensor_bytes or checkpoint.file_bytes or 0
    kv = kv_cache_bytes(groups, cache_type, context, parallel)
    compute = compute_buffer_bytes(checkpoint, context, parallel)
    place = _place(checkpoint, machine, gpus, weights + kv, compute)
    per_token = round(kv_bytes_per_token(groups, cache_type)) or None
    budget = _budget(place, weights, kv, compute)
    free = budget.usable.mid
    shortfall = (weights + kv + (compute.mid or 0)) - free if free is not None else 0.0
    args = ["--ctx-size", str(context * parallel), "--parallel", str(parallel)]
    if cache_type != "f16":
        args += ["--cache-type-k", cache_type, "--cache-type-v", cache_type]
    if place.layers:
        args += ["--n-gpu-layers", str(place.layers)]
    args += _threads(machine, place, wish)
    room = (free - weights - (compute.mid or 0)) / parallel if free is not None else None
    fits = min(int(room / per_token), max(checkpoint.max_position_embeddings or 0, context)) if room is not None and per_token else None
    return Candidate(
        engine=engine,
        max_model_len=context,
        max_num_seqs=parallel,
        max_num_batched_tokens=2048,
        kv_cache_dtype=cache_type,
        args=[*args, *wish.flags],
        env=wish.env,
        per_gpu=budget,
        kv_bytes_per_token=per_token,
        kv_tokens=Figure.exact(context * parallel, Rung.COMPUTED, "llama.cpp allocates what --ctx-size says"),
        max_model_len_that_fits=known(max(fits, 0)) if fits is not None else unknown("the host's memory or the KV size is not known"),
        max_concurrency=Figure.exact(parallel, Rung.COMPUTED, "slots"),
        predicted=_predicted(checkpoint, machine, place),
        because=[f"{place.device}: {gib(weights)} of weights, {gib(kv)} of KV cache for {parallel} x {context} tokens"],
    ), shortfall


def _threads(machine: Machine, place: Place, wish: Wish) -> list[str]:
    """On the CPU, one core is left to the host: llama.cpp's threads wait for each other by spinning, so that one which loses its core
    stops all. On two busy cores one thread gave 78 tokens a second where two gave 17 (SmolLM2 135M)."""
    if place.layers or machine.cpu_count is None or any(w in wish.extra_args for w in ("-t", "--threads")):
        return []
    return ["--threads", str(max(1, machine.cpu_count - 1))]


def _place(checkpoint: Checkpoint, machine: Machine, gpus: list[Accelerator], needed: int, compute: Figure) -> Place:
    layers = (checkpoint.num_hidden_layers or 0) + 1
    if gpus and all(g.cuda_total_bytes for g in gpus):
        total = sum(g.cuda_total_bytes or 0 for g in gpus)
        room = sum((g.free_bytes or g.cuda_total_bytes or 0) - GPU_RESERVE for g in gpus) - (compute.mid or 0) * len(gpus)
        on_gpu = layers if needed <= room else int(layers * max(room, 0) / max(needed, 1))
        if on_gpu == layers:
            return Place(f"{len(gpus)} x {gpus[0].catalog_id or gpus[0].name}", total, round(room + (compute.mid or 0)), layers)
        host = host_free(machine, HOST_RESERVE)
        both = None if host is None else round(room + host)
        return Place(f"{on_gpu} of {layers} layers on GPU, the rest on the host", total, both, max(on_gpu, 0))
    return Place("host memory", machine.memory_total_bytes, host_free(machine, HOST_RESERVE), 0)


def _budget(place: Place, weights: int, kv: int, compute: Figure) -> MemoryBudget:
    usable = place.free_bytes
    left = None if usable is None or compute.mid is None else usable - weights - kv - compute.mid
    return MemoryBudget(
        total=known(place.total_bytes) if place.total_bytes else unknown("the host's memory is not known"),
        usable=known(usable) if usable is not None else unknown("available memory is not known"),
        weights=Figure.exact(weights, Rung.COMPUTED, "sum of the file's tensors"),
        activation_peak=compute,
        cuda_graphs=Figure.exact(0, Rung.COMPUTED, "llama.cpp reserves no graph memory"),
        non_torch=Figure.exact(0, Rung.COMPUTED, "counted in the reserve"),
        kv_pool=Figure.exact(kv, Rung.COMPUTED, "allocated in full at start"),
        headroom=known(left, "left on the host or the GPUs") if left is not None else unknown("available memory is not known"),
    )


def _predicted(checkpoint: Checkpoint, machine: Machine, place: Place) -> Predicted:
    """Layers on GPUs are read at the first GPU's speed, the others at the host's."""
    load = load_seconds(checkpoint, machine)
    reads = touched_bytes(checkpoint)
    share = place.layers / ((checkpoint.num_hidden_layers or 0) + 1)
    parts = [(reads * share, _gpu_bandwidth(machine))] if place.layers else []
    if share < 1:
        parts.append((reads * (1 - share), host_bandwidth(machine)))
    return Predicted(
        load_seconds=load,
        decode_tokens_per_second_upper_bound=decode_bound(parts),
        ready_seconds=later(load, READY_SECONDS, "reading the file, allocating the cache, one warm-up run"),
    )


def _gpu_bandwidth(machine: Machine) -> Figure:
    speed = machine.accelerators[0].memory_bandwidth_bytes_per_second
    return known(speed, f"{machine.accelerators[0].name}'s") if speed else unknown("the GPU's memory bandwidth is not known")


def _answer(
    verdict: str, checkpoint: Checkpoint, machine: Machine, best: Candidate, rejected: list[Rejected], findings: list[Finding]
) -> PlanSet:
    return PlanSet(
        verdict=verdict,
        model=checkpoint.name or checkpoint.ref,
        machine=machine.hostname,
        best=best,
        rejected=rejected,
        findings=findings,
    )


def _too_big(checkpoint: Checkpoint, machine: Machine, best: Candidate, shortfall: float) -> Finding:
    free = best.per_gpu.usable.mid if best.per_gpu else None
    return Finding(
        code="memory-does-not-fit",
        severity=Severity.BLOCKER,
        message=f"the model does not fit into {machine.hostname}'s memory",
        evidence=[f"needed: {gib((free or 0) + shortfall)}", f"free for it: {gib(free)}"],
        note="llama.cpp would map the file and start all the same, then read weights from disk for every token",
        hint="use a smaller quantization, fewer slots (--max-num-seqs) or a shorter context (--max-model-len)",
    )


def _advice(checkpoint: Checkpoint, machine: Machine, best: Candidate) -> list[Finding]:
    """What fits, and what may still surprise."""
    limit, context = checkpoint.max_position_embeddings, best.max_model_len or 0
    found: list[Finding] = []
    host = host_free(machine, HOST_RESERVE)
    used = 0 if "--n-gpu-layers" in best.args else _used(best)
    if host is not None and host - used < PROMPT_CACHE:
        left = max(host - used, 0)
        found.append(
            Finding(
                code="prompt-cache-may-grow",
                severity=Severity.NOTE,
                message=f"llama-server may keep up to {gib(PROMPT_CACHE)} of earlier prompts in memory; {gib(left)} would be left for it",
                hint=f"-- --cache-ram {left // MIB // 2}",
            )
        )
    if limit and context > limit:
        found.append(
            Finding(
                code="context-beyond-model",
                severity=Severity.WARNING,
                message=f"{context} tokens are more than the model was made for",
                evidence=[f"max_position_embeddings: {limit}"],
                hint=f"--max-model-len {limit}",
            )
        )
    return found


def _used(best: Candidate) -> int:
    """Bytes of the host that weights, cache and scratch take."""
    budget = best.per_gpu
    return round(sum(f.mid or 0 for f in (budget.weights, budget.kv_pool, budget.activation_peak))) if budget else 0


def _default_context(checkpoint: Checkpoint) -> int:
    return min(checkpoint.max_position_embeddings or CHAT_CONTEXT, CHAT_CONTEXT)


def _shorter(context: int) -> list[int]:
    """The wish, then halves of it, down to 512 tokens."""
    out = [context]
    while out[-1] > 1024:
        out.append(out[-1] // 2)
    return out


def _cache_type(dtype: str | None) -> str:
    """llama.cpp's name of a KV dtype; vLLM's `bfloat16` and `auto` are its default f16."""
    if dtype in (None, "auto", "bfloat16", "float16", "half"):
        return "f16"
    return "q8_0" if dtype in ("fp8", "fp8_e4m3", "int8") else str(dtype)


def _per_token(group: KvCacheGroup, cache_type: str) -> float:
    base = group.bytes_per_token_per_layer.get("bf16") or group.bytes_per_token_per_layer.get("f16") or 0.0
    return base * CACHE_TYPES.get(cache_type, 2.0) / 2.0


def _pad(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
