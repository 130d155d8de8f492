"""The rehearsal: the plan's own flags on the real GPUs with dummy weights, and what that proves.

The room starts nothing itself: `observe` (from the flow) starts a launch under a supervisor, watches it, asks one completion when it is
ready, stops it, and hands back what was seen.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.answer import RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate
from firstlight.core.run import LaunchSpec
from firstlight.engines.vllm.rehearsal import depths, read_figures, rehearsal_spec, truncation
from firstlight.rehearse.figures import budget, extrapolate

PATIENCE_SECONDS = 900.0
TOO_SLOW = "rehearsal-too-slow"


class Observation(Struct, frozen=True, kw_only=True):
    """One start as it was seen. answered: whether one completion came back after ready (None: not ready, so not asked).

    refusal: why it failed, for people. code: the diagnosis code where there is one. metrics: what /metrics said once ready.
    """

    ready: bool
    answered: bool | None = None
    seconds: float = 0.0
    log: bytes = b""
    metrics: str = ""
    phase_seconds: dict[str, float] = {}
    refusal: str | None = None
    code: str | None = None
    timed_out: bool = False


Observe = Callable[[LaunchSpec, float], Observation]


def rehearse(
    spec: LaunchSpec,
    *,
    checkpoint: Checkpoint,
    candidate: Candidate,
    machine: Machine,
    install: EngineInstall,
    config: Mapping[str, Any],
    observe: Observe,
    port: int,
    depth: str = "auto",
    patience: float = PATIENCE_SECONDS,
) -> RehearsalReport:
    """Rehearses `spec`. config: the checkpoint's config.json as it stands (the overlay's, where there is one).

    depth: `full`, `truncated`, or `auto`: full where the weights fit beside what is resident now, and truncated where that cannot run or
    took longer than `patience` seconds. An engine without dummy weights is reported as not rehearsed, never as passed.
    """
    if spec.engine != "vllm":
        return _unsupported(spec.engine)
    begun = time.monotonic()
    fits, why = _fits_now(checkpoint, candidate, machine, install)
    full = depth == "full" or (depth == "auto" and fits)
    report = None
    if full:
        whole = rehearsal_spec(spec, port=port, version=install.version, torch=install.torch)
        report = _full(observe(whole, patience), candidate)
        why = f"full depth did not end within {patience:.0f} s"
    if report is None:
        report = _truncated(spec, checkpoint, candidate, install, config, observe, port, patience, why)
    return _timed(report, time.monotonic() - begun)


def _timed(report: RehearsalReport, seconds: float) -> RehearsalReport:
    return msgspec.structs.replace(report, seconds=round(seconds, 1))


def _fits_now(checkpoint: Checkpoint, candidate: Candidate, machine: Machine, install: EngineInstall) -> tuple[bool, str]:
    """Whether dummy weights of full size can be resident beside what is there now, and why not."""
    if install.device == "cpu" or not machine.accelerators:
        need, have = checkpoint.tensor_bytes, machine.memory_available_bytes
    else:
        need = _whole(candidate.per_gpu.weights.high) if candidate.per_gpu else None
        have = min((a.free_bytes for a in machine.accelerators if a.free_bytes is not None), default=None)
    if need is None or have is None or need < have:
        return True, ""
    return False, f"weights of {need / 2**30:.1f} GiB do not fit into the {have / 2**30:.1f} GiB that are free now"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _full(seen: Observation, candidate: Candidate) -> RehearsalReport | None:
    """None where it took too long: then truncated depths tell."""
    if seen.timed_out:
        return None
    figures = read_figures(seen.log, seen.metrics)
    return RehearsalReport(
        passed=seen.ready and seen.answered is not False,
        per_gpu=budget(figures, because="measured with dummy weights at full depth"),
        kv_tokens=figures.kv_tokens,
        num_gpu_blocks=figures.num_gpu_blocks,
        phase_seconds=seen.phase_seconds,
        refusal=_refusal(seen),
        proves=proofs(seen, full=True),
        cannot_prove=limits(full=True),
        findings=_findings(seen),
    )


def _truncated(
    spec: LaunchSpec,
    checkpoint: Checkpoint,
    candidate: Candidate,
    install: EngineInstall,
    config: Mapping[str, Any],
    observe: Observe,
    port: int,
    patience: float,
    why: str,
) -> RehearsalReport:
    """Two depths and a straight line through them. The first failure ends it: what fails with few layers fails with all."""
    layers = checkpoint.num_hidden_layers
    first_dense = (checkpoint.moe.first_dense_layers if checkpoint.moe else None) or 0
    pair = depths(config, first_dense=first_dense, period=period(checkpoint))
    if layers is None or pair is None:
        refusal = f"too few layers to truncate, and {why}"
        return RehearsalReport(passed=False, refusal=refusal, findings=[_finding(TOO_SLOW, refusal)], cannot_prove=limits(full=False))
    seen: list[Observation] = []
    for count in pair:
        short = rehearsal_spec(spec, port=port, version=install.version, overrides=truncation(config, count))
        seen.append(observe(short, patience))
        if not seen[-1].ready or seen[-1].answered is False:
            return _failed_at(count, seen[-1])
    figures = extrapolate([read_figures(o.log, o.metrics) for o in seen], pair, layers, candidate)
    enough = figures.kv_tokens is None or candidate.max_model_len is None or figures.kv_tokens >= candidate.max_model_len
    short_of = None if enough else f"{figures.kv_tokens:,} tokens of KV cache hold no request of {candidate.max_model_len:,} tokens"
    return RehearsalReport(
        passed=enough,
        depth=pair[1],
        extrapolated=True,
        per_gpu=budget(figures, because=f"a straight line through {pair[0]} and {pair[1]} of {layers} layers", spread=0.02),
        kv_tokens=figures.kv_tokens,
        phase_seconds=seen[-1].phase_seconds,
        refusal=short_of,
        proves=proofs(seen[-1], full=False),
        cannot_prove=[f"full depth was not run: {why}" if why else "full depth was not run", *limits(full=False)],
        findings=[_short_finding(short_of)] if short_of else [],
    )


def _failed_at(layers: int, seen: Observation) -> RehearsalReport:
    return RehearsalReport(
        passed=False,
        depth=layers,
        phase_seconds=seen.phase_seconds,
        refusal=_refusal(seen),
        cannot_prove=limits(full=False),
        findings=_findings(seen),
    )


def period(checkpoint: Checkpoint) -> int:
    """After how many layers the pattern of attention kinds repeats; 1 where all are alike."""
    kinds = {layer: group.kind for group in checkpoint.kv_cache_groups for layer in group.layers}
    row = [kinds.get(layer, "") for layer in range(checkpoint.num_hidden_layers or 0)]
    for step in range(1, min(len(row) // 2, 16) + 1):
        if all(row[i] == row[i + step] for i in range(len(row) - step)):
            return step
    return 1


def _refusal(seen: Observation) -> str | None:
    if seen.timed_out:
        return f"not ready after {seen.seconds:.0f} s"
    if seen.ready and seen.answered is False:
        return seen.refusal or "it became ready, and did not answer its first request"
    return None if seen.ready else seen.refusal or "it ended before it was ready"


def _findings(seen: Observation) -> list[Finding]:
    text = _refusal(seen)
    if text is None:
        return []
    return [_finding(seen.code or (TOO_SLOW if seen.timed_out else "rehearsal-failed"), text)]


def _finding(code: str, text: str) -> Finding:
    """A rehearsal that came to no end says nothing against the plan."""
    if code == TOO_SLOW:
        return Finding(code=code, severity=Severity.WARNING, message=f"the rehearsal came to no end: {text}", hint="a longer --patience")
    return Finding(code=code, severity=Severity.BLOCKER, message=f"the rehearsal failed: {text}")


def _short_finding(text: str) -> Finding:
    return Finding(
        code="context-does-not-fit", severity=Severity.BLOCKER, message=text, evidence=["extrapolated from two truncated depths"],
        hint="a lower --max-model-len",
    )  # fmt: skip


def _unsupported(engine: str) -> RehearsalReport:
    finding = Finding(
        code="rehearsal-unsupported",
        severity=Severity.NOTE,
        message=f"{engine} has no dummy weights, so nothing was rehearsed",
        hint="a start of the real model tells",
    )
    return RehearsalReport(passed=False, refusal=finding.message, findings=[finding], cannot_prove=["everything"])


def proofs(seen: Observation, *, full: bool) -> list[str]:
    """What this start has shown, one line each."""
    if not seen.ready:
        return []
    lines = ["the engine accepts every flag of the plan and picks its kernels", "weights of the real shapes are allocated and repacked"]
    lines += ["everything fits into memory at full depth"] if full else ["memory a layer, from two depths"]
    lines += ["one completion runs through every kernel"] if seen.answered else []
    return [*lines, "the compile caches hold this plan" if full else "kernels of each layer kind are compiled"]


def limits(*, full: bool) -> list[str]:
    """What dummy weights can never show."""
    lines = ["the quality of answers", "scales of a quantized KV cache", "how real prompts route through the experts"]
    lines.append("the loader and its speed")
    return lines if full else [*lines, "that the whole depth fits, except by the straight line"]
