"""llama.cpp and vLLM on a host without GPUs, and GPU machines that are not there."""

import msgspec
import pytest

from firstlight.catalog.gpus import all_gpus, as_accelerator, find_gpu, imagine, recognise
from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, MoeSpec
from firstlight.core.errors import InputError, UsageError
from firstlight.core.figures import Figure
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Machine, Storage
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.units import GIB, MIB
from firstlight.plan.host import host_free, touched_bytes
from firstlight.plan.plan import plan

SMOL = Checkpoint(
    ref="smol.gguf",
    name="SmolLM2-135M-Instruct",
    format="gguf",
    config={"intermediate_size": 1536},
    num_hidden_layers=30,
    hidden_size=576,
    vocab_size=49152,
    max_position_embeddings=8192,
    tensor_bytes=91 * MIB,
    kv_cache_groups=[KvCacheGroup(kind="full", layers=list(range(30)), bytes_per_token_per_layer={"bf16": 768.0})],
    kv_bytes_per_token={"bf16": 23040},
)
HOST = Machine(hostname="box", memory_total_bytes=24 * GIB, memory_available_bytes=18 * GIB)


def planned(checkpoint: Checkpoint, machine: Machine, engine: str = "llamacpp", **wish: object) -> PlanSet:
    concurrency = wish.pop("concurrency", None)
    intent = Intent(model="m", pins=Pins(**wish), concurrency=concurrency)  # type: ignore[arg-type]
    return plan(checkpoint, machine, intent, engine=EngineRef(name=engine))


def test_a_small_gguf_on_a_host() -> None:
    found = planned(SMOL, HOST)
    assert found.verdict == "fits"
    assert found.best is not None
    assert found.best.args == ["--ctx-size", "8192", "--parallel", "1"]
    assert found.best.kv_bytes_per_token == 23040


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (16, "15")])
def test_one_core_is_left_to_the_host(cores: int, threads: str) -> None:
    best = planned(SMOL, msgspec.structs.replace(HOST, cpu_count=cores)).best
    assert best is not None
    assert best.args[-2:] == ["--threads", threads]


def test_the_users_own_threads_are_not_doubled() -> None:
    intent = Intent(model="m", extra_args=["--threads", "4"])
    best = plan(SMOL, msgspec.structs.replace(HOST, cpu_count=16), intent, engine=EngineRef(name="llamacpp")).best
    assert best is not None
    assert "--threads" not in best.args


@pytest.mark.parametrize(("parallel", "context", "measured"), [(1, 8192, 22.64 + 0.19), (4, 2048, 16.64 + 0.75)])
def test_the_buffers_that_llama_cpp_itself_prints(parallel: int, context: int, measured: float) -> None:
    """xllamacpp 2026.10.11549 on this model: 180.00 MiB of KV buffer, and the compute and output buffers above."""
    best = planned(SMOL, HOST, max_num_seqs=parallel, max_model_len=context).best
    assert best is not None
    assert best.per_gpu is not None
    assert best.per_gpu.kv_pool.mid == 180 * MIB
    assert (best.per_gpu.activation_peak.mid or 0) / MIB == pytest.approx(measured, rel=0.05)


def test_a_prompt_cache_that_could_grow_past_the_host_is_said() -> None:
    small = msgspec.structs.replace(HOST, memory_available_bytes=4 * GIB)
    assert [f.code for f in planned(SMOL, small).findings] == ["prompt-cache-may-grow"]
    assert planned(SMOL, HOST).findings == []


def test_slots_share_the_context_size() -> None:
    best = planned(SMOL, HOST, concurrency=4, max_model_len=2048).best
    assert best is not None
    assert best.args[:4] == ["--ctx-size", "8192", "--parallel", "4"]
    assert (best.max_model_len, best.max_num_seqs) == (2048, 4)


def test_a_model_larger_than_memory_does_not_fit_although_it_could_be_mapped() -> None:
    big = msgspec.structs.replace(SMOL, tensor_bytes=539 * GIB)
    found = planned(big, HOST)
    assert found.verdict == "does-not-fit"
    assert "read weights from disk for every token" in (found.findings[0].note or "")


def test_the_cgroup_counts_before_the_machine() -> None:
    boxed = msgspec.structs.replace(HOST, cgroup_memory_limit_bytes=1200 * MIB)
    best = planned(msgspec.structs.replace(SMOL, tensor_bytes=900 * MIB), boxed)
    assert best.verdict == "does-not-fit"


def test_the_context_is_shortened_where_nobody_said_how_long() -> None:
    heavy = msgspec.structs.replace(
        SMOL, kv_cache_groups=[KvCacheGroup(kind="full", layers=[0], bytes_per_token_per_layer={"bf16": float(8 * MIB)})]
    )
    found = planned(heavy, HOST)
    assert found.verdict == "fits"
    assert found.best is not None
    assert (found.best.max_model_len or 0) < 8192
    assert found.rejected[0].code == "memory-does-not-fit"
    assert planned(heavy, HOST, max_model_len=8192).verdict == "does-not-fit"


def test_quantized_caches_take_their_share() -> None:
    plain, small = planned(SMOL, HOST).best, planned(SMOL, HOST, kv_cache_dtype="q8_0").best
    assert plain is not None
    assert small is not None
    assert small.kv_bytes_per_token == round(23040 * 34 / 64)
    assert small.args[-4:] == ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]


def test_layers_go_to_the_gpu_as_far_as_they_fit() -> None:
    machine = msgspec.structs.replace(HOST, accelerators=[as_accelerator(find_gpu("rtx-4090"), 0)])
    whole, part = planned(SMOL, machine).best, planned(msgspec.structs.replace(SMOL, tensor_bytes=30 * GIB), machine).best
    assert whole is not None
    assert part is not None
    assert whole.args[-2:] == ["--n-gpu-layers", "31"]
    assert 15 < int(part.args[-1]) < 31


def test_unknown_host_memory_is_unknown_and_not_zero() -> None:
    best = planned(SMOL, Machine(hostname="there")).best
    assert best is not None
    assert best.per_gpu is not None
    assert not best.per_gpu.usable.known
    assert not best.max_model_len_that_fits.known


def test_vllm_on_a_cpu_sets_its_kv_space() -> None:
    found = planned(SMOL, HOST, engine="vllm")
    assert found.verdict == "fits"
    assert found.best is not None
    assert found.best.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert found.best.kv_tokens.low == found.best.kv_tokens.high


def test_vllm_on_a_cpu_says_the_longest_request_that_its_kv_space_holds() -> None:
    long = msgspec.structs.replace(SMOL, max_position_embeddings=131072)
    best = planned(long, HOST, engine="vllm").best
    assert best is not None
    assert best.max_model_len == 8192
    assert best.max_model_len_that_fits.mid == GIB // (23040 * 128) * 128
    assert "one request could have 131,072 tokens" in best.because[1]
    assert "unset, it would ask for 22.08 GiB" in best.because[0]
    old = plan(long, HOST, Intent(model="m"), engine=EngineRef(name="vllm", version="0.16.0")).best
    assert old is not None
    assert "unset, it would take 12.00 GiB" in old.because[0]


def test_a_pinned_layout_on_a_cpu_is_kept_and_counted() -> None:
    """Every worker allocates the KV space; tensor parallelism halves a token's bytes in each."""
    alone, two = (planned(SMOL, HOST, engine="vllm", tensor_parallel_size=n).best for n in (1, 2))
    assert alone is not None
    assert two is not None
    assert two.tensor_parallel_size == 2
    assert two.args[two.args.index("--tensor-parallel-size") + 1] == "2"
    assert (two.kv_bytes_per_token or 0) < (alone.kv_bytes_per_token or 0)
    assert (two.kv_tokens.mid or 0) > (alone.kv_tokens.mid or 0)
    assert alone.per_gpu is not None
    assert two.per_gpu is not None
    assert (two.per_gpu.headroom.mid or 0) < (alone.per_gpu.headroom.mid or 0) - GIB
    assert two.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in alone.env
    wide = planned(SMOL, msgspec.structs.replace(HOST, numa_nodes=2), engine="vllm", tensor_parallel_size=2).best
    assert wide is not None
    assert "VLLM_CPU_OMP_THREADS_BIND" not in wide.env
    staged = planned(SMOL, HOST, engine="vllm", pipeline_parallel_size=2, data_parallel_size=2).best
    assert staged is not None
    assert {"--pipeline-parallel-size", "--data-parallel-size"} <= set(staged.args)


@pytest.mark.parametrize("where", ["user", "machine"])
def test_the_users_own_kv_space_is_kept(where: str) -> None:
    variable = {"VLLM_CPU_KVCACHE_SPACE": "3"}
    machine = msgspec.structs.replace(HOST, environment=variable) if where == "machine" else HOST
    intent = Intent(model="m", env=variable if where == "user" else {})
    best = plan(SMOL, machine, intent, engine=EngineRef(name="vllm")).best
    assert best is not None
    assert best.env["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert best.kv_cache_memory_bytes == 3 * GIB


def test_a_kv_space_larger_than_the_host_does_not_fit() -> None:
    intent = Intent(model="m", env={"VLLM_CPU_KVCACHE_SPACE": "500"})
    found = plan(SMOL, HOST, intent, engine=EngineRef(name="vllm"))
    assert found.verdict == "does-not-fit"
    assert "500.00 GiB of KV space by VLLM_CPU_KVCACHE_SPACE" in found.findings[0].evidence[0]


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_a_hosts_decode_bound_comes_from_bytes_touched_and_memory_bandwidth(engine: str) -> None:
    measured = bound_of(msgspec.structs.replace(HOST, memory_bandwidth_bytes_per_second=20e9, cpu_count=2), engine)
    assert measured.high == pytest.approx(20e9 / (91 * MIB), abs=0.1)
    assumed = bound_of(msgspec.structs.replace(HOST, cpu_count=2), engine)
    assert "not measured: 6 to 30 GB/s assumed for 2 cores" in (assumed.because or "")
    assert (assumed.low or 0) <= 78 <= (assumed.high or 0)  # measured on two busy cores
    assert bound_of(HOST, engine).because == "neither the host's memory bandwidth nor its number of cores is known"


def bound_of(machine: Machine, engine: str) -> Figure:
    best = planned(SMOL, machine, engine=engine).best
    assert best is not None
    assert best.predicted is not None
    return best.predicted.decode_tokens_per_second_upper_bound


def test_one_token_reads_the_chosen_experts_and_one_row_of_the_embedding() -> None:
    moe = MoeSpec(num_experts=8, num_experts_per_tok=2)
    roles = {"embedding": 10, "lm_head": 10, "routed_experts": 80, "attention": 20, "vision": 5}
    model = msgspec.structs.replace(SMOL, tensor_bytes=125, bytes_by_role=roles, moe=moe)
    assert touched_bytes(model) == 20 + 10 + 20
    tied = msgspec.structs.replace(model, tensor_bytes=115, bytes_by_role={k: v for k, v in roles.items() if k != "lm_head"})
    assert touched_bytes(tied) == 20 + 10 + 20


def test_what_a_cgroup_has_used_is_not_free() -> None:
    boxed = msgspec.structs.replace(HOST, cgroup_memory_limit_bytes=8 * GIB, cgroup_memory_used_bytes=6 * GIB)
    assert host_free(boxed) == 2 * GIB


def test_vllm_on_a_cpu_refuses_what_the_host_cannot_hold() -> None:
    assert planned(msgspec.structs.replace(SMOL, tensor_bytes=20 * GIB), HOST, engine="vllm").verdict == "does-not-fit"


def test_an_engine_without_a_planner_is_named() -> None:
    with pytest.raises(UsageError, match="no-planner"):
        planned(SMOL, HOST, engine="sglang")


def test_a_measured_disk_gives_the_load_time() -> None:
    machine = msgspec.structs.replace(HOST, storage=[Storage(path="/m", read_bytes_per_second=1e9)])
    best = planned(SMOL, machine).best
    assert best is not None
    assert best.predicted is not None
    assert best.predicted.load_seconds.mid == pytest.approx(0.1, abs=0.1)


def test_the_catalog_names_the_contracts_gpus() -> None:
    for name in (
        "rtx-pro-6000-blackwell",
        "h100-80gb-sxm",
        "h200-141gb-sxm",
        "rtx-4090",
        "b200-180gb-sxm",
        "gb10",
        "gb200",
        "gb300",
        "h20",
        "h200-nvl",
    ):
        assert find_gpu(name).cuda_total_bytes > 0


def test_cuda_and_the_driver_count_differently() -> None:
    gpu = find_gpu("rtx-pro-6000-blackwell")
    assert gpu.cuda_total_bytes / GIB == pytest.approx(94.97, abs=0.005)
    assert (gpu.driver_total_bytes or 0) / GIB == pytest.approx(95.59, abs=0.005)
    h200 = find_gpu("h200")
    assert (h200.cuda_total_bytes / GIB, (h200.driver_total_bytes or 0) / GIB) == (pytest.approx(139.80), pytest.approx(140.40, abs=0.005))


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda g: g.id)
def test_every_entry_is_plausible(gpu: object) -> None:
    from firstlight.catalog.gpus import Gpu

    assert isinstance(gpu, Gpu)
    assert 0.93 < gpu.cuda_total_bytes / (gpu.driver_total_bytes or gpu.cuda_total_bytes) <= 1
    assert 80 <= gpu.sm <= 121
    assert {"ampere": 80, "ada": 89, "hopper": 90, "blackwell": 100}[gpu.architecture] <= gpu.sm
    assert ("fp8" in gpu.rates) == (gpu.sm >= 89)
    assert ("fp4" in gpu.rates) == (gpu.sm >= 100)
    assert gpu.source


def test_ids_and_driver_names_are_unambiguous() -> None:
    ids = [g.id for g in all_gpus()]
    assert len(ids) == len(set(ids))
    for gpu in all_gpus():
        for name in gpu.names:
            found = recognise(f"NVIDIA {name}", gpu.driver_total_bytes)
            assert found is not None
            assert found.id == gpu.id


def test_a_misspelt_gpu_gets_the_nearest_names() -> None:
    with pytest.raises(InputError, match="unknown-gpu") as e:
        imagine("8xh10-80gb-sxm")
    assert "h100-80gb-sxm" in (e.value.hint or "")


@pytest.mark.parametrize("spec", ["0xh100", "2000xh100"])
def test_a_count_that_cannot_be_meant(spec: str) -> None:
    with pytest.raises(InputError, match="bad-gpu-spec"):
        imagine(spec)


def test_an_imagined_machine_says_so() -> None:
    machine = imagine("8xh100-80gb-sxm")
    assert machine.imagined
    assert len(machine.accelerators) == 8
    assert {link.kind for link in machine.links} == {"nvlink"}
    assert machine.memory_total_bytes is None
