"""What an engine answered about itself, without a GPU or without weights: rungs `asked` and `rehearsed`."""

from typing import Any

from msgspec import Struct

from firstlight.core.findings import Finding
from firstlight.core.plan import MemoryBudget, RankBudget


class Backend(Struct, frozen=True, kw_only=True):
    """One kernel choice. layer: gqa | mla | sparse-mla | moe | linear | …; rejected: backend name -> the engine's reasons."""

    layer: str
    kv_cache_dtype: str | None = None
    chosen: str | None = None
    rejected: dict[str, list[str]] = {}


class EngineAnswer(Struct, frozen=True, kw_only=True):
    """The engine's own answer (rung `asked`). refusal: its error text where it refuses. cannot_know: what this rung cannot see."""

    engine: str
    version: str | None = None
    build: str | None = None
    config: dict[str, Any] = {}
    backends: list[Backend] = []
    per_gpu: MemoryBudget | None = None
    ranks: list[RankBudget] = []
    parameter_bytes: int | None = None
    kv_groups: list[dict[str, Any]] = []
    num_gpu_blocks: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    refusal: str | None = None
    cannot_know: list[str] = []
    seconds: float | None = None
    findings: list[Finding] = []


class RehearsalReport(Struct, frozen=True, kw_only=True):
    """The plan's own flags on the real GPUs with dummy weights. depth: layers run (None: all); proves, cannot_prove: one line each."""

    passed: bool
    depth: int | None = None
    extrapolated: bool = False
    per_gpu: MemoryBudget | None = None
    kv_tokens: int | None = None
    num_gpu_blocks: int | None = None
    phase_seconds: dict[str, float] = {}
    refusal: str | None = None
    proves: list[str] = []
    cannot_prove: list[str] = []
    seconds: float | None = None
    findings: list[Finding] = []
