"""What every layout of one planning run shares: the model, the GPUs it may use, the release's memory terms, the wish."""

from collections.abc import Mapping

from msgspec import Struct

from firstlight.catalog.engines import MemoryTerms, ModelKind, memory_terms, newest
from firstlight.catalog.gpus import Gpu, find_gpu, recognise
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.plan import EngineRef
from firstlight.plan.draft import Draft, draft_of
from firstlight.plan.length import as_vllm_reads
from firstlight.plan.numbers import experts_of
from firstlight.plan.resident import Options, Resident
from firstlight.plan.rungs import Evidence
from firstlight.plan.speculation import Speculation, speculation
from firstlight.plan.wish import Wish

DRIVER_TO_CUDA = 0.9945  # cudaMemGetInfo's total over the driver's, median of the catalog, for cards that it does not have


class Situation(Struct, frozen=True, kw_only=True):
    """gpus: per node, those the user allows. total_bytes: CUDA's total of the smallest; gpu: its catalog entry, None when unknown.

    draft: the external drafter; draft_uncounted: why one that was asked for is not counted. speculation: what it, or
    the model's own multi-token prediction, adds to the KV cache.
    """

    checkpoint: Checkpoint
    machine: Machine
    wish: Wish
    engine: EngineRef
    terms: MemoryTerms
    gpus: list[Accelerator]
    total_bytes: int
    free_bytes: int | None
    gpu: Gpu | None
    sm: int | None
    nodes: int = 1
    resident: Resident
    evidence: Evidence = Evidence()
    draft: Draft | None = None
    draft_uncounted: str | None = None
    speculation: Speculation

    @property
    def world(self) -> int:
        """GPUs over all nodes."""
        return len(self.gpus) * self.nodes

    @property
    def gpu_class(self) -> str:
        return self.terms.gpu_class(self.total_bytes, self.gpus[0].name)

    @property
    def bandwidth(self) -> float | None:
        """Memory bandwidth of the slowest GPU, bytes per second."""
        own = self.gpus[0].memory_bandwidth_bytes_per_second
        return own or (self.gpu.memory_bandwidth_bytes_per_second if self.gpu else None)

    @property
    def has_nvlink(self) -> bool:
        links = self.machine.links
        return any(link.kind == "nvlink" for link in links) if links else bool(self.gpu and self.gpu.link == "nvlink")


def situation_of(
    checkpoint: Checkpoint,
    machine: Machine,
    wish: Wish,
    engine: EngineRef,
    install: EngineInstall | None,
    gpus: list[int] | None,
    evidence: Evidence,
    draft: Checkpoint | None = None,
) -> Situation:
    """Raises FirstlightError `gpu-memory-unknown` when no size of a GPU is to be had."""
    allowed = [a for a in machine.accelerators if gpus is None or a.index in gpus]
    if not allowed:
        raise FirstlightError("no-gpus", "none of the named GPUs is on this machine", evidence=(f"GPUs: {len(machine.accelerators)}",))
    version = engine.version or (install.version if install else None) or newest()
    smallest = min(allowed, key=cuda_total)
    terms = memory_terms(version, kind_of(checkpoint))
    free = [a.free_bytes for a in allowed if a.free_bytes is not None]
    options = options_of(wish, terms, smallest.sm, machine.environment | wish.user_env | wish.env)
    drafter = draft_of(wish.pins.speculative_config, checkpoint, draft, options)
    counted = drafter if isinstance(drafter, Draft) else None
    read = as_vllm_reads(checkpoint, wish)
    return Situation(
        checkpoint=read,
        machine=machine,
        wish=wish,
        engine=EngineRef(name=engine.name, version=version),
        terms=terms,
        gpus=[smallest, *(a for a in allowed if a is not smallest)],
        total_bytes=cuda_total(smallest),
        free_bytes=min(free) if free else None,
        gpu=catalog_entry(smallest),
        sm=smallest.sm,
        nodes=wish.pins.nodes or 1,
        resident=Resident(checkpoint, options),
        evidence=evidence,
        draft=counted,
        draft_uncounted=drafter if isinstance(drafter, str) else None,
        speculation=speculation(read, wish.pins.speculative_config, counted),
    )


def kind_of(checkpoint: Checkpoint) -> ModelKind:
    return ModelKind(
        architectures=checkpoint.architectures,
        moe=bool(experts_of(checkpoint.config)),
        quantized=checkpoint.quantization is not None,
        hybrid=any(g.kind in ("linear", "mamba") for g in checkpoint.kv_cache_groups),
    )


def options_of(wish: Wish, terms: MemoryTerms, sm: int | None, env: Mapping[str, str]) -> Options:
    """What pins and the release make of the weights."""
    pins = wish.pins
    spec = pins.speculative_config or {}
    allocator = env.get("PYTORCH_ALLOC_CONF") or env.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return Options(
        model_dtype_bytes=4 if pins.dtype == "float32" else 2,
        encoder_data_parallel=pins.mm_encoder_tp_mode == "data",
        language_model_only=bool(pins.language_model_only),
        mxfp4=terms.mxfp4_backend.get(f"sm{(sm or 90) // 10 * 10}", "marlin"),
        mxfp4_keeps_scales=terms.mxfp4_keeps_scales,
        draft="mtp" in str(spec.get("method", "")),
        expandable_segments="expandable_segments:true" in allocator.lower(),
    )


def cuda_total(gpu: Accelerator) -> int:
    """CUDA's total: probed, else the catalog's, else derived from the driver's. Raises FirstlightError `gpu-memory-unknown`."""
    if gpu.cuda_total_bytes:
        return gpu.cuda_total_bytes
    entry = catalog_entry(gpu)
    if entry:
        return entry.cuda_total_bytes
    if gpu.driver_total_bytes:
        return round(gpu.driver_total_bytes * DRIVER_TO_CUDA)
    raise FirstlightError("gpu-memory-unknown", f"the memory of {gpu.name} is not known", hint="probe the machine again, or use --gpu")


def catalog_entry(gpu: Accelerator) -> Gpu | None:
    return find_gpu(gpu.catalog_id) if gpu.catalog_id else recognise(gpu.name, gpu.driver_total_bytes)
