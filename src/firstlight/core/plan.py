"""Plans: budgets per rank, the chosen layout, what was rejected and why. Bytes and seconds."""

from typing import Any

from msgspec import Struct

from firstlight.core.figures import Figure
from firstlight.core.findings import Finding


class EngineRef(Struct, frozen=True, kw_only=True):
    name: str
    version: str | None = None


class MemoryBudget(Struct, frozen=True, kw_only=True):
    """One rank's memory in bytes. total: what CUDA reports; usable: total x utilization (or what pins leave)."""

    total: Figure
    usable: Figure
    weights: Figure
    activation_peak: Figure
    cuda_graphs: Figure
    non_torch: Figure
    kv_pool: Figure
    headroom: Figure


class RankBudget(Struct, frozen=True, kw_only=True):
    """ranks: the ranks that share this budget; per_gpu: their figures."""

    ranks: list[int]
    per_gpu: MemoryBudget


class Predicted(Struct, frozen=True, kw_only=True):
    load_seconds: Figure
    decode_tokens_per_second_upper_bound: Figure
    ready_seconds: Figure


class JsonPatch(Struct, frozen=True, kw_only=True):
    """Removes (`remove: true`) or sets one key of one JSON file. path: keys from the root."""

    file: str
    path: list[str]
    remove: bool = False
    value: Any = None
    because: str = ""


class OverlaySpec(Struct, frozen=True, kw_only=True):
    """What must be patched in a copy of the checkpoint's JSON files before this engine can load it."""

    patches: list[JsonPatch]
    because: str


class Candidate(Struct, frozen=True, kw_only=True):
    """One layout with its budget. args: the engine's flags without program and model; env: variables to set."""

    engine: EngineRef
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    nodes: int = 1
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    overlay: OverlaySpec | None = None
    per_gpu: MemoryBudget | None = None
    ranks: list[RankBudget] = []
    kv_bytes_per_token: int | None = None
    kv_tokens: Figure = Figure()
    max_model_len_that_fits: Figure = Figure()
    max_concurrency: Figure = Figure()
    predicted: Predicted | None = None
    because: list[str] = []


class Rejected(Struct, frozen=True, kw_only=True):
    """layout: short text (`tp8 ep`); code and reason of the rejection."""

    layout: str
    code: str
    because: str


class Constraint(Struct, frozen=True, kw_only=True):
    """What healing, a rehearsal or the user adds to the next plan.

    field: a field of Pins, or an engine flag; op: `==`, `<=`, `>=`, `!=`. value None with op `==` unpins.
    source: `user`, `rehearsed`, or the diagnosis code that asked for it.
    """

    field: str
    op: str
    value: Any
    because: str
    source: str


class PlanSet(Struct, frozen=True, kw_only=True):
    """verdict: fits | does-not-fit | blocked | unknown (nobody computes it for that engine). model, machine: what was planned for."""

    verdict: str
    model: str
    machine: str
    best: Candidate | None = None
    alternatives: list[Candidate] = []
    rejected: list[Rejected] = []
    constraints: list[Constraint] = []
    findings: list[Finding] = []
