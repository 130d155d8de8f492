"""vLLM on GPUs: enumerate layouts, refuse what cannot be, budget the rest, rank, and say why."""

from collections.abc import Iterator

import msgspec

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, PlanSet, Rejected
from firstlight.core.units import gib
from firstlight.plan.evaluate import CONTEXT_BYTES, Choice, Outcome, evaluate
from firstlight.plan.kv import dtype_key
from firstlight.plan.layouts import Layout
from firstlight.plan.legality import Refusal, kv_dtype_refusal, refusal_of
from firstlight.plan.rank import beats, rank_key, wanted_capacity
from firstlight.plan.situation import Situation, situation_of
from firstlight.plan.vllm_cpu import plan_vllm_cpu
from firstlight.plan.wish import Wish

MEMORY_CODES = frozenset(
    {"oom-weight-load", "no-memory-for-cache-blocks", "kv-too-small-for-max-len", "mamba-blocks-lt-max-num-seqs", "oom-kv-allocation"}
)
FEWER_SEQS = (256, 64, 16)
ALTERNATIVES = 4


def plan_vllm(
    checkpoint: Checkpoint,
    machine: Machine,
    wish: Wish,
    engine: EngineRef,
    install: EngineInstall | None,
    answer: EngineAnswer | None,
    rehearsal: RehearsalReport | None,
    gpus: list[int] | None = None,
) -> PlanSet:
    if not machine.accelerators or (install is not None and install.device == "cpu"):
        return plan_vllm_cpu(checkpoint, machine, wish, engine)
    s = situation_of(checkpoint, machine, wish, engine, install, gpus)
    if not checkpoint.tensor_groups and not checkpoint.config.get("hidden_size"):
        return _unknown_model(s)
    dtypes, refused = kv_dtypes(s)
    rejected: list[Rejected] = list(refused)
    fitting: list[Outcome] = []
    failed: list[Outcome] = []
    for layout in layouts(s):
        refusal = refusal_of(layout, s)
        if refusal is not None:
            rejected.append(Rejected(layout=str(layout), code=refusal.code, because=refusal.because))
            continue
        for dtype in dtypes:
            outcome = best_of(s, layout, dtype)
            (failed if outcome.refusal else fitting).append(outcome)
    kept = _pruned(s, sorted(fitting, key=lambda o: rank_key(s, o)), rejected)
    failed.sort(key=lambda o: o.missing)
    rejected += [_rejected(o, o.refusal) for o in failed if o.refusal]
    return _answer(s, kept, failed, rejected)


def layouts(s: Situation) -> Iterator[Layout]:
    """Every combination of the pinned and the possible sizes that uses at most the GPUs there are."""
    pins, world = s.wish.pins, s.world
    for tp in _sizes(pins.tensor_parallel_size, world):
        for pp in _sizes(pins.pipeline_parallel_size, world):
            for dp in _sizes(pins.data_parallel_size, world):
                if tp * pp * dp > world and None in (pins.tensor_parallel_size, pins.pipeline_parallel_size, pins.data_parallel_size):
                    continue
                yield from _variants(s, tp, pp, dp)


def _variants(s: Situation, tp: int, pp: int, dp: int) -> Iterator[Layout]:
    """Expert and context parallelism on top of a grid."""
    pins, config = s.wish.pins, s.checkpoint.config
    moe = bool(config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts"))
    experts = (
        [pins.enable_expert_parallel] if pins.enable_expert_parallel is not None else [False, True] if moe and tp * dp > 1 else [False]
    )
    mla = bool(config.get("kv_lora_rank"))
    contexts = [1, tp] if mla and tp > 1 and s.terms.version >= (0, 24) else [1]
    contexts = [pins.decode_context_parallel_size] if pins.decode_context_parallel_size else contexts
    nodes = -(-tp * pp * dp // len(s.gpus))
    for ep in experts:
        for dcp in contexts:
            yield Layout(
                tensor_parallel_size=tp,
                pipeline_parallel_size=pp,
                data_parallel_size=dp,
                decode_context_parallel_size=dcp,
                enable_expert_parallel=bool(ep),
                nodes=max(nodes, s.wish.pins.nodes or 1),
            )


def _sizes(pinned: int | None, world: int) -> list[int]:
    """The pinned size, or powers of two and the whole machine."""
    if pinned is not None:
        return [pinned]
    powers = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= world]
    return powers if world in powers else [*powers, world]


def kv_dtypes(s: Situation) -> tuple[list[str | None], list[Rejected]]:
    """KV dtypes to try, the engine's own default first; and those that no backend takes.

    A checkpoint with an embedded FP8 cache turns `auto` into fp8: where no backend has it, the full-precision name is given instead.
    """
    pinned = s.wish.pins.kv_cache_dtype
    embedded = s.checkpoint.kv_cache_quantization
    auto = embedded.dtype if embedded and dtype_key(embedded.dtype) == "fp8" else "auto"
    if pinned and pinned != "auto":
        refusal = kv_dtype_refusal(s, pinned)
        return [pinned], [_kv_rejected(pinned, refusal)] if refusal else []
    refusal = kv_dtype_refusal(s, "fp8" if auto != "auto" else "auto")
    if auto == "auto":
        return [None], [_kv_rejected("auto", refusal)] if refusal else []
    if refusal is None:
        return [auto, "bfloat16"] if pinned is None else [auto], []
    return ["bfloat16"], [_kv_rejected(f"{auto} (embedded)", refusal)]


def _kv_rejected(dtype: str, refusal: Refusal) -> Rejected:
    return Rejected(layout=f"kv {dtype}", code=refusal.code, because=refusal.because)


def best_of(s: Situation, layout: Layout, dtype: str | None) -> Outcome:
    """A layout with the engine's own batch sizes; with fewer sequences where that makes it fit or reach what was asked."""
    outcome = evaluate(s, choice_of(s, layout, dtype))
    if s.wish.pins.max_num_seqs is not None or (outcome.refusal is None and outcome.capacity >= wanted_capacity(s)):
        return outcome
    for seqs in FEWER_SEQS:
        if seqs >= (outcome.candidate.max_num_seqs or 0) or seqs < (s.wish.concurrency or 1):
            continue
        fewer = evaluate(s, choice_of(s, layout, dtype, seqs))
        better = fewer.refusal is None and (outcome.refusal is not None or fewer.capacity > outcome.capacity)
        if better:
            outcome = msgspec.structs.replace(fewer, seqs_lowered=True)
        if outcome.refusal is None and outcome.capacity >= wanted_capacity(s):
            break
    return outcome


def choice_of(s: Situation, layout: Layout, dtype: str | None, seqs: int | None = None) -> Choice:
    """The engine's defaults for this GPU under the pins and limits."""
    pins, terms, kind = s.wish.pins, s.terms, s.gpu_class
    chosen = pins.max_num_seqs or seqs or _seqs_for(s, terms.max_num_seqs[kind])
    tokens = pins.max_num_batched_tokens or terms.max_num_batched_tokens[kind]
    return Choice(
        layout=layout,
        kv_dtype=dtype,
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


def _pruned(s: Situation, ranked: list[Outcome], rejected: list[Rejected]) -> list[Outcome]:
    """Drops what breaks a limit and what another layout beats in everything that counts."""
    kept: list[Outcome] = []
    for outcome in ranked:
        broken = s.wish.broken_by(outcome.candidate)
        winner = next((k for k in kept if beats(k, outcome)), None)
        if broken is not None:
            rejected.append(_rejected(outcome, Refusal(code="constraint", because=broken.because)))
        elif winner is not None:
            why = f"{layout_of(winner.candidate)} is at least as fast, holds as much and takes no more GPUs"
            rejected.append(_rejected(outcome, Refusal(code="dominated", because=why)))
        else:
            kept.append(outcome)
    return kept


def layout_of(c: Candidate) -> str:
    layout = Layout(
        tensor_parallel_size=c.tensor_parallel_size,
        pipeline_parallel_size=c.pipeline_parallel_size,
        data_parallel_size=c.data_parallel_size,
        decode_context_parallel_size=c.decode_context_parallel_size,
        enable_expert_parallel=c.enable_expert_parallel,
        nodes=c.nodes,
    )
    kv = f" kv {c.kv_cache_dtype}" if c.kv_cache_dtype not in (None, "auto") else ""
    return f"{layout}{kv}"


def _rejected(outcome: Outcome, refusal: Refusal) -> Rejected:
    return Rejected(layout=layout_of(outcome.candidate), code=refusal.code, because=refusal.because)


def _answer(s: Situation, kept: list[Outcome], failed: list[Outcome], rejected: list[Rejected]) -> PlanSet:
    findings = list(_findings(s, kept))
    blocked = _blockers(s, kept, failed, rejected)
    verdict = "fits" if kept else "does-not-fit"
    if blocked:
        verdict = "blocked"
    best = kept[0].candidate if kept else failed[0].candidate if failed else _pinned_anyway(s)
    return PlanSet(
        verdict=verdict,
        model=s.checkpoint.name or s.checkpoint.ref,
        machine=_machine_name(s),
        best=best,
        alternatives=[o.candidate for o in kept[1 : 1 + ALTERNATIVES]] if verdict == "fits" else [],
        rejected=rejected,
        findings=[*blocked, *findings, *([] if kept or blocked else [_does_not_fit(s, failed)])],
    )


def _blockers(s: Situation, kept: list[Outcome], failed: list[Outcome], rejected: list[Rejected]) -> list[Finding]:
    """What the user pinned cannot be built at all, however much memory there is."""
    pinned_kv = s.wish.pins.kv_cache_dtype
    for r in rejected:
        if r.layout.startswith("kv ") and (r.layout == "kv auto" or (pinned_kv and r.layout == f"kv {pinned_kv}")):
            return [_finding(r, "another --kv-cache-dtype, or a release that has a backend")]
    if kept or failed:
        return []
    hard = [r for r in rejected if r.code not in MEMORY_CODES | {"dominated", "constraint"} and not r.layout.startswith("kv ")]
    return [_finding(hard[0], "change the pinned layout to a legal one")] if hard else []


def _finding(rejected: Rejected, hint: str) -> Finding:
    return Finding(
        code=rejected.code, severity=Severity.BLOCKER, message=f"{rejected.layout} cannot run", evidence=[rejected.because], hint=hint
    )


def _pinned_anyway(s: Situation) -> Candidate | None:
    """The budget of a layout that was pinned but is refused: figures are shown all the same."""
    for layout in layouts(s):
        refusal = refusal_of(layout, s)
        if refusal is None or refusal.code != "too-few-gpus":
            return evaluate(s, choice_of(s, layout, kv_dtypes(s)[0][0])).candidate
    return None


def _findings(s: Situation, kept: list[Outcome]) -> Iterator[Finding]:
    if not s.terms.known:
        yield Finding(
            code="engine-version-outside-data",
            severity=Severity.NOTE,
            message=f"vLLM {s.engine.version} is not among the releases whose memory terms were read",
            evidence=["read: 0.14.0 to 0.33.0"],
            note="the nearest release's terms are used, with wider intervals",
        )
    if s.gpu is None:
        yield Finding(
            code="gpu-not-in-catalog",
            severity=Severity.NOTE,
            message=f"{s.gpus[0].name} is not in the catalog",
            note="memory is taken from the probe; speed is unknown",
        )
    held = s.free_bytes is not None and s.free_bytes < s.total_bytes * s.terms.gpu_memory_utilization
    if held and s.wish.pins.gpu_memory_utilization is None:
        yield Finding(
            code="gpu-memory-occupied",
            severity=Severity.WARNING,
            message=f"only {gib(s.free_bytes)} of {gib(s.total_bytes)} are free on a GPU",
            note=f"planned with --gpu-memory-utilization {utilization_of(s):g}: the engine refuses to start above what is free",
            hint="free the GPU and plan again",
        )
    elif held and s.free_bytes is not None and s.free_bytes < (s.wish.pins.gpu_memory_utilization or 0) * s.total_bytes:
        yield Finding(
            code="gpu-memory-occupied",
            severity=Severity.BLOCKER,
            message=f"{gib(s.free_bytes)} are free on a GPU, the pinned utilization asks for more",
            hint="free the GPU, or lower --gpu-memory-utilization",
        )
    if kept and kept[0].uncertain:
        yield Finding(
            code="kv-fit-uncertain",
            severity=Severity.WARNING,
            message="the context fits in the middle of the interval, not at its low end",
            hint="`firstlight rehearse` measures it on the real GPUs in about a minute",
        )
    if kept and kept[0].seqs_lowered:
        yield Finding(
            code="max-num-seqs-lowered",
            severity=Severity.NOTE,
            message=f"planned with {kept[0].candidate.max_num_seqs} sequences instead of the engine's default",
            note="the sampler's profile run, or state blocks, scale with it",
        )


def _does_not_fit(s: Situation, failed: list[Outcome]) -> Finding:
    nearest = failed[0] if failed else None
    return Finding(
        code="does-not-fit",
        severity=Severity.BLOCKER,
        message=f"no layout on {_machine_name(s)} holds the model with the context that was asked",
        evidence=[f"{layout_of(nearest.candidate)}: {nearest.refusal.because}"] if nearest and nearest.refusal else [],
        hint=_way_out(nearest),
    )


def _way_out(nearest: Outcome | None) -> str:
    longest = nearest.candidate.max_model_len_that_fits.low if nearest else None
    if nearest and nearest.refusal and nearest.refusal.code == "kv-too-small-for-max-len" and longest:
        return f"--max-model-len {int(longest) // 1024 * 1024 or int(longest)}, or a higher --gpu-memory-utilization"
    return "more or larger GPUs, more --nodes, or a smaller quantization"


def _unknown_model(s: Situation) -> PlanSet:
    return PlanSet(
        verdict="blocked",
        model=s.checkpoint.name or s.checkpoint.ref,
        machine=_machine_name(s),
        findings=[
            Finding(
                code="model-shape-unknown",
                severity=Severity.BLOCKER,
                message="neither tensors nor a config that says the model's sizes",
                hint="give a checkpoint with weights, or one whose config names hidden_size and num_hidden_layers",
            )
        ],
    )


def _machine_name(s: Situation) -> str:
    return s.machine.hostname if s.nodes == 1 else f"{s.nodes} x {s.machine.hostname}"
