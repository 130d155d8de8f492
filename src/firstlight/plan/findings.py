"""What a plan has to say besides its figures: blockers, warnings and notes."""

from collections.abc import Iterator
from typing import Any

from firstlight.core.findings import Finding, Severity
from firstlight.core.plan import Candidate, Rejected
from firstlight.core.units import gib
from firstlight.plan.draft import Draft
from firstlight.plan.evaluate import CONTEXT_BYTES, Outcome
from firstlight.plan.layouts import Layout
from firstlight.plan.length import too_long
from firstlight.plan.numbers import number
from firstlight.plan.reserve import graph_sizes
from firstlight.plan.search import layout_pinned, utilization_of
from firstlight.plan.situation import Situation

MEMORY_CODES = frozenset(
    {"oom-weight-load", "no-memory-for-cache-blocks", "kv-too-small-for-max-len", "mamba-blocks-lt-max-num-seqs", "oom-kv-allocation"}
)


def layout_of(c: Candidate) -> str:
    """`tp8 dcp8 kv fp8`: a candidate in a few letters."""
    layout = layout_in(c)
    return f"{layout} kv {c.kv_cache_dtype}" if c.kv_cache_dtype not in (None, "auto") else str(layout)


def layout_in(c: Candidate) -> Layout:
    return Layout(
        tensor_parallel_size=c.tensor_parallel_size,
        pipeline_parallel_size=c.pipeline_parallel_size,
        data_parallel_size=c.data_parallel_size,
        decode_context_parallel_size=c.decode_context_parallel_size,
        enable_expert_parallel=c.enable_expert_parallel,
        nodes=c.nodes,
    )


def machine_name(s: Situation) -> str:
    return s.machine.hostname if s.nodes == 1 else f"{s.nodes} x {s.machine.hostname}"


def blockers_of(s: Situation, tried: bool, rejected: list[Rejected]) -> list[Finding]:
    """What was pinned, or the model itself, cannot be built however much memory there is. tried: some layout could be budgeted."""
    if (longer := too_long(s.checkpoint, s.wish)) is not None:
        return [longer]
    pinned_kv = s.wish.pins.kv_cache_dtype
    for r in rejected:
        if r.layout == "kv auto" or (pinned_kv and r.layout == f"kv {pinned_kv}"):
            return [_blocked(r, "another --kv-cache-dtype, or a release that has a backend")]
    if tried:
        return []
    hard = [r for r in rejected if r.code not in MEMORY_CODES | {"dominated", "constraint"} and not r.layout.startswith("kv ")]
    return [_blocked(hard[0], "change the pinned layout to a legal one")] if hard else []


def findings_of(s: Situation, best: Outcome | None) -> Iterator[Finding]:
    if not s.terms.known:
        yield Finding(
            code="engine-version-outside-data",
            severity=Severity.NOTE,
            message=f"vLLM {s.engine.version} is not among the releases whose memory terms were read",
            evidence=["read: 0.14 to 0.33"],
            note="the nearest release's terms are used; intervals before 0.14 are wider",
        )
    if number(s.checkpoint.config, "hc_mult"):
        yield Finding(
            code="architecture-not-measured",
            severity=Severity.NOTE,
            message="no start of this architecture was measured: its activation peak is a guess",
            evidence=[f"architectures: {', '.join(s.checkpoint.architectures) or 'none named'}"],
            note="weights and KV cache are computed as for any model; the interval of what is left is wide",
            hint="`firstlight rehearse` measures it on the real GPUs in about a minute",
        )
    if s.gpu is None:
        yield Finding(
            code="gpu-not-in-catalog",
            severity=Severity.NOTE,
            message=f"{s.gpus[0].name} is not in the catalog",
            note="its memory is taken from the probe; its speed is unknown",
        )
    if len({g.catalog_id or g.name for g in s.gpus}) > 1:
        yield Finding(
            code="mixed-gpus",
            severity=Severity.NOTE,
            message="GPUs of several kinds: every rank is planned with the smallest",
            evidence=[f"smallest: {s.gpus[0].name}, {gib(s.total_bytes)}"],
        )
    yield from _occupied(s, best)
    if s.draft_uncounted is not None:
        yield not_counted(s.draft_uncounted, s.wish.pins.speculative_config)
    elif s.draft is not None and best is not None:
        yield counted(s.draft, layout_in(best.candidate))
    if best is not None:
        yield from _about(best)
        yield from _outside(s, best.candidate)


def not_counted(why: str, spec: dict[str, Any] | None) -> Finding:
    return Finding(
        code="draft-not-counted",
        severity=Severity.WARNING,
        message=f"the drafter's weights and KV cache are not in this budget: {why}",
        evidence=[f"speculative_config: {spec}"],
        hint="`firstlight rehearse` measures them, or leave room with --gpu-memory-utilization",
    )


def counted(draft: Draft, layout: Layout) -> Finding:
    return Finding(
        code="draft-counted",
        severity=Severity.NOTE,
        message=f"the drafter {draft.name} is in this budget",
        evidence=draft.about(layout),
    )


def _occupied(s: Situation, best: Outcome | None) -> Iterator[Finding]:
    """Memory that somebody holds now: the engine's start-up check would refuse."""
    free, pinned = s.free_bytes, s.wish.pins.gpu_memory_utilization
    if free is None or free >= s.total_bytes * (pinned or s.terms.gpu_memory_utilization):
        return
    if pinned is None and best is None:
        return
    if pinned is None:
        yield Finding(
            code="gpu-memory-occupied",
            severity=Severity.WARNING,
            message=f"only {gib(free)} of {gib(s.total_bytes)} are free on a GPU",
            note=f"planned with --gpu-memory-utilization {utilization_of(s):g}: the engine refuses to start above what is free",
            hint="free the GPU and plan again",
        )
        return
    yield Finding(
        code="gpu-memory-occupied",
        severity=Severity.BLOCKER,
        message=f"{gib(free)} are free on a GPU, the pinned utilization of {pinned:g} asks for {gib(s.total_bytes * pinned)}",
        hint="free the GPU, or lower --gpu-memory-utilization",
    )


def _about(best: Outcome) -> Iterator[Finding]:
    c = best.candidate
    if best.uncertain:
        yield Finding(
            code="kv-fit-uncertain",
            severity=Severity.WARNING,
            message=f"{c.max_model_len:,} tokens fit in the middle of the interval, not at its low end",
            hint="`firstlight rehearse` measures it on the real GPUs in about a minute",
        )
    if best.state_blocks_low is not None:
        yield Finding(
            code="mamba-blocks-lt-max-num-seqs",
            severity=Severity.WARNING,
            message=f"at the interval's low end {best.state_blocks_low} state blocks are fewer than --max-num-seqs {c.max_num_seqs}",
            note="every request of a model with linear layers holds a state block, and the engine refuses to start with fewer",
            hint=f"--max-num-seqs {max(best.state_blocks_low // 8 * 8, 1)}",
        )
    if best.seqs_lowered:
        yield Finding(
            code="max-num-seqs-lowered",
            severity=Severity.NOTE,
            message=f"planned with {c.max_num_seqs} sequences at once instead of the engine's default",
            note="the sampler's part of the profile run, and the state blocks of linear layers, grow with it",
        )


def _outside(s: Situation, best: Candidate) -> Iterator[Finding]:
    """What must live beyond the utilization: the CUDA context, NCCL, and graphs where the release does not reserve them."""
    budget = best.per_gpu
    if budget is None or s.wish.pins.kv_cache_memory_bytes:
        return
    graphs = 0.0
    if not s.terms.cuda_graph_reserve and not s.wish.pins.enforce_eager:
        layers = (s.checkpoint.num_hidden_layers or 0) // best.pipeline_parallel_size
        sizes = graph_sizes(best.max_num_seqs or 0, best.max_num_batched_tokens or 0)
        graphs = s.terms.cuda_graph_base + layers * sizes * s.terms.cuda_graph_per_layer_and_size
    room = float(budget.headroom.mid or 0)
    if room < CONTEXT_BYTES + graphs:
        what = f"CUDA context and NCCL about {gib(CONTEXT_BYTES)}" + (f", graphs about {gib(graphs)}" if graphs else "")
        yield Finding(
            code="little-room-outside-the-budget",
            severity=Severity.WARNING,
            message=f"{gib(room)} lie outside the utilization, and more than that may be needed there",
            evidence=[what],
            hint="a lower --gpu-memory-utilization" + (", or --enforce-eager" if graphs else ""),
        )


def does_not_fit(s: Situation, failed: list[Outcome]) -> Finding:
    nearest = failed[0] if failed else None
    if nearest is not None and (held := _held_by_others(s, nearest.candidate)) is not None:
        return held
    return Finding(
        code="does-not-fit",
        severity=Severity.BLOCKER,
        message=f"{_what(s, nearest)} does not hold the model with the context that was asked",
        evidence=[f"{layout_of(nearest.candidate)}: {nearest.refusal.because}"] if nearest and nearest.refusal else [],
        hint=_way_out(nearest),
    )


def _held_by_others(s: Situation, nearest: Candidate) -> Finding | None:
    """The same GPUs would hold the model's weights and their work, were they empty: then who holds them is the cause, not their size."""
    free, usable = s.free_bytes, s.total_bytes * s.terms.gpu_memory_utilization
    needed = (nearest.per_gpu.weights.mid or 0) + (nearest.per_gpu.activation_peak.mid or 0) if nearest.per_gpu else 0
    if free is None or free >= usable or s.wish.pins.gpu_memory_utilization is not None or not 0 < needed < usable:
        return None
    holders = {p.pid: p for gpu in s.gpus for p in gpu.processes}.values()
    ways = ", ".join(dict.fromkeys(p.way_to_free() for p in holders))
    return Finding(
        code="gpu-memory-occupied",
        severity=Severity.BLOCKER,
        message=f"others hold the memory that the model needs: {gib(free)} of {gib(s.total_bytes)} are free on a GPU",
        evidence=[
            f"{layout_of(nearest)}: {gib(needed)} of weights and activations per GPU; an empty GPU has {gib(usable)} for them",
            *([p.line() for p in holders][:8] or ["no process is listed: it may run in a container or belong to another user"]),
        ],
        hint=ways or "find the holder with `fuser -v /dev/nvidia*` as root",
    )


def _what(s: Situation, nearest: Outcome | None) -> str:
    return f"{layout_of(nearest.candidate)}, as pinned," if nearest and layout_pinned(s) else f"{machine_name(s)}, in any layout,"


def unknown_model() -> Finding:
    return Finding(
        code="model-shape-unknown",
        severity=Severity.BLOCKER,
        message="neither tensors nor a config that says the model's sizes",
        hint="give a checkpoint with weights, or one whose config names hidden_size and num_hidden_layers",
    )


def _way_out(nearest: Outcome | None) -> str:
    longest = nearest.candidate.max_model_len_that_fits.low if nearest else None
    if nearest and nearest.refusal and nearest.refusal.code == "kv-too-small-for-max-len" and longest:
        return f"--max-model-len {int(longest) // 1024 * 1024 or int(longest)}, or a higher --gpu-memory-utilization"
    return "more or larger GPUs, more --nodes, or a smaller quantization"


def _blocked(rejected: Rejected, hint: str) -> Finding:
    return Finding(
        code=rejected.code, severity=Severity.BLOCKER, message=f"{rejected.layout} cannot run", evidence=[rejected.because], hint=hint
    )
