"""Rows of tests/data/plan as plans: what is promised for the setup that somebody measured."""

from typing import Any, NamedTuple

import msgspec
from plan_models import checkpoint

from firstlight.catalog.engines import memory_terms
from firstlight.catalog.gpus import imagine
from firstlight.core.figures import Figure
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.units import GIB
from firstlight.plan.evaluate import kv_of
from firstlight.plan.flags import pins_from_args
from firstlight.plan.kv import dtype_key
from firstlight.plan.plan import plan
from firstlight.plan.rungs import Evidence
from firstlight.plan.search import choice_of, kv_dtypes, layouts
from firstlight.plan.situation import situation_of
from firstlight.plan.wish import wish_of


class Promise(NamedTuple):
    """Figures in bytes next to what was measured (None where the row has none)."""

    weights: Figure
    pool: Figure
    measured_weights: float | None
    measured_pool: float | None

    @property
    def pool_error(self) -> float:
        """Relative error of the pool's middle."""
        assert self.measured_pool is not None
        return (self.pool.mid or 0) / self.measured_pool - 1

    @property
    def covered(self) -> bool:
        assert self.measured_pool is not None
        return (self.pool.low or 0) <= self.measured_pool <= (self.pool.high or 0)

    @property
    def half_width(self) -> float:
        """Half the interval over its middle."""
        return ((self.pool.high or 0) - (self.pool.low or 0)) / 2 / abs(self.pool.mid or 1)


def machine_of(row: dict[str, Any]) -> Machine:
    """The row's GPUs with the total that its log printed."""
    count = row["tp"] * row.get("pp", 1) * row.get("dp", 1)
    if row["gpu"] == "t4":
        gpu = Accelerator(index=0, name="Tesla T4", sm=75)
        machine = Machine(hostname="1xt4", accelerators=[msgspec.structs.replace(gpu, index=i) for i in range(count)])
    else:
        machine = imagine(f"{count}x{row['gpu']}")
    if "total_gib" not in row:
        return machine
    total = round(row["total_gib"] * GIB)
    return msgspec.structs.replace(machine, accelerators=[msgspec.structs.replace(a, cuda_total_bytes=total) for a in machine.accelerators])


def planned(row: dict[str, Any]) -> PlanSet:
    """The row's own setup: what it does not say was the release's default."""
    machine = machine_of(row)
    pins = pins_from_args(row["args"]) if "args" in row else _stated(row, machine.accelerators[0])
    engine = EngineRef(name="vllm", version=row["engine"])
    return plan(checkpoint(row["model"]), machine, Intent(model=row["model"], pins=pins), engine=engine)


def _stated(row: dict[str, Any], gpu: Accelerator) -> Pins:
    """A public figure's setup in the row's own words."""
    terms = memory_terms(row["engine"])
    kind = terms.gpu_class(gpu.cuda_total_bytes or 0, gpu.name)
    return Pins(
        tensor_parallel_size=row["tp"],
        pipeline_parallel_size=row.get("pp"),
        enable_expert_parallel=row.get("ep"),
        gpu_memory_utilization=row.get("utilization"),
        max_model_len=row.get("max_model_len"),
        max_num_seqs=row.get("max_num_seqs") or terms.max_num_seqs[kind],
        max_num_batched_tokens=row.get("max_num_batched_tokens") or terms.max_num_batched_tokens[kind],
        enforce_eager=row.get("eager"),
        language_model_only=row.get("language_model_only"),
        speculative_config=row.get("speculative_config"),
    )


def promise(row: dict[str, Any]) -> Promise:
    best = planned(row).best
    assert best is not None
    assert best.per_gpu is not None
    first = best.ranks[0].per_gpu if best.ranks else best.per_gpu
    pool, weights = row.get("kv_gib"), row.get("weights_gib")
    return Promise(first.weights, first.kv_pool, weights * GIB if weights else None, pool * GIB if pool else None)


def logged_tokens(row: dict[str, Any]) -> int:
    """What the engine's `KV cache size` line says for the pool that was measured, by the plan's groups and pages."""
    wish = wish_of(Intent(model=row["model"], pins=pins_from_args(row["args"])), [])
    engine = EngineRef(name="vllm", version=row["engine"])
    s = situation_of(checkpoint(row["model"]), machine_of(row), wish, engine, None, None, Evidence())
    dtype = kv_dtypes(s)[0][0]
    kv = kv_of(s, choice_of(s, next(layouts(s)), dtype), dtype_key(dtype.dtype))
    assert wish.max_model_len is not None
    return kv.logged_tokens(row["kv_gib"] * GIB, wish.max_model_len, s.terms.version)
