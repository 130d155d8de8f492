"""The script's plain JSON as an EngineAnswer: what the engine said, in its words; what it could not say, by name."""

import re
from typing import Any

from firstlight.ask.request import Gpu
from firstlight.core.answer import Backend, EngineAnswer
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.plan import Candidate, MemoryBudget, RankBudget
from firstlight.core.units import gib

CANNOT_KNOW = [
    "activation peak: it is profiled on the GPU",
    "CUDA graphs' memory: it is measured while they are captured",
    "memory outside PyTorch: NCCL, kernels' workspaces, fragmentation",
    "limits that kernels meet at run time (shared memory, tile shapes)",
]
CANNOT_KNOW_ON_CPU = ["activation peak: it shows when the model runs", "memory of the server's own processes"]
ASSUMED_FLASHINFER = "FlashInfer is taken to be usable (nvcc or its prebuilt kernels on the machine)"
# Exceptions by which the engine's own Python refuses, by the phase it raises them in. Others, and those without a text, mean that
# it was asked in a way it does not know: a false refusal would stop what works.
REFUSALS = {
    "config": frozenset({"ValueError", "ValidationError", "NotImplementedError", "AssertionError", "OSError"}),
    "model": frozenset({"ValueError", "NotImplementedError", "AssertionError"}),
    "kv-spec": frozenset({"ValueError"}),
    "kv-cache": frozenset({"ValueError"}),
}


def refusal_of(raw: dict[str, Any]) -> str | None:
    """The engine's own error text; None when it did not refuse (or failed in a way that is no refusal)."""
    error = raw.get("error")
    if not error or not error["message"].strip() or error["type"] not in REFUSALS.get(str(raw.get("phase")), ()):
        return None
    own = [f for f in error["frames"] if f.startswith("vllm/")]
    return _engine_text(error["message"]) if own or error["type"] == "ValidationError" else None


def _engine_text(message: str) -> str:
    """Without what pydantic puts around a validator's own message."""
    inner = re.findall(r"(?:Value|Assertion) error, (.*?) \[type=", message, re.S)
    return "\n".join(inner) if inner else message


def read_answer(raw: dict[str, Any], candidate: Candidate, gpu: Gpu, *, build: str | None, real: bool = False) -> EngineAnswer:
    """real: the GPU was there and nothing was spoofed.

    Raises nothing: an answer that breaks off early keeps what was known before, and a finding says so.
    """
    ranks = raw.get("ranks", [])
    heaviest = max(ranks, key=lambda r: r["weights"]["allocated_bytes"], default=None)
    blocks = raw.get("blocks") or {}
    late = next((r["late_refusal"] for r in ranks if r.get("late_refusal")), None)
    refusal = refusal_of(raw) or late
    return EngineAnswer(
        engine="vllm",
        version=raw.get("version"),
        build=build or raw.get("version"),
        config=_config(raw),
        backends=_backends(raw),
        per_gpu=_budget(heaviest, raw, candidate, gpu) if heaviest else None,
        ranks=_ranks(ranks, raw, candidate, gpu),
        parameter_bytes=heaviest["weights"]["allocated_bytes"] if heaviest else None,
        kv_groups=[{**group, "rank": rank["rank"]} for rank in ranks for group in rank["kv"]],
        num_gpu_blocks=blocks.get("num_gpu_blocks"),
        kv_tokens=blocks.get("kv_tokens"),
        max_concurrency=blocks.get("max_concurrency"),
        refusal=refusal,
        cannot_know=CANNOT_KNOW_ON_CPU if not gpu.sm else CANNOT_KNOW if real else [*CANNOT_KNOW, ASSUMED_FLASHINFER],
        seconds=raw.get("seconds"),
        findings=_findings(raw, refusal, late),
    )


def _config(raw: dict[str, Any]) -> dict[str, Any]:
    config = dict(raw.get("config") or {})
    if raw.get("unknown_flags"):
        config["unknown_flags"] = raw["unknown_flags"]
    if blocks := raw.get("blocks"):
        config["kv_cache_groups"] = blocks["groups"]
    if raw.get("kv_bytes"):
        config["kv_cache_bytes"] = raw["kv_bytes"]
    return config


def _backends(raw: dict[str, Any]) -> list[Backend]:
    """Attention, MoE and linear kernels of the first rank; where the engine refused, what its selector said last."""
    first = raw["ranks"][0] if raw.get("ranks") else {"attention": [], "kernels": []}
    rows = [
        Backend(layer=row["layer"], kv_cache_dtype=row["kv_cache_dtype"], chosen=row["chosen"], rejected=row["rejected"])
        for row in first["attention"]
    ]
    rows += [Backend(layer=f"{row['layer']} {row['format']}", chosen=row["chosen"]) for row in first["kernels"] if row["chosen"]]
    if not rows and raw.get("error"):
        rows = [
            Backend(layer=seen["layer"], kv_cache_dtype=seen["kv_cache_dtype"], chosen=None, rejected=seen["rejected"])
            for seen in raw.get("selector", [])
            if not seen["valid"]
        ]
    return rows


def _ranks(ranks: list[dict[str, Any]], raw: dict[str, Any], candidate: Candidate, gpu: Gpu) -> list[RankBudget]:
    """Pipeline stages that differ; one alone is `per_gpu` already."""
    size = candidate.tensor_parallel_size
    if len(ranks) < 2:
        return []
    return [RankBudget(ranks=list(range(r["rank"], r["rank"] + size)), per_gpu=_budget(r, raw, candidate, gpu)) for r in ranks]


def _budget(rank: dict[str, Any], raw: dict[str, Any], candidate: Candidate, gpu: Gpu) -> MemoryBudget:
    """Weights as asked; what the engine cannot say keeps the plan's figure and rung, or stays unknown."""
    weights = rank["weights"]
    utilization = raw.get("config", {}).get("gpu_memory_utilization")
    usable = int(gpu.memory * utilization) if utilization else None
    plan = candidate.per_gpu
    unknown = Figure(rung=Rung.ASKED, because="only a run on the GPU tells")
    kv = raw.get("kv_bytes")
    return MemoryBudget(
        total=Figure.exact(gpu.memory, Rung.COMPUTED, f"{gpu.name}, as CUDA reports it" if gpu.sm else f"{gpu.name}: the host's memory"),
        usable=Figure.exact(usable, Rung.ASKED, f"total x {utilization}, the engine's gpu_memory_utilization"),
        weights=Figure.exact(weights["allocated_bytes"], Rung.ASKED, _because(weights)),
        activation_peak=plan.activation_peak if plan else unknown,
        cuda_graphs=plan.cuda_graphs if plan else unknown,
        non_torch=plan.non_torch if plan else unknown,
        kv_pool=Figure.exact(kv, Rung.COMPUTED, "what the plan leaves after the weights as asked") if kv else unknown,
        headroom=Figure.exact(gpu.memory - usable if usable else None, Rung.ASKED, "outside the engine's budget"),
    )


def _because(weights: dict[str, Any]) -> str:
    extra = [f"{gib(a['bytes'])} {a['because']}" for a in weights["additions"]]
    made = f"{weights['tensors']} tensors of the engine's own model class in blocks of PyTorch's allocator"
    return "; ".join([made, *extra])


def _findings(raw: dict[str, Any], refusal: str | None, late: str | None) -> list[Finding]:
    error = raw.get("error")
    if refusal is not None:
        return [_refused_late(refusal) if refusal == late else _refused(refusal)]
    if not error:
        return []
    slow = error["type"] == "OutOfTime"
    return [
        Finding(
            code="asking-too-slow" if slow else "engine-not-understood",
            severity=Severity.WARNING,
            message="the engine gave no answer in time" if slow else "this engine build answers in a way that firstlight does not know",
            evidence=[f"while asking about: {raw.get('phase')}", f"{error['type']}: {error['message'][:300]}", *error["frames"][-3:]],
            note="computed figures stand in for what it did not say",
            hint="firstlight ask … --timeout 300"
            if late
            else "firstlight engines list, and another release with --engine-wheel vllm==VERSION",
        )
    ]


def _refused(text: str) -> Finding:
    attention = "No valid attention backend" in text
    length = "max seq len" in text or "max_model_len" in text
    return Finding(
        code="engine-refuses-backend" if attention else "engine-refuses-length" if length else "engine-refuses",
        severity=Severity.BLOCKER,
        message="the engine itself refuses this",
        evidence=text.splitlines()[:6],
        hint=_cure(text) if length else "firstlight preflight MODEL names the cures" if attention else None,
    )


def _refused_late(text: str) -> Finding:
    return Finding(
        code="engine-refuses-late",
        severity=Severity.BLOCKER,
        message="the selector takes a backend that then refuses while it is built: the engine dies after loading all weights",
        evidence=text.splitlines()[:6],
        hint="--kv-cache-dtype auto, or fp8 where `firstlight engines show` has a backend for it",
    )


def _cure(text: str) -> str | None:
    fits = re.search(r"estimated maximum model length is (\d+)", text)
    return f"--max-model-len {fits[1]}, or less" if fits else None
