"""Which layouts are legal, which is chosen, and what is said about the others."""

from typing import Any

import msgspec
import pytest
from plan_models import checkpoint

from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint, KvCacheQuantization
from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import GpuProcess, Machine
from firstlight.core.plan import Constraint, EngineRef, PlanSet
from firstlight.core.units import GIB
from firstlight.plan.plan import plan


def planned(model: str | Checkpoint, where: str | Machine, engine: str = "0.32.0", **wish: Any) -> PlanSet:
    found = checkpoint(model) if isinstance(model, str) else model
    machine = imagine(where) if isinstance(where, str) else where
    constraints = wish.pop("constraints", ())
    intent = {k: wish.pop(k) for k in ("purpose", "context", "concurrency", "extra_args", "env", "gpus") if k in wish}
    return plan(
        found,
        machine,
        Intent(model=found.ref, pins=Pins(**wish), **intent),
        engine=EngineRef(name="vllm", version=engine),
        constraints=constraints,
    )


def occupied(where: str, *, free: int) -> Machine:
    """A machine whose first GPU has only so many bytes free."""
    machine = imagine(where)
    gpu = msgspec.structs.replace(machine.accelerators[0], free_bytes=free)
    return msgspec.structs.replace(machine, accelerators=[gpu, *machine.accelerators[1:]])


def kimi(embedded: bool = True) -> Checkpoint:
    source = KvCacheQuantization(dtype="fp8", sources=["hf_quant_config.json:quantization.kv_cache_quant_algo"])
    return msgspec.structs.replace(checkpoint("kimi-k2.5-nvfp4"), kv_cache_quantization=source if embedded else None)


RTX = "8xrtx-pro-6000-blackwell"


def test_262144_tokens_do_not_fit_at_090_and_the_way_out_is_named() -> None:
    found = planned(kimi(), RTX, "0.16.0", tensor_parallel_size=8, max_model_len=262144, gpu_memory_utilization=0.90)
    assert found.verdict == "does-not-fit"
    assert found.best is not None
    assert found.best.per_gpu is not None
    assert found.best.tensor_parallel_size == 8
    assert (found.best.per_gpu.weights.mid or 0) / GIB == pytest.approx(70.81, abs=0.01)
    assert (found.best.per_gpu.kv_pool.low or 0) / GIB < 11.7 < (found.best.per_gpu.kv_pool.high or 0) / GIB
    assert found.best.kv_bytes_per_token == 70272
    assert (found.best.kv_tokens.low or 0) < 178_000 < (found.best.kv_tokens.high or 0)
    assert {r.code for r in found.rejected} >= {"kv-too-small-for-max-len"}
    assert any(a.pipeline_parallel_size == 2 for a in found.alternatives)
    assert "--max-model-len" in (found.findings[-1].hint or "")


def test_131072_tokens_fit_at_095_on_an_overlay_with_the_models_parsers() -> None:
    found = planned(kimi(), RTX, "0.16.0", tensor_parallel_size=8, max_model_len=131072, gpu_memory_utilization=0.95)
    assert found.verdict == "fits"
    assert found.best is not None
    assert found.best.overlay is not None
    args = " ".join(found.best.args)
    assert "--tool-call-parser kimi_k2" in args
    assert "--reasoning-parser kimi_k2" in args
    assert any(r.code == "attn-backend-unsupported-kv-dtype" for r in found.rejected)


def test_an_embedded_fp8_cache_stays_where_a_backend_has_it() -> None:
    found = planned(kimi(), RTX, "0.18.1", tensor_parallel_size=8)
    assert found.best is not None
    assert found.best.kv_cache_dtype == "fp8"
    assert found.best.kv_bytes_per_token == 35136
    assert "--kv-cache-dtype" not in found.best.args


def test_a_pinned_kv_dtype_without_a_backend_blocks_and_names_what_would_do() -> None:
    found = planned(kimi(), RTX, "0.16.0", tensor_parallel_size=8, kv_cache_dtype="fp8")
    assert found.verdict == "blocked"
    assert found.findings[0].code == "attn-backend-unsupported-kv-dtype"
    assert found.alternatives
    assert found.alternatives[0].kv_cache_dtype == "bfloat16"


def test_remote_code_is_in_the_command_when_the_model_needs_it() -> None:
    from firstlight.core.checkpoint import RemoteCode

    model = msgspec.structs.replace(kimi(), trust_remote_code=RemoteCode(needed=True))
    found = planned(model, RTX, "0.16.0", tensor_parallel_size=8)
    assert found.best is not None
    assert "--trust-remote-code" in found.best.args


def test_quant_blocks_must_divide_up_to_028() -> None:
    refused = planned("qwen3-235b-a22b-fp8", "8xh100-80gb-sxm", "0.28.0", tensor_parallel_size=8)
    assert refused.verdict == "blocked"
    assert refused.best is not None
    assert refused.best.tensor_parallel_size == 8
    assert not refused.best.enable_expert_parallel
    reason = next(r for r in refused.rejected if r.code == "tp-quant-block-not-divisible")
    assert "1536 / 8 = 192" in reason.because
    assert "1|2|4" in reason.because
    assert "--enable-expert-parallel" in reason.because
    assert "0.29" in reason.because
    assert {(a.tensor_parallel_size, a.enable_expert_parallel) for a in refused.alternatives} >= {(4, False), (8, True)}
    assert planned("qwen3-235b-a22b-fp8", "8xh100-80gb-sxm", "0.29.0", tensor_parallel_size=8).verdict == "fits"


def test_heads_must_divide() -> None:
    found = planned("r1-distill-qwen-14b", "6xrtx-4090", tensor_parallel_size=6)
    assert found.verdict == "blocked"
    assert found.findings[0].code == "tp-heads-not-divisible"
    assert "1|2|4|8" in found.findings[0].evidence[0]


def test_context_parallelism_needs_replicated_heads() -> None:
    found = planned("qwen3-32b", "8xh100-80gb-sxm", tensor_parallel_size=8, decode_context_parallel_size=8)
    assert found.findings[0].code == "dcp-tp-le-kv-heads"


def test_too_few_gpus_is_said_with_the_budget_all_the_same() -> None:
    found = planned("qwen3-32b", "2xh100-80gb-sxm", tensor_parallel_size=4)
    assert found.verdict == "blocked"
    assert found.findings[0].code == "too-few-gpus"
    assert found.best is not None
    assert found.best.per_gpu is not None


def test_more_stages_than_layers_are_refused_with_the_layout_all_the_same() -> None:
    found = planned("qwen3-32b", "8xh100-80gb-sxm", pipeline_parallel_size=100)
    assert found.verdict == "blocked"
    assert found.best is not None
    assert found.best.pipeline_parallel_size == 100


def test_a_small_model_leaves_the_other_gpus_alone() -> None:
    found = planned("llama-3.1-8b", "8xh100-80gb-sxm")
    assert found.best is not None
    assert found.best.tensor_parallel_size * found.best.data_parallel_size == 1


def test_throughput_takes_the_whole_machine() -> None:
    found = planned("llama-3.1-8b", "8xh100-80gb-sxm", purpose="throughput")
    assert found.best is not None
    best = found.best
    assert best.tensor_parallel_size * best.pipeline_parallel_size * best.data_parallel_size == 8


def test_a_stated_context_is_kept_or_refused_never_shortened() -> None:
    fits = planned("llama-3.1-8b", "2xrtx-4090", context=131072)
    assert fits.best is not None
    assert fits.best.max_model_len == 131072
    assert fits.best.tensor_parallel_size == 2
    assert planned("llama-3.1-8b", "1xrtx-4090", context=131072, kv_cache_dtype="bfloat16").verdict == "does-not-fit"


def test_an_fp8_cache_is_tried_only_where_nothing_fits_without() -> None:
    found = planned("llama-3.1-8b", "1xrtx-4090", context=100_000)
    assert found.verdict == "fits"
    assert found.best is not None
    assert found.best.kv_cache_dtype == "fp8"
    assert "--kv-cache-dtype" in found.best.args


def test_two_nodes_hold_what_one_does_not() -> None:
    one = planned("deepseek-v3", "8xh100-80gb-sxm")
    two = planned("deepseek-v3", "8xh100-80gb-sxm", nodes=2)
    assert one.verdict == "does-not-fit"
    assert two.verdict == "fits"
    assert two.best is not None
    assert two.best.nodes == 2
    assert "--nnodes" in two.best.args


def test_mixed_gpus_use_the_smallest() -> None:
    small, large = imagine("1xrtx-4090").accelerators[0], imagine("1xrtx-5090").accelerators[0]
    machine = Machine(hostname="mixed", accelerators=[large, msgspec.structs.replace(small, index=1)])
    found = planned("llama-3.1-8b", machine, tensor_parallel_size=2)
    assert found.best is not None
    assert found.best.per_gpu is not None
    assert found.best.per_gpu.total.mid == small.cuda_total_bytes
    assert any(f.code == "mixed-gpus" for f in found.findings)


def test_memory_that_somebody_holds_lowers_the_utilization_with_a_warning() -> None:
    held = occupied("1xh100-80gb-sxm", free=40 * GIB)
    found = planned("llama-3.1-8b", held)
    assert found.verdict == "fits"
    assert found.best is not None
    assert (found.best.gpu_memory_utilization or 1) * (held.accelerators[0].cuda_total_bytes or 0) <= 40 * GIB
    assert [f.code for f in found.findings if f.severity == "warning"] == ["gpu-memory-occupied"]
    assert planned("llama-3.1-8b", held, gpu_memory_utilization=0.9).verdict == "blocked"


def test_state_blocks_bound_the_sequences() -> None:
    pinned = planned("qwen3.8-27b-fp8", "1xrtx-pro-6000-blackwell", "0.28.0", tensor_parallel_size=1, max_num_seqs=4096)
    assert any(r.code == "mamba-blocks-lt-max-num-seqs" for r in pinned.rejected)
    free = planned("qwen3.8-27b-fp8", "1xl40s", "0.28.0")
    assert free.verdict == "fits"
    assert free.best is not None


def test_too_few_state_blocks_at_the_low_end_are_said_and_avoided() -> None:
    """Qwen3.8-27B-FP8 on one 96 GB card: vLLM 0.27 had 939 blocks for its default of 1,024 sequences, and did not start."""
    pinned = planned("qwen3.8-27b-fp8", "1xrtx-pro-6000-blackwell", "0.27.1", tensor_parallel_size=1, max_num_seqs=1024)
    finding = next(f for f in pinned.findings if f.code == "mamba-blocks-lt-max-num-seqs")
    assert finding.severity == "warning"
    free = planned("qwen3.8-27b-fp8", "1xrtx-pro-6000-blackwell", "0.27.1")
    assert free.verdict == "fits"
    assert free.best is not None
    assert (free.best.max_num_seqs or 0) <= 939


def test_pinned_kv_bytes_make_tokens_exact() -> None:
    found = planned("llama-3.1-8b", "1xh100-80gb-sxm", kv_cache_memory_bytes=16 * GIB, max_model_len=8192)
    assert found.best is not None
    assert found.best.per_gpu is not None
    assert found.best.kv_tokens.low == found.best.kv_tokens.mid == found.best.kv_tokens.high == 131072
    assert "--gpu-memory-utilization" not in found.best.args
    too_much = planned("llama-3.1-8b", "1xh100-80gb-sxm", kv_cache_memory_bytes=70 * GIB, max_model_len=8192)
    assert too_much.verdict == "does-not-fit"


def test_pinned_kv_bytes_beside_another_process() -> None:
    """The engine's start-up check counts the utilization in any case; what others hold is not there for the pinned cache."""
    held = occupied("1xh100-80gb-sxm", free=40 * GIB)
    found = planned("llama-3.1-8b", held, kv_cache_memory_bytes=8 * GIB, max_model_len=8192)
    assert found.best is not None
    assert float(found.best.args[found.best.args.index("--gpu-memory-utilization") + 1]) <= 0.5
    assert planned("llama-3.1-8b", held, kv_cache_memory_bytes=30 * GIB, max_model_len=8192).verdict == "blocked"
    asked = planned("llama-3.1-8b", "1xh100-80gb-sxm", kv_cache_memory_bytes=8 * GIB, gpu_memory_utilization=0.3, max_model_len=8192)
    assert asked.best is not None
    assert "0.3" in asked.best.args


def test_single_kv_head_mla_may_run_data_parallel() -> None:
    """DP attention with shared experts multiplies a latent cache that TP would copy."""
    found = planned("deepseek-v3", "8xh200-141gb-sxm", "0.22.0", purpose="throughput")
    assert found.best is not None
    assert found.best.data_parallel_size > 1


def test_every_layout_that_was_looked_at_has_a_fate() -> None:
    found = planned("qwen3-32b", "4xh100-80gb-sxm")
    assert found.rejected
    assert all(r.code and r.because for r in found.rejected)
    assert len({r.layout for r in found.rejected}) == len(found.rejected)


def test_constraints_of_healing_are_kept() -> None:
    limits = [
        Constraint(field="max_num_seqs", op="<=", value=64, because="out of memory in the sampler's warm-up", source="oom-sampler-warmup"),
        Constraint(field="gpu_memory_utilization", op="<=", value=0.85, because="graphs", source="oom-cudagraph-capture"),
        Constraint(field="enforce_eager", op="==", value=True, because="capture failed", source="oom-cudagraph-capture"),
        Constraint(field="--attention-backend", op="==", value="TRITON_MLA", because="kernel", source="kernel-unsupported-sm120"),
        Constraint(field="env.NCCL_P2P_DISABLE", op="==", value=1, because="hang", source="nccl-p2p-hang"),
    ]
    best = planned("llama-3.1-8b", "1xh100-80gb-sxm", constraints=limits).best
    assert best is not None
    assert best.max_num_seqs == 64
    assert best.gpu_memory_utilization == 0.85
    assert "--enforce-eager" in best.args
    assert best.args[-2:] == ["--attention-backend", "TRITON_MLA"]
    assert best.env["NCCL_P2P_DISABLE"] == "1"


def test_a_layout_that_a_constraint_forbids_is_rejected_with_its_reason() -> None:
    limit = Constraint(field="tensor_parallel_size", op="!=", value=1, because="GPU 0 is broken", source="user")
    found = planned("llama-3.1-8b", "2xh100-80gb-sxm", constraints=[limit])
    assert found.best is not None
    assert found.best.tensor_parallel_size == 2
    assert any(r.code == "constraint" and r.because == "GPU 0 is broken" for r in found.rejected)


def test_flags_after_the_dashes_are_read_and_not_repeated() -> None:
    found = planned("llama-3.1-8b", "8xh100-80gb-sxm", extra_args=["--tensor-parallel-size=2", "--max-model-len", "32k"])
    assert found.best is not None
    assert found.best.tensor_parallel_size == 2
    assert found.best.max_model_len == 32000


def test_only_the_named_gpus_count() -> None:
    found = planned("qwen3-32b", "4xh100-80gb-sxm", gpus=[0])
    assert found.best is not None
    assert found.best.tensor_parallel_size == 1


def test_releases_before_the_data_are_answered_with_a_note() -> None:
    found = planned("llama-3.1-8b", "1xh100-80gb-sxm", "0.8.5")
    assert found.verdict == "fits"
    assert any(f.code == "engine-version-outside-data" for f in found.findings)


def test_the_releases_defaults() -> None:
    old, new = (planned("llama-3.1-8b", "1xh100-80gb-sxm", version).best for version in ("0.19.1", "0.20.2"))
    assert old is not None
    assert new is not None
    assert (old.gpu_memory_utilization, new.gpu_memory_utilization) == (0.90, 0.92)
    assert old.per_gpu is not None
    assert new.per_gpu is not None
    assert old.per_gpu.cuda_graphs.mid == 0
    assert (new.per_gpu.cuda_graphs.mid or 0) > 0


def test_a_drafter_that_is_not_counted_is_said() -> None:
    spec = {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}
    found = planned("llama-3.1-8b", "1xh100-80gb-sxm", speculative_config=spec)
    assert "draft-not-counted" in {f.code for f in found.findings}
    assert found.best is not None
    assert "--speculative-config" in found.best.args


def test_little_room_outside_the_budget_is_said() -> None:
    tight = planned("llama-3.1-8b", "1xrtx-4090", "0.16.0", gpu_memory_utilization=0.98, max_model_len=8192)
    loose = planned("llama-3.1-8b", "1xrtx-4090", "0.16.0", gpu_memory_utilization=0.85, max_model_len=8192)
    assert "little-room-outside-the-budget" in {f.code for f in tight.findings}
    assert "little-room-outside-the-budget" not in {f.code for f in loose.findings}


def test_the_engines_own_answer_takes_the_place_of_computed_weights() -> None:
    from firstlight.core.answer import EngineAnswer

    answer = EngineAnswer(engine="vllm", parameter_bytes=15 * GIB, config={"tensor_parallel_size": 1})
    model = checkpoint("llama-3.1-8b")
    engine = EngineRef(name="vllm", version="0.32.0")
    asked = plan(model, imagine("1xh100-80gb-sxm"), Intent(model="m"), engine=engine, answer=answer).best
    assert asked is not None
    assert asked.per_gpu is not None
    assert (asked.per_gpu.weights.mid, asked.per_gpu.weights.rung) == (15 * GIB, "asked")
    assert asked.per_gpu.kv_pool.rung == "computed"


def test_a_rehearsal_leaves_nothing_computed_in_the_pool() -> None:
    from firstlight.core.answer import RehearsalReport
    from firstlight.core.figures import Figure, Rung
    from firstlight.core.plan import MemoryBudget

    def measured(gibs: float) -> Figure:
        return Figure.exact(round(gibs * GIB), Rung.REHEARSED)

    budget = MemoryBudget(
        total=measured(79.18),
        usable=measured(72.85),
        weights=measured(15.0),
        activation_peak=measured(1.2),
        cuda_graphs=measured(0.2),
        non_torch=measured(0.25),
        kv_pool=measured(56.2),
        headroom=measured(6.3),
    )
    found = plan(
        checkpoint("llama-3.1-8b"),
        imagine("1xh100-80gb-sxm"),
        Intent(model="m"),
        engine=EngineRef(name="vllm", version="0.32.0"),
        rehearsal=RehearsalReport(passed=True, per_gpu=budget),
    )
    assert found.best is not None
    assert found.best.per_gpu is not None
    pool = found.best.per_gpu.kv_pool
    assert pool.rung == "rehearsed"
    assert pool.low == pool.mid == pool.high
    assert (pool.mid or 0) / GIB == pytest.approx(72.85 - 16.65, abs=0.02)


def test_a_known_figure_lies_under_its_bound() -> None:
    """The first user's deployment answered with about 60 tokens per second."""
    best = planned(kimi(), RTX, "0.16.0", tensor_parallel_size=8).best
    assert best is not None
    assert best.predicted is not None
    figure = best.predicted.decode_tokens_per_second_upper_bound
    assert (figure.low or 0) <= 60 <= (figure.high or 0)


def test_a_model_with_its_own_selector_is_not_refused_by_the_general_one() -> None:
    base = checkpoint("deepseek-v3")
    config = {k: v for k, v in base.config.items() if k != "kv_lora_rank"} | {"o_lora_rank": 1024, "index_topk": 512, "head_dim": 512}
    found = planned(msgspec.structs.replace(base, config=config), "8xh200-141gb-sxm", "0.26.0")
    assert all(r.code != "attn-backend-unsupported-kv-dtype" for r in found.rejected)


def test_an_architecture_that_nobody_measured_is_said_and_its_interval_is_wide() -> None:
    base = checkpoint("deepseek-v3")
    found = planned(msgspec.structs.replace(base, config=base.config | {"hc_mult": 4}), "8xh200-141gb-sxm", "0.26.0")
    assert "architecture-not-measured" in {f.code for f in found.findings}
    assert found.best is not None
    assert found.best.per_gpu is not None
    peak = found.best.per_gpu.activation_peak
    assert (peak.high or 0) > 1.9 * (peak.mid or 0)


def test_who_holds_the_memory_is_named_where_an_empty_gpu_would_do() -> None:
    machine = imagine("1xh100-80gb-sxm")
    holder = GpuProcess(pid=71, user="eva", memory_bytes=70 * GIB, command="python3 train.py", unit="train.service")
    gpu = msgspec.structs.replace(machine.accelerators[0], free_bytes=8 * GIB, processes=[holder])
    found = planned("llama-3.1-8b", msgspec.structs.replace(machine, accelerators=[gpu]))
    assert found.verdict == "blocked"
    told = next(f for f in found.findings if f.severity == "blocker")
    assert told.code == "gpu-memory-occupied"
    assert any("pid 71, eva, holds 70.00 GiB" in line for line in told.evidence)
    assert told.hint == "`systemctl stop train.service`"


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_a_gpu_that_is_not_there_is_refused_and_one_that_is_not_named_is_not_planned_for(engine: str) -> None:
    machine, model = imagine("2xh100-80gb-sxm"), checkpoint("qwen3-32b")

    def on(gpus: list[int]) -> PlanSet:
        return plan(model, machine, Intent(model=model.ref, gpus=gpus), engine=EngineRef(name=engine))

    for missing in ([7], [0, 7]):
        with pytest.raises(UsageError, match=r"no-gpus: .* has no GPU 7"):
            on(missing)
    best = on([1]).best
    assert best is not None
    assert best.per_gpu is not None
    assert (best.per_gpu.total.mid or 0) < 90 * GIB
