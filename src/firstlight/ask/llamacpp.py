"""llama.cpp's own breakdown of a GGUF: weights, KV cache and compute buffers per device, without allocating them."""

from typing import Any

from firstlight.ask.inside import run_inside
from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError, UsageError
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, MemoryBudget, RankBudget
from firstlight.core.ports import Host
from firstlight.core.units import MIB

CANNOT_KNOW = ["memory outside llama.cpp's own buffers (driver, other processes)", "the server's prompt cache, which grows while it serves"]
ROUNDED = "llama.cpp prints MiB, some of them whole"


def ask_llamacpp(
    host: Host, *, checkpoint: Checkpoint, candidate: Candidate, install: EngineInstall | None, cache: str, timeout: float
) -> EngineAnswer:
    """Raises InputError `no-gguf`, UsageError `no-asking-environment`; what llama.cpp refuses is in the answer."""
    path = checkpoint.path
    if checkpoint.format != "gguf" or not path or host.stat(path) is None:
        raise InputError("no-gguf", f"{checkpoint.ref} is no GGUF file on this host", evidence=(f"path: {path or 'none'}",))
    if install is None or not install.python:
        raise UsageError(
            "no-asking-environment",
            "llama.cpp can be asked through its Python package only",
            evidence=(f"binary: {install.binary}" if install else "no llama.cpp found",),
            hint="firstlight engines install llamacpp",
        )
    request = {"model": path, "args": list(candidate.args)}
    raw = run_inside(host, install.python, request, cache=cache, timeout=timeout, engine="llamacpp", package="inside", module="ask")
    return read_answer(_exact_weights(raw, checkpoint), install)


def _exact_weights(raw: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Where one device holds all weights they are the file's tensors, to the byte; llama.cpp prints whole MiB of them."""
    devices, size = raw["devices"], checkpoint.tensor_bytes
    if len(devices) == 1 and size is not None and 0 <= size - devices[0]["model"] < MIB:
        return {**raw, "devices": [{**devices[0], "model": size}]}
    return raw


def read_answer(raw: dict[str, Any], install: EngineInstall) -> EngineAnswer:
    budgets = [_budget(device) for device in raw["devices"]]
    heaviest = max(budgets, key=lambda b: (b.weights.mid or 0) + (b.kv_pool.mid or 0), default=None)
    settings = raw["settings"]
    return EngineAnswer(
        engine="llamacpp",
        version=install.version,
        build=install.build or install.version,
        config={**settings, "devices": raw["devices"], "compute_buffers": raw["compute"]},
        per_gpu=heaviest,
        ranks=[RankBudget(ranks=[i], per_gpu=b) for i, b in enumerate(budgets)] if len(budgets) > 1 else [],
        parameter_bytes=sum(device["model"] for device in raw["devices"]) or None,
        kv_groups=raw["kv"],
        kv_tokens=settings.get("n_ctx"),
        max_concurrency=float(settings["n_seq_max"]) if "n_seq_max" in settings else None,
        refusal=raw["error"],
        cannot_know=CANNOT_KNOW,
        seconds=raw.get("seconds"),
        findings=_findings(raw),
    )


def _budget(device: dict[str, Any]) -> MemoryBudget:
    def asked(value: int | None) -> Figure:
        return Figure.exact(value, Rung.ASKED, f"{device['name']}; {ROUNDED}")

    free = device["free"]
    return MemoryBudget(
        total=asked(device["total"]),
        usable=asked(free),
        weights=asked(device["model"]),
        activation_peak=asked(device["compute"]),
        cuda_graphs=Figure.exact(0, Rung.ASKED, "within the compute buffer"),
        non_torch=Figure(rung=Rung.ASKED, because="llama.cpp does not say"),
        kv_pool=asked(device["context"]),
        headroom=asked(free - device["model"] - device["context"] - device["compute"] if free is not None else None),
    )


def _findings(raw: dict[str, Any]) -> list[Finding]:
    if raw["error"]:
        return [Finding(code="engine-refuses", severity=Severity.BLOCKER, message="llama.cpp cannot load this", evidence=[raw["error"]])]
    if not raw["devices"]:
        text = "this llama.cpp prints no memory breakdown that firstlight knows"
        return [Finding(code="engine-not-understood", severity=Severity.WARNING, message=text, note="computed figures stand")]
    return []
