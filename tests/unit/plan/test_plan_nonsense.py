"""Configs, machines and flags that nobody could mean: an answer or an error with a code, never a traceback, and no figure made up."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_models import checkpoint

from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint, KvCacheGroup
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.schema import encode
from firstlight.plan.plan import plan
from firstlight.plan.sound import SIZES, sound_checkpoint

MODELS = ("kimi5", "qwen3-32b", "gpt-oss-120b", "qwen3.8-27b-fp8", "gemma-3-27b", "gemma-4-26b", "nemotron-3-nano-4b", "llama-4-scout")
ABSURD = (0, -1, 3, 10**30, 1 << 63, math.nan, math.inf, -math.inf, None, "", "128", [], [1], {}, {"a": 1}, True, 0.5, 1e308)
KEYS = (*SIZES, "model_type", "vision_config", "rope_scaling", "rope_parameters", "layer_types", "tie_word_embeddings", "sliding_window")
FIELDS: dict[str, list[Any]] = {
    "num_hidden_layers": [None, 0, -3, 10**9],
    "max_position_embeddings": [None, 0, -5, 10**15],
    "tensor_bytes": [None, 0, -1, 10**18],
    "kv_cache_groups": [[], [KvCacheGroup(kind="full", layers=[-1, 10**9], bytes_per_token_per_layer={"bf16": -5.0})]],
    "tensor_groups": [[]],
}
MACHINES = st.one_of(
    st.builds(lambda n, gpu: imagine(f"{n}x{gpu}"), st.sampled_from([1, 3, 8]), st.sampled_from(["h100", "rtx-4090", "gb10", "b200"])),
    st.builds(
        Machine,
        hostname=st.just("h"),
        memory_total_bytes=st.sampled_from([None, 0, -1, 10**10]),
        memory_available_bytes=st.sampled_from([None, 0, -1, 10**10]),
        memory_bandwidth_bytes_per_second=st.sampled_from([None, 0.0, -1.0, math.nan, 1e11]),
        cpu_count=st.sampled_from([None, 0, -1, 10**9, 8]),
        numa_nodes=st.sampled_from([None, 0, -1, 2]),
    ),
    st.builds(
        lambda gpu, n: Machine(hostname="h", accelerators=[gpu] * n),
        st.builds(
            Accelerator,
            index=st.just(0),
            name=st.sampled_from(["", "NVIDIA H100", "x"]),
            sm=st.sampled_from([None, 0, -1, 90, 10**9]),
            cuda_total_bytes=st.sampled_from([None, 0, -1, 1, 10**10, 10**18]),
            driver_total_bytes=st.sampled_from([None, 0, 10**11]),
            free_bytes=st.sampled_from([None, 0, -1, 10**10]),
            memory_bandwidth_bytes_per_second=st.sampled_from([None, 0.0, -1.0, math.inf, 1e12]),
        ),
        st.integers(1, 3),
    ),
)
PINS = st.builds(
    Pins,
    tensor_parallel_size=st.sampled_from([None, 1, 2, 3, 64, 1024, 0]),
    pipeline_parallel_size=st.sampled_from([None, 1, 2, 100, 1024]),
    data_parallel_size=st.sampled_from([None, 1, 8]),
    decode_context_parallel_size=st.sampled_from([None, None, 1, 2, 7]),
    nodes=st.sampled_from([None, 1, 2, 64]),
    max_model_len=st.sampled_from([None, -1, 1, 17, 1 << 40]),
    max_num_seqs=st.sampled_from([None, 1, 10**6]),
    max_num_batched_tokens=st.sampled_from([None, 1, 10**8]),
    gpu_memory_utilization=st.sampled_from([None, 1e-9, 1.0]),
    kv_cache_memory_bytes=st.sampled_from([None, None, 1, 10**14]),
    kv_cache_dtype=st.sampled_from([None, "auto", "fp8", "nvfp4", "x"]),
    block_size=st.sampled_from([None, 1, 1 << 20]),
    speculative_config=st.sampled_from([None, {}, {"method": None}, {"method": "mtp"}]),
    enable_expert_parallel=st.sampled_from([None, True]),
)
ENGINES = st.sampled_from([("vllm", None), ("vllm", "0.16.0"), ("vllm", "0.8.5"), ("vllm", "99"), ("vllm", ""), ("llamacpp", None)])


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    found = checkpoint(draw(st.sampled_from(MODELS)))
    changes = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ABSURD), max_size=3))
    fields = {name: draw(st.sampled_from(values)) for name, values in FIELDS.items() if draw(st.integers(0, 9)) == 0}
    return msgspec.structs.replace(found, config=found.config | changes, **fields)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(checkpoints(), MACHINES, PINS, ENGINES)
def test_nonsense_gets_an_answer_or_an_error_with_a_code(
    model: Checkpoint, machine: Machine, pins: Pins, engine: tuple[str, str | None]
) -> None:
    try:
        found = plan(model, machine, Intent(model="m", pins=pins), engine=EngineRef(name=engine[0], version=engine[1]))
    except FirstlightError:
        return  # it has a code by its class
    assert found.verdict in ("fits", "does-not-fit", "blocked")
    json.loads(encode(found), parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    if found.verdict == "fits":
        promises_nothing_negative(found)


def promises_nothing_negative(found: PlanSet) -> None:
    assert found.best is not None
    assert found.best.max_model_len is None or found.best.max_model_len > 0
    budget = found.best.per_gpu
    assert budget is not None
    for name in ("weights", "kv_pool", "activation_peak"):
        assert (getattr(budget, name).mid or 0) >= 0


def test_what_counts_as_missing_is_said() -> None:
    model = checkpoint("llama-3.1-8b")
    odd = msgspec.structs.replace(model, config=model.config | {"head_dim": -128, "vocab_size": math.nan})
    found = plan(odd, imagine("1xh100-80gb-sxm"), Intent(model="m"), engine=EngineRef(name="vllm"))
    finding = next(f for f in found.findings if f.code == "config-absurd-value")
    assert finding.evidence == ["head_dim: -128", "vocab_size: nan"]


def test_sizes_by_layer_are_not_absurd() -> None:
    """Some published configs have lists where others have one number."""
    model = checkpoint("llama-3.1-8b")
    lists = msgspec.structs.replace(model, config=model.config | {"intermediate_size": [14336] * 32, "num_experts": 0})
    sound, finding = sound_checkpoint(lists)
    assert finding is None
    assert "intermediate_size" not in sound.config


def test_a_sound_checkpoint_is_left_as_it_is() -> None:
    for name in MODELS:
        model = checkpoint(name)
        sound, finding = sound_checkpoint(model)
        assert finding is None
        assert sound == model


def test_a_version_that_is_none() -> None:
    with pytest.raises(UsageError, match="bad-engine-version"):
        plan(checkpoint("qwen3-8b"), imagine("1xh100"), Intent(model="m"), engine=EngineRef(name="vllm", version="latest"))
