"""The script's JSON becomes an answer: refusals in the engine's words, misunderstandings as findings, never a traceback."""

from typing import Any

import pytest

from firstlight.ask.answer import read_answer, refusal_of
from firstlight.ask.request import Gpu, beside_weights, flags, stages
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Severity
from firstlight.core.plan import Candidate, EngineRef, MemoryBudget

GPU = Gpu(sm=120, count=8, memory=94 << 30, name="RTX PRO 6000")
PLAN = Candidate(engine=EngineRef(name="vllm", version="0.16.0"), tensor_parallel_size=8)
LENGTH = (
    "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (10.0 GiB). Based on the available memory, the estimated maximum model length is 81920."
)
BACKEND = "No valid attention backend found for GPU with AttentionSelectorConfig(head_size=576). Reasons: {TRITON_MLA: [no]}."


def raw(**changes: Any) -> dict[str, Any]:
    weights = {"parameter_bytes": 70 << 30, "allocated_bytes": 71 << 30, "tensors": 2160, "by_dtype": {}, "additions": []}
    rank = {"rank": 0, "weights": weights, "kv": [{"kind": "MLAAttentionSpec", "layers": 61}], "kernels": []}
    rank["attention"] = [{"layer": "mla576", "kv_cache_dtype": "fp8", "chosen": "TRITON_MLA", "rejected": {"FLASHMLA": ["Hopper only"]}}]
    whole = {"phase": "done", "version": "0.24.0", "ranks": [rank], "config": {"gpu_memory_utilization": 0.5}, "seconds": 6.1}
    return {**whole, **changes}


def failed(kind: str, message: str, phase: str, frame: str = "vllm/config/model.py:1 f") -> dict[str, Any]:
    return raw(phase=phase, ranks=[], error={"type": kind, "message": message, "frames": [frame]})


def test_weights_are_asked_and_exact_and_the_rest_keeps_its_rung() -> None:
    answer = read_answer(raw(), PLAN, GPU, build="b")
    assert answer.per_gpu is not None
    assert (answer.per_gpu.weights.low, answer.per_gpu.weights.high) == (71 << 30, 71 << 30)
    assert answer.per_gpu.weights.rung is Rung.ASKED
    assert answer.per_gpu.usable.mid == 47 << 30
    assert answer.per_gpu.activation_peak.mid is None
    assert answer.backends[0].rejected == {"FLASHMLA": ["Hopper only"]}
    assert answer.refusal is None
    assert "activation peak: it is profiled on the GPU" in answer.cannot_know


def test_too_long_a_context_is_the_engines_refusal_with_the_length_that_fits() -> None:
    answer = read_answer(
        raw(phase="kv-cache", error={"type": "ValueError", "message": LENGTH, "frames": ["vllm/v1/x.py:1 f"]}), PLAN, GPU, build=None
    )
    assert answer.refusal == LENGTH
    assert answer.per_gpu is not None  # what was known before stays
    (finding,) = answer.findings
    assert (finding.code, finding.severity, finding.hint) == ("engine-refuses-length", Severity.BLOCKER, "--max-model-len 81920, or less")


def test_no_backend_is_a_refusal_that_keeps_every_reason() -> None:
    seen = [{"layer": "mla576", "kv_cache_dtype": "fp8", "valid": 0, "rejected": {"TRITON_MLA": ["kv_cache_dtype not supported"]}}]
    answer = read_answer({**failed("ValueError", BACKEND, "model"), "selector": seen}, PLAN, GPU, build=None)
    assert answer.findings[0].code == "engine-refuses-backend"
    assert answer.backends[0].chosen is None
    assert answer.backends[0].rejected == {"TRITON_MLA": ["kv_cache_dtype not supported"]}


def test_a_late_refusal_of_a_builder_is_a_refusal() -> None:
    late = raw()
    late["ranks"][0]["late_refusal"] = "--kv-cache-dtype nvfp4 requires sm100f"
    answer = read_answer(late, PLAN, GPU, build=None)
    assert answer.refusal == "--kv-cache-dtype nvfp4 requires sm100f"
    assert answer.findings[0].code == "engine-refuses-late"
    assert answer.backends[0].chosen == "TRITON_MLA"


def test_pydantic_wrapping_is_taken_off_the_engines_own_words() -> None:
    text = "1 validation error for VllmConfig\n  Value error, heads must be divisible [type=value_error, input_value=1]\n    For more"
    assert refusal_of(failed("ValidationError", text, "config", "asking/settings.py:1 f")) == "heads must be divisible"


@pytest.mark.parametrize(
    ("kind", "phase", "frame", "code"),
    [
        ("AttributeError", "model", "vllm/x.py:1 f", "engine-not-understood"),
        ("ValueError", "import", "vllm/x.py:1 f", "engine-not-understood"),
        ("ValueError", "model", "asking/rank.py:1 f", "engine-not-understood"),
        ("OutOfTime", "model", "vllm/x.py:1 f", "asking-too-slow"),
    ],
)
def test_what_is_no_refusal_degrades_to_a_finding(kind: str, phase: str, frame: str, code: str) -> None:
    answer = read_answer(failed(kind, "boom", phase, frame), PLAN, GPU, build=None)
    assert answer.refusal is None
    assert (answer.findings[0].code, answer.findings[0].severity) == (code, Severity.WARNING)
    assert answer.findings[0].note is not None
    assert "computed" in answer.findings[0].note


def test_pipeline_stages_that_differ_are_told_apart_and_the_heaviest_binds() -> None:
    two = raw()
    light, heavy = two["ranks"][0], {**two["ranks"][0], "rank": 8, "weights": {**two["ranks"][0]["weights"], "allocated_bytes": 80 << 30}}
    answer = read_answer({**two, "ranks": [light, heavy]}, PLAN, GPU, build=None)
    assert answer.parameter_bytes == 80 << 30
    assert [r.ranks for r in answer.ranks] == [list(range(8)), list(range(8, 16))]


def test_flags_are_said_once_and_the_servers_own_left_out() -> None:
    plan = Candidate(
        engine=EngineRef(name="vllm"),
        tensor_parallel_size=8,
        max_model_len=131072,
        kv_cache_dtype="fp8",
        enable_expert_parallel=True,
        args=["-tp", "8", "--max-model-len=131072", "--reasoning-parser", "kimi_k2", "--enable-auto-tool-choice", "--enforce-eager"],
    )
    assert flags(plan) == ["-tp", "8", "--max-model-len=131072", "--enforce-eager", "--kv-cache-dtype", "fp8", "--enable-expert-parallel"]


def test_one_rank_of_every_pipeline_stage_is_built() -> None:
    assert stages(Candidate(engine=EngineRef(name="vllm"), tensor_parallel_size=4, pipeline_parallel_size=2)) == [0, 4]


def test_what_stands_beside_the_weights_is_unknown_when_the_plan_knows_nothing() -> None:
    unknown = Figure()
    budget = dict.fromkeys(("total", "usable", "weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom"), unknown)
    assert beside_weights(None) is None
    assert beside_weights(MemoryBudget(**budget)) is None
    assert beside_weights(MemoryBudget(**{**budget, "activation_peak": Figure.exact(5, Rung.COMPUTED)})) == 5
