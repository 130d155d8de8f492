"""What must hold for every machine and wish."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_models import checkpoint

from firstlight.catalog.gpus import all_gpus, imagine
from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Machine
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.schema import decode, encode
from firstlight.core.units import GIB
from firstlight.plan.flags import as_args, pins_from_args
from firstlight.plan.plan import plan

MODELS = ("kimi-k2.5-nvfp4", "llama-3.1-8b", "qwen3-235b-a22b-fp8", "gpt-oss-120b", "gemma-3-27b", "qwen3.8-27b-fp8")
VERSIONS = ("0.11.0", "0.16.0", "0.20.2", "0.28.0", "0.32.0")
SIZED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def planned(model: str, machine: Machine, version: str, pins: Pins, **intent: Any) -> PlanSet:
    return plan(checkpoint(model), machine, Intent(model=model, pins=pins, **intent), engine=EngineRef(name="vllm", version=version))


def of_size(machine: Machine, total: int) -> Machine:
    gpus = [msgspec.structs.replace(a, cuda_total_bytes=total) for a in machine.accelerators]
    return msgspec.structs.replace(machine, accelerators=gpus)


@SIZED
@given(st.sampled_from(MODELS), st.sampled_from(VERSIONS), st.sampled_from([1, 2, 4, 8]), st.integers(20, 60), st.integers(1, 60))
def test_more_memory_never_fits_less(model: str, version: str, gpus: int, size: int, more: int) -> None:
    """Within one class of the engine's batch defaults (70 GiB and 160 GiB change them)."""
    machine, pins = (
        imagine(f"{gpus}xl40s"),
        Pins(tensor_parallel_size=gpus, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=8192),
    )
    small, large = (planned(model, of_size(machine, n * GIB), version, pins) for n in (size, size + more))
    if small.verdict == "fits":
        assert large.verdict == "fits"
    assert small.best is not None
    assert large.best is not None
    assert (small.best.max_model_len_that_fits.mid or 0) <= (large.best.max_model_len_that_fits.mid or 0)


@SIZED
@given(st.sampled_from(MODELS), st.sampled_from(VERSIONS), st.integers(512, 40000), st.integers(1, 90000))
def test_more_context_never_needs_less(model: str, version: str, length: int, more: int) -> None:
    machine = imagine("8xh200-141gb-sxm")
    verdicts = [
        planned(model, machine, version, Pins(tensor_parallel_size=4, max_model_len=n, max_num_seqs=64)).verdict
        for n in (length, length + more)
    ]
    assert verdicts != ["does-not-fit", "fits"]


@SIZED
@given(st.sampled_from(MODELS), st.sampled_from(VERSIONS), st.sampled_from([g.id for g in all_gpus()]), st.sampled_from([1, 2, 8]))
def test_the_plan_that_is_printed_is_accepted_by_its_own_check(model: str, version: str, gpu: str, count: int) -> None:
    """Its flags, read back as pins, are the same plan."""
    machine = imagine(f"{count}x{gpu}")
    found = planned(model, machine, version, Pins())
    if found.verdict != "fits" or found.best is None:
        return
    again = planned(model, machine, version, pins_from_args(found.best.args))
    assert again.verdict == "fits"
    assert again.best is not None
    assert again.best.args == found.best.args
    assert again.best.per_gpu == found.best.per_gpu


@SIZED
@given(st.sampled_from(MODELS), st.sampled_from(VERSIONS), st.sampled_from([g.id for g in all_gpus()]), st.sampled_from([1, 3, 8, 16]))
def test_a_budget_adds_up_and_intervals_are_ordered(model: str, version: str, gpu: str, count: int) -> None:
    found = planned(model, imagine(f"{count}x{gpu}"), version, Pins())
    assert found.verdict in ("fits", "does-not-fit", "blocked")
    assert found.best is not None
    budget = found.best.per_gpu
    assert budget is not None
    parts = ("weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool")
    for name in (*parts, "usable", "headroom"):
        figure = getattr(budget, name)
        assert figure.low <= figure.mid <= figure.high
        assert figure.rung == "computed"
    assert sum(getattr(budget, name).mid for name in parts) == pytest.approx(budget.usable.mid, abs=16)
    assert (budget.usable.mid or 0) + (budget.headroom.mid or 0) == budget.total.mid
    if found.verdict == "fits":
        assert (found.best.max_model_len or 0) <= (found.best.max_model_len_that_fits.mid or 0)
        assert found.best.tensor_parallel_size * found.best.pipeline_parallel_size * found.best.data_parallel_size <= count


@SIZED
@given(st.sampled_from(MODELS), st.sampled_from(["8xh200", "2xrtx-5090", "1xgb10"]))
def test_a_plan_survives_its_json(model: str, gpus: str) -> None:
    found = planned(model, imagine(gpus), "0.32.0", Pins())
    assert decode(encode(found), PlanSet) == found


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tensor_parallel_size": st.integers(1, 64),
            "max_model_len": st.integers(1, 10**7),
            "gpu_memory_utilization": st.floats(0.01, 1.0, allow_nan=False),
            "kv_cache_memory_bytes": st.integers(1, 10**12),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8", "bfloat16"]),
            "enable_expert_parallel": st.just(True),
            "enforce_eager": st.just(True),
            "speculative_config": st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
        },
    )
)
def test_flags_and_pins_are_two_spellings_of_one_thing(fields: dict[str, Any]) -> None:
    assert pins_from_args(as_args(fields)) == Pins(**fields)
    with_equals = [f"{flag}={value}" if not value.startswith("--") else flag for flag, value in _pairs(as_args(fields))]
    assert pins_from_args(with_equals) == Pins(**fields)


def _pairs(args: list[str]) -> list[tuple[str, str]]:
    """Each flag with its value; a flag without one with the next flag."""
    return [(a, args[i + 1] if i + 1 < len(args) else "--") for i, a in enumerate(args) if a.startswith("--")]


@settings(deadline=None)
@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_engine_flags_are_read_or_refused_with_a_code(args: list[str]) -> None:
    with contextlib.suppress(UsageError):
        assert isinstance(pins_from_args(args), Pins)
