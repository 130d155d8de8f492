"""One line a stage: what a person wants to know of its result."""

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, PlanSet
from firstlight.core.units import format_bytes


def checkpoint(c: Checkpoint) -> str:
    parts = [", ".join(c.architectures) or c.model_type or c.format]
    if c.parameters.total:
        parts.append(
            _count(c.parameters.total)
            + (f" ({_count(c.parameters.active)} active)" if c.parameters.active not in (None, c.parameters.total) else "")
        )
    quantization = c.quantization and (c.quantization.format or c.quantization.method)
    parts += [p for p in (quantization, c.attention and c.attention.upper(), c.tensor_bytes and format_bytes(c.tensor_bytes)) if p]
    return " · ".join(parts)


def _count(n: int | None) -> str:
    if n is None:
        return "?"
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def machine(m: Machine, install: EngineInstall | None) -> str:
    gpus: dict[str, int] = {}
    for a in m.accelerators:
        gpus[a.name] = gpus.get(a.name, 0) + 1
    parts = [f"{n} x {name}" for name, n in gpus.items()] or ["no GPU"]
    parts.append(f"{m.cpu_count or '?'} cores, {format_bytes(m.memory_total_bytes, digits=0)}")
    if install:
        parts.append(engine(install))
    return " · ".join(parts)


def engine(install: EngineInstall) -> str:
    device = f" ({install.device})" if install.device else ""
    return f"{install.engine} {install.version or '?'}{device}"


def plan(p: PlanSet) -> str:
    if p.best is None:
        return p.verdict
    verdict = "not computed" if p.verdict == "unknown" else p.verdict
    return f"{verdict} · {layout(p.best)}"


def layout(c: Candidate) -> str:
    parts = [f"{c.engine.name}"]
    sizes = (
        ("tp", c.tensor_parallel_size),
        ("pp", c.pipeline_parallel_size),
        ("dp", c.data_parallel_size),
        ("dcp", c.decode_context_parallel_size),
    )
    parts += [f"{name}{n}" for name, n in sizes if n > 1]
    parts += ["ep"] if c.enable_expert_parallel else []
    parts += [f"context {c.max_model_len:,}"] if c.max_model_len else []
    parts += [f"{c.max_num_seqs} at once"] if c.max_num_seqs else []
    parts += [f"KV {c.kv_cache_dtype}"] if c.kv_cache_dtype not in (None, "auto") else []
    return " ".join(parts[:1]) + ("" if len(parts) == 1 else " · " + " · ".join(parts[1:]))
