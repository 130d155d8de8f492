"""What a rehearsal starts, what it reads out of a log, and what it concludes: no engine runs here."""

import json
from typing import Any

import pytest

from firstlight.app.rehearsing import summary
from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, MoeSpec
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Severity
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, MemoryBudget, Predicted
from firstlight.core.run import LaunchSpec
from firstlight.core.units import GIB
from firstlight.engines.vllm.rehearsal import depths, merged, read_figures, rehearsal_spec, truncation
from firstlight.rehearse.decide import decide
from firstlight.rehearse.rehearse import Observation, period, rehearse

ARGV = ["py", "-m", "vllm", "serve", "/m", "--port", "8000", "--load-format=safetensors", "--max-model-len", "4096"]
SPEC = LaunchSpec(engine="vllm", argv=ARGV, port=8000, served_model_name="m", model_path="/m")
CONFIG: dict[str, Any] = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "first_k_dense_replace": 1}
INSTALL = EngineInstall(engine="vllm", version="0.25.1", device="cuda")
NONE = Figure()


def budget(**known: Figure) -> MemoryBudget:
    names = ("total", "usable", "weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom")
    return MemoryBudget(**{n: known.get(n, NONE) for n in names})


def checkpoint(**changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "ref": "m",
        "format": "safetensors",
        "path": "/m",
        "num_hidden_layers": 61,
        "moe": MoeSpec(num_experts=384, first_dense_layers=1),
    }
    return Checkpoint(**{**fields, **changes})


def candidate(**changes: Any) -> Candidate:
    weights = Figure.exact(70 * GIB, Rung.COMPUTED)
    return Candidate(
        **{
            "engine": EngineRef(name="vllm"),
            "max_model_len": 4096,
            "kv_bytes_per_token": 70272,
            "per_gpu": budget(weights=weights),
            **changes,
        }
    )


def machine(free_gib: float) -> Machine:
    return Machine(hostname="h", accelerators=[Accelerator(index=0, name="NVIDIA H200", sm=90, free_bytes=round(free_gib * GIB))])


def worker_log(weights: float, peak: float, non_torch: float, graphs: float, kv: float, tokens: int) -> bytes:
    """The lines of release 0.25 at DEBUG, from two ranks, the second one a little worse off."""
    lines = []
    for rank, more in ((0, 0.0), (1, 0.5)):
        who = f"(Worker_TP{rank} pid={10 + rank}) "
        lines += [
            f"{who}INFO 11-30 08:00:00 [gpu_model_runner.py:1] Model loading took {weights + more:.2f} GiB memory and 12.5 seconds",
            f"{who}INFO 11-30 08:00:01 [gpu_worker.py:1] Available KV cache memory: {kv - more:.2f} GiB",
            f"{who}DEBUG 11-30 08:00:02 [gpu_worker.py:2] Free memory on device (139.20/139.80 GiB) on startup. Desired GPU memory "
            f"utilization is (0.9, 125.82 GiB). Actual usage is {weights + more:.2f} GiB for weight, {peak:.2f} GiB for peak activation, "
            f"{non_torch:.2f} GiB for non-torch memory, and {graphs:.2f} GiB for CUDAGraph memory. Replace gpu_memory_utilization config",
        ]
    lines.append(f"(EngineCore pid=9) INFO 11-30 08:00:03 [kv_cache_utils.py:1] GPU KV cache size: {tokens:,} tokens")
    return "\n".join(lines).encode()


def test_the_rehearsal_keeps_every_flag_but_loader_and_port() -> None:
    spec = rehearsal_spec(SPEC, port=9000, version="0.32.0")
    assert spec.argv == ["py", "-m", "vllm", "serve", "/m", "--max-model-len", "4096", "--load-format", "dummy", "--port", "9000"]
    assert "VLLM_LOGGING_LEVEL" not in spec.env
    assert (spec.model_path, spec.port) == ("/m", 9000)


KEPT_OFF = '{"inductor_compile_config": {"size_asserts": false, "alignment_asserts": false, "scalar_asserts": false}}'


@pytest.mark.parametrize(
    ("flags", "version", "torch", "overrides", "level", "config"),
    [
        ([], "0.25.1", "2.11.0+cu130", None, "DEBUG", KEPT_OFF),
        ([], "0.25.1", None, None, "DEBUG", KEPT_OFF),
        ([], "0.25.1", "2.12.0", None, "DEBUG", None),
        ([], "0.18.1", "2.10.0", None, "DEBUG", None),
        (["--enforce-eager"], "0.25.1", "2.11.0", None, "DEBUG", None),
        ([], "0.25.1", "2.11.0", {"num_hidden_layers": 3}, "DEBUG", None),
        (["-cc.mode", "3"], "0.25.1", "2.11.0", None, None, None),
        (["--compilation_config={}"], "0.25.1", "2.11.0", None, None, None),
        ([], "0.26.0", "2.11.0", None, None, None),
    ],
)
def test_what_the_rehearsal_compiles_is_what_the_launch_will_look_for(
    flags: list[str], version: str, torch: str | None, overrides: dict[str, Any] | None, level: str | None, config: str | None
) -> None:
    mine = LaunchSpec(engine="vllm", argv=[*ARGV, *flags], port=8000)
    spec = rehearsal_spec(mine, port=1, version=version, torch=torch, overrides=overrides)
    assert spec.env.get("VLLM_LOGGING_LEVEL") == level
    assert (spec.argv[spec.argv.index("--compilation-config") + 1] if "--compilation-config" in spec.argv else None) == config


def test_a_level_that_the_user_set_stays() -> None:
    spec = rehearsal_spec(LaunchSpec(engine="vllm", argv=ARGV, port=8000, env={"VLLM_LOGGING_LEVEL": "INFO"}), port=1, version="0.25.1")
    assert spec.env == {"VLLM_LOGGING_LEVEL": "INFO"}
    assert "--compilation-config" not in spec.argv


def test_overrides_are_merged_into_the_users_own() -> None:
    mine = LaunchSpec(engine="vllm", argv=[*ARGV, "--hf_overrides", '{"rope_theta": 1, "text_config": {"a": 1}}'], port=8000)
    spec = rehearsal_spec(mine, port=1, version=None, overrides={"text_config": {"num_hidden_layers": 3}})
    value = json.loads(spec.argv[spec.argv.index("--hf-overrides") + 1])
    assert value == {"rope_theta": 1, "text_config": {"a": 1, "num_hidden_layers": 3}}
    assert spec.argv.count("--hf-overrides") == 1
    assert merged({"a": {"b": 1}}, {"a": 2}) == {"a": 2}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, {"num_hidden_layers": 3}),
        ({"text_config": CONFIG, "vision_config": {"num_hidden_layers": 27}}, {"text_config": {"num_hidden_layers": 3}}),
        (
            {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "hybrid_override_pattern": "M*M*", "dtype": "bf16"},
            {"num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "hybrid_override_pattern": "M*M"},
        ),
        ({"num_hidden_layers": 7, "scoring_func": "sigmoid", "eos_token_id": [1, 2, 3, 4, 5, 6, 7]}, {"num_hidden_layers": 3}),
        ({"hidden_size": 8}, {}),
    ],
)
def test_truncation_follows_the_config(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert truncation(config, 3) == expected


def test_two_depths_hold_the_dense_layers_and_whole_periods() -> None:
    assert depths(CONFIG, first_dense=1, period=1) == (3, 4)
    assert depths({"text_config": {"num_hidden_layers": 48}}, first_dense=0, period=4) == (4, 8)
    assert depths({"num_hidden_layers": 4}, first_dense=1, period=1) is None
    hybrid = checkpoint(
        num_hidden_layers=12,
        kv_cache_groups=[
            KvCacheGroup(kind="full", layers=[3, 7, 11]),
            KvCacheGroup(kind="linear", layers=[i for i in range(12) if i % 4 != 3]),
        ],
    )
    assert period(hybrid) == 4
    assert period(checkpoint()) == 1


def test_figures_are_those_of_the_rank_that_binds() -> None:
    found = read_figures(worker_log(23.0, 2.0, 1.0, 0.5, 99.0, 1000), 'vllm:cache_config_info{block_size="16",num_gpu_blocks="77"} 1.0\n')
    assert found.weights == round(23.5 * GIB)
    assert found.kv_pool == round(98.5 * GIB)
    assert (found.activation_peak, found.non_torch, found.cuda_graphs) == (2 * GIB, GIB, GIB // 2)
    assert (found.total, found.usable) == (round(139.8 * GIB), round(125.82 * GIB))
    assert (found.kv_tokens, found.num_gpu_blocks) == (1000, 77)


def test_newer_releases_give_weights_and_non_torch_together() -> None:
    text = (
        b"INFO 11-30 08:00:00 [a.py:1] Model loading took 10.00 GiB memory and 1 seconds\n"
        b"INFO 11-30 08:00:00 [a.py:1] Free memory on device (79.00/80.00 GiB) on startup. Desired GPU memory utilization is "
        b"(0.92, 73.60 GiB). Actual usage is 11.50 GiB for consumed memory (weights + non-torch), 2.00 GiB for peak activation, "
        b"and 0.75 GiB for CUDAGraph memory.\n"
    )
    found = read_figures(text)
    assert (found.weights, found.non_torch, found.activation_peak) == (10 * GIB, round(1.5 * GIB), 2 * GIB)
    assert found.cuda_graphs == round(0.75 * GIB)


def test_a_silent_log_gives_nothing_rather_than_zero() -> None:
    found = read_figures(b"nothing here\n")
    assert all(getattr(found, f) is None for f in found.__struct_fields__)


def run(observe: Any, free_gib: float = 139.0, **changes: Any) -> Any:
    arguments = {
        "checkpoint": checkpoint(),
        "candidate": candidate(),
        "machine": machine(free_gib),
        "install": INSTALL,
        "config": CONFIG,
        "port": 9,
    }
    return rehearse(SPEC, observe=observe, **{**arguments, **changes})


def test_full_depth_passes_with_measured_figures() -> None:
    seen = []

    def observe(spec: LaunchSpec, patience: float) -> Observation:
        seen.append(spec)
        return Observation(ready=True, answered=True, log=worker_log(70.0, 3.0, 1.0, 0.5, 50.0, 700_000), phase_seconds={"loading": 3.0})

    report = run(observe)
    assert (report.passed, report.depth, report.extrapolated, len(seen)) == (True, None, False, 1)
    assert report.per_gpu.weights == Figure(
        low=round(70.5 * GIB),
        mid=round(70.5 * GIB),
        high=round(70.5 * GIB),
        rung=Rung.REHEARSED,
        because="measured with dummy weights at full depth",
    )
    assert (report.kv_tokens, report.refusal) == (700_000, None)
    assert any("quality" in line for line in report.cannot_prove)


def test_without_room_two_depths_give_the_line() -> None:
    asked: list[int] = []

    def observe(spec: LaunchSpec, patience: float) -> Observation:
        layers = json.loads(spec.argv[spec.argv.index("--hf-overrides") + 1])["num_hidden_layers"]
        asked.append(layers)
        return Observation(ready=True, answered=True, log=worker_log(5.0 + layers, 3.0, 1.0, 0.1 * layers, 90.0, 1))

    report = run(observe, free_gib=20.0)
    assert asked == [3, 4]
    assert (report.passed, report.extrapolated, report.depth) == (True, True, 4)
    assert report.per_gpu.weights.mid == pytest.approx((5.5 + 61) * GIB, rel=1e-6)
    assert report.per_gpu.cuda_graphs.mid == pytest.approx(6.1 * GIB, rel=1e-6)
    pool = 125.82 - 66.5 - 3.0 - 1.0 - 6.1
    assert report.per_gpu.kv_pool.mid == pytest.approx(pool * GIB, rel=1e-3)
    assert report.kv_tokens == pytest.approx(pool * GIB / 70272, rel=1e-3)
    assert "do not fit" in report.cannot_prove[0]


def test_the_line_refutes_a_context_that_does_not_fit() -> None:
    def observe(spec: LaunchSpec, patience: float) -> Observation:
        layers = json.loads(spec.argv[spec.argv.index("--hf-overrides") + 1])["num_hidden_layers"]
        return Observation(ready=True, answered=True, log=worker_log(2.0 * layers, 3.0, 1.0, 0.1, 90.0, 1))

    report = run(observe, depth="truncated", candidate=candidate(max_model_len=262_144))
    assert not report.passed
    assert report.findings[0].code == "context-does-not-fit"
    assert "262,144" in report.refusal


def test_first_failure_ends_a_truncated_rehearsal() -> None:
    starts = []

    def observe(spec: LaunchSpec, patience: float) -> Observation:
        starts.append(spec)
        return Observation(ready=False, refusal="no valid attention backend", code="attention-backend-missing")

    report = run(observe, depth="truncated")
    assert (len(starts), report.passed, report.refusal) == (1, False, "no valid attention backend")
    assert report.findings[0].code == "attention-backend-missing"


def test_ready_but_dead_on_the_first_request_is_a_failure() -> None:
    report = run(lambda spec, patience: Observation(ready=True, answered=False, refusal="expected scalar type BFloat16"))
    assert not report.passed
    assert "BFloat16" in report.refusal


def test_full_depth_that_takes_too_long_is_truncated() -> None:
    def observe(spec: LaunchSpec, patience: float) -> Observation:
        if "--hf-overrides" not in spec.argv:
            return Observation(ready=False, timed_out=True, seconds=patience)
        return Observation(ready=True, answered=True, log=worker_log(5.0, 3.0, 1.0, 0.1, 90.0, 1))

    report = run(observe, patience=5.0)
    assert report.extrapolated
    assert "did not end within 5 s" in report.cannot_prove[0]


def test_a_start_that_comes_to_no_end_says_nothing_against_the_plan() -> None:
    report = run(lambda spec, patience: Observation(ready=False, timed_out=True, seconds=patience), patience=5.0)
    assert (report.passed, [f.code for f in report.findings]) == (False, ["rehearsal-too-slow"])
    assert report.findings[0].severity is Severity.WARNING
    assert summary(report).startswith("nothing learned in ")


def test_an_engine_without_dummy_weights_is_not_passed() -> None:
    spec = LaunchSpec(engine="llamacpp", argv=["x"], port=1)
    report = rehearse(
        spec, checkpoint=checkpoint(), candidate=candidate(), machine=machine(1), install=INSTALL, config={}, port=1,
        observe=lambda s, p: pytest.fail("nothing may be started"),
    )  # fmt: skip
    assert (report.passed, report.findings[0].code) == (False, "rehearsal-unsupported")


def test_when_up_rehearses() -> None:
    def predicted(seconds: float) -> Predicted:
        figure = Figure.exact(seconds, Rung.COMPUTED)
        return Predicted(load_seconds=figure, decode_tokens_per_second_upper_bound=NONE, ready_seconds=figure)

    def ask(c: Candidate, *, missing: bool = False, mode: str = "auto", engine: str = "vllm") -> bool:
        return decide(mode, candidate=c, weights_missing=missing, engine=engine).rehearse

    clear = candidate(predicted=predicted(20), max_model_len_that_fits=Figure(low=100_000, mid=120_000, high=140_000))
    assert not ask(clear)
    assert ask(clear, missing=True)
    assert ask(clear, mode="always")
    assert not ask(clear, mode="never", missing=True)
    assert ask(candidate(predicted=predicted(500)))
    assert ask(candidate(max_model_len=120_000, max_model_len_that_fits=Figure(low=100_000, mid=110_000, high=140_000)))
    assert not ask(clear, mode="always", engine="llamacpp")
