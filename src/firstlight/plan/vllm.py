"""vLLM on GPUs: enumerate layouts, refuse what cannot be, budget the rest, rank, and say why."""

import msgspec
from msgspec import Struct

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import blockers
from firstlight.core.intent import Pins
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, PlanSet, Rejected
from firstlight.core.units import gib
from firstlight.plan.evaluate import Outcome, evaluate
from firstlight.plan.findings import blockers_of, does_not_fit, findings_of, layout_of, machine_name, unknown_model
from firstlight.plan.legality import refusal_of
from firstlight.plan.rank import beats, gpus, rank_key, reason
from firstlight.plan.rungs import Evidence
from firstlight.plan.search import KvDtype, best_of, choice_of, kv_dtypes, layout_pinned, layouts, smaller_kv
from firstlight.plan.situation import Situation, situation_of
from firstlight.plan.vllm_cpu import plan_vllm_cpu
from firstlight.plan.wish import Wish

ALTERNATIVES = 4
MOST_STAGES = 256  # a refused layout's budget is shown up to here: beyond, it would take seconds and tell nothing


class Found(Struct, kw_only=True):
    """fitting: ranked, best first, dominated ones taken out; failed: budgeted but too small, nearest first."""

    fitting: list[Outcome]
    failed: list[Outcome]
    rejected: list[Rejected]


def plan_vllm(
    checkpoint: Checkpoint,
    machine: Machine,
    wish: Wish,
    engine: EngineRef,
    install: EngineInstall | None,
    answer: EngineAnswer | None,
    rehearsal: RehearsalReport | None,
    allowed: list[int] | None = None,
    draft: Checkpoint | None = None,
) -> PlanSet:
    """allowed: GPU indices that may be used, None for all."""
    if not machine.accelerators or (install is not None and install.device == "cpu"):
        return plan_vllm_cpu(checkpoint, machine, wish, engine, draft)
    s = situation_of(checkpoint, machine, wish, engine, install, allowed, Evidence(answer=answer, rehearsal=rehearsal), draft)
    if not s.resident.groups:
        return PlanSet(verdict="blocked", model=_model(s), machine=machine_name(s), findings=[unknown_model()])
    found = search(s)
    return _answer(s, found)


def search(s: Situation) -> Found:
    """Budgets every legal layout; tries a smaller KV dtype only where nothing fits without."""
    dtypes, refused = kv_dtypes(s)
    found = _budgeted(s, dtypes)
    smaller = smaller_kv(s, dtypes)
    if (
        not found.fitting
        and smaller is not None
        and any(o.refusal and o.refusal.code.startswith(("kv-", "no-memory")) for o in found.failed)
    ):
        second = _budgeted(s, [smaller])
        found.fitting, found.failed = second.fitting, found.failed + second.failed
    found.rejected = [*refused, *found.rejected]
    found.failed.sort(key=lambda o: (o.missing, gpus(o), o.candidate.enable_expert_parallel))
    found.rejected += [
        Rejected(layout=layout_of(o.candidate), code=o.refusal.code, because=o.refusal.because) for o in found.failed if o.refusal
    ]
    return found


def _budgeted(s: Situation, dtypes: list[KvDtype]) -> Found:
    found = Found(fitting=[], failed=[], rejected=[])
    for layout in layouts(s):
        refusal = refusal_of(layout, s)
        least = s.resident.least_bytes(layout.world)
        if refusal is not None:
            found.rejected.append(Rejected(layout=str(layout), code=refusal.code, because=refusal.because))
        elif least > s.total_bytes and not layout_pinned(s):
            why = f"at least {gib(least)} of weights per GPU, {gib(s.total_bytes)} is all there is"
            found.rejected.append(Rejected(layout=str(layout), code="oom-weight-load", because=why))
        else:
            outcomes = [best_of(s, layout, dtype) for dtype in dtypes]
            found.failed += [o for o in outcomes if o.refusal]
            found.fitting += [o for o in outcomes if not o.refusal]
    ranked = sorted(found.fitting, key=lambda o: rank_key(s, o))
    found.fitting = _pruned(s, ranked, found.rejected)
    return found


def _pruned(s: Situation, ranked: list[Outcome], rejected: list[Rejected]) -> list[Outcome]:
    """Drops what breaks a limit and what another layout beats in everything that counts."""
    kept: list[Outcome] = []
    for outcome in ranked:
        name = layout_of(outcome.candidate)
        broken = s.wish.broken_by(outcome.candidate)
        winner = next((k for k in kept if beats(k, outcome)), None)
        if broken is not None:
            rejected.append(Rejected(layout=name, code="constraint", because=broken.because))
        elif winner is not None:
            why = f"{layout_of(winner.candidate)} is at least as fast, holds as much and takes no more GPUs"
            rejected.append(Rejected(layout=name, code="dominated", because=why))
        else:
            kept.append(outcome)
    return kept


def _answer(s: Situation, found: Found) -> PlanSet:
    kept, failed = found.fitting, found.failed
    blocked = blockers_of(s, bool(kept or failed), found.rejected)
    findings = [*blocked, *findings_of(s, kept[0] if kept else None)]
    alternatives = [o.candidate for o in kept[1 : 1 + ALTERNATIVES]]
    if blocked or not kept:
        alternatives = _instead(s, kv_dtype=any(f.code == "attn-backend-unsupported-kv-dtype" for f in blocked))
    if not blocked and not kept:
        findings.append(does_not_fit(s, failed))
    best = kept[0].candidate if kept else failed[0].candidate if failed else _pinned_anyway(s)
    if kept:
        best = msgspec.structs.replace(kept[0].candidate, because=[reason(s, kept), *kept[0].candidate.because])
    occupied = [f for f in blockers(findings) if f.code == "gpu-memory-occupied"]
    return PlanSet(
        verdict="blocked" if blocked or occupied else "fits" if kept else "does-not-fit",
        model=_model(s),
        machine=machine_name(s),
        best=best,
        alternatives=alternatives,
        rejected=found.rejected,
        findings=findings,
    )


def _instead(s: Situation, *, kv_dtype: bool) -> list[Candidate]:
    """What could be, with everything else as it was asked: another KV dtype, or another layout than the pinned one."""
    pins = msgspec.structs.replace(s.wish.pins, kv_cache_dtype=None) if kv_dtype else _unpinned(s.wish.pins)
    if pins == s.wish.pins:
        return []
    free = msgspec.structs.replace(s, wish=msgspec.structs.replace(s.wish, pins=pins))
    return [o.candidate for o in search(free).fitting[:ALTERNATIVES]]


def _unpinned(pins: Pins) -> Pins:
    return msgspec.structs.replace(
        pins,
        tensor_parallel_size=None,
        pipeline_parallel_size=None,
        data_parallel_size=None,
        enable_expert_parallel=None,
        decode_context_parallel_size=None,
    )


def _pinned_anyway(s: Situation) -> Candidate | None:
    """The budget of a layout that is refused: its figures are shown all the same."""
    widest = sorted(layouts(s), key=lambda x: (-x.world, x.data_parallel_size, x.pipeline_parallel_size))
    stages = max(s.checkpoint.num_hidden_layers or 0, MOST_STAGES)
    buildable = [x for x in widest if (x.world <= s.world or layout_pinned(s)) and x.pipeline_parallel_size <= stages]
    return evaluate(s, choice_of(s, buildable[0], kv_dtypes(s)[0][0])).candidate if buildable else None


def _model(s: Situation) -> str:
    return s.checkpoint.name or s.checkpoint.ref
