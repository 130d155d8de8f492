"""The state machine: the same bytes in any chunks give the same events; phases, fields, progress per worker."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from firstlight.watch.state import EngineLog, LogEvent

LOG = (
    "(APIServer pid=9) INFO 10-12 08:00:00 [api_utils.py:273] non-default args: {'model': '/m', 'tensor_parallel_size': 2}\n"
    "(APIServer pid=9) INFO 10-12 08:00:01 [model.py:598] Resolved architecture: XForCausalLM\n"
    "(EngineCore pid=20) INFO 10-12 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='/m'\n"
    "(Worker_TP0 pid=30) INFO 10-12 08:00:04 [parallel_state.py:1607] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://x backend=nccl\n"  # noqa: E501
    "(Worker_TP0 pid=30) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...\n"
    "(Worker_TP1 pid=31) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...\n"
    "\x1b[1;36m(Worker_TP0 pid=30)\x1b[0;0m \rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.05it/s]\r"
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:02<00:00,  1.05it/s]\n"
    "(Worker_TP1 pid=31) INFO 10-12 08:00:20 [gpu_model_runner.py:5306] Model loading took 31.4 GiB memory and 9.25 seconds\n"
    "(EngineCore pid=20) INFO 10-12 08:00:40 [kv_cache_utils.py:2146] GPU KV cache size: 62,049,280 tokens, Maximum concurrency for 131,072 tokens per request: 473.40x\n"  # noqa: E501
    "(Worker_TP0 pid=30) Capturing CUDA graphs (decode, FULL):   0%|          | 0/35 [00:00<?, ?it/s]Capturing CUDA graphs (decode, FULL):  20%|##        | 7/35 [00:01<00:05,  5.00it/s]\n"  # noqa: E501
    "(APIServer pid=9) INFO:     Application startup complete.\r\n"
)


def events_of(data: bytes, cuts: list[int], engine: str = "auto") -> list[LogEvent]:
    log = EngineLog(engine)
    events: list[LogEvent] = []
    edges = [0, *sorted({c % (len(data) + 1) for c in cuts}), len(data)]
    for a, b in pairwise(edges):
        events += log.feed(data[a:b], 1.0)
    return events + log.close(1.0)


PIECES = st.sampled_from(
    [*(line + "\n" for line in LOG.split("\n")), "\r", "\n", "\r\n", "\x1b[31m", "\xff", "�", "ü", "(", '{"log":"x"}', "a" * 300]
)


@given(st.lists(PIECES, max_size=20), st.binary(max_size=60), st.lists(st.integers(0, 4000), max_size=12))
@settings(max_examples=120, deadline=None)
@example([LOG], b"\xe2\x96", [1, 2, 3])
def test_any_bytes_in_any_chunks_give_the_same_events(pieces: list[str], tail: bytes, cuts: list[int]) -> None:
    data = "".join(pieces).encode("utf-8", "surrogatepass") + tail
    assert events_of(data, cuts) == events_of(data, [])


@given(st.integers(65000, 200000), st.lists(st.integers(0, 200000), max_size=6))
@settings(max_examples=20, deadline=None)
def test_overlong_lines_keep_their_beginning_in_any_chunks(length: int, cuts: list[int]) -> None:
    data = b"INFO 10-12 08:00:01 [model.py:598] Resolved architecture: X " + b"y" * length + b"\nINFO:     Application startup complete.\n"
    assert events_of(data, cuts) == events_of(data, [])
    assert events_of(data, cuts)[-1].kind == "ready"


def test_phases_of_the_whole_and_of_each_worker() -> None:
    log = EngineLog("vllm")
    events = log.feed(LOG.encode(), 5.0)
    names = [e.data["name"] for e in events if e.kind == "phase"]
    assert names == ["configuring", "distributed-init", "loading", "post-load", "kv-allocation", "capturing", "ready"]
    named = {name: phase for name, phase in log.workers.items() if name}
    assert named == {"APIServer": "ready", "EngineCore": "kv-allocation", "Worker_TP0": "capturing", "Worker_TP1": "capturing"}
    assert (log.version, log.phase) == ("0.25.1", "ready")


def test_numbers_become_typed_fields() -> None:
    log = EngineLog("vllm")
    log.feed(LOG.encode(), 5.0)
    assert log.fields["kv_tokens"] == 62_049_280
    assert log.fields["max_concurrency"] == 473.40
    assert log.fields["weights_gib"] == 31.4
    assert log.worker_fields["Worker_TP1"]["load_seconds"] == 9.25


def test_progress_comes_from_carriage_returns_and_from_bars_without_line_ends() -> None:
    events = [e for e in events_of(LOG.encode(), []) if e.kind == "progress"]
    seen = [(e.data["done"], e.data["total"], e.data["unit"]) for e in events]
    assert seen == [(1, 2, "shards"), (2, 2, "shards"), (0, 35, "graphs"), (7, 35, "graphs")]
    assert events[-1].data["mode"] == "decode, FULL"
    assert events[0].line == 7


def test_the_slowest_worker_decides_until_the_engine_is_past_it() -> None:
    log = EngineLog("vllm")
    for rank in (0, 1):
        log.feed(f"(Worker_TP{rank} pid=3{rank}) INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n".encode(), 1.0)
    log.feed(
        b"(Worker_TP0 pid=30) INFO 10-12 08:00:06 [a.py:1] Encoder cache will be initialized with a budget of 8192 tokens, and profiled with 1 image items\n",  # noqa: E501
        2.0,
    )
    assert log.phase == "loading"
    log.feed(b"(EngineCore pid=20) INFO 10-12 08:00:07 [a.py:1] GPU KV cache size: 100 tokens\n", 3.0)
    assert log.phase == "kv-allocation"


def at(worker: str, pid: int, text: str) -> bytes:
    return f"({worker} pid={pid}) INFO 10-12 08:00:05 [a.py:1] {text}\n".encode()


def test_a_worker_that_learns_its_rank_is_the_same_process() -> None:
    log = EngineLog("vllm")
    for rank in (0, 1):
        log.feed(at("VllmWorker-0", 30 + rank, "vLLM is using nccl==2.28.7"), 1.0)
        log.feed(at("Worker", 30 + rank, "vLLM is using nccl==2.28.7"), 1.0)
        log.feed(at(f"Worker_TP{rank}", 30 + rank, "Starting to load model /m..."), 2.0)
    assert log.workers == {"Worker_TP0": "loading", "Worker_TP1": "loading"}
    assert log.phase == "loading"


def test_pids_that_two_nodes_share_are_two_workers() -> None:
    log = EngineLog("vllm")
    for rank in (0, 8, 0, 8):
        log.feed(at(f"Worker_TP{rank}", 30, "Starting to load model /m..."), 2.0)
    assert set(log.workers) == {"Worker_TP0", "Worker_TP8"}


def test_the_slowest_replica_decides_and_a_rank_speaks_for_its_own() -> None:
    log = EngineLog("vllm")
    for replica in (0, 1):
        log.feed(at(f"EngineCore_DP{replica}", 20 + replica, "Initializing a V1 LLM engine (v0.32.0) with config: x"), 1.0)
        for rank in (0, 1):
            log.feed(at(f"Worker_DP{replica}_TP{rank}", 30 + 2 * replica + rank, "Starting to load model /m..."), 1.0)
    log.feed(at("Worker_DP0_TP0", 30, "Model loading took 3.0 GiB memory and 4.0 seconds"), 2.0)
    assert (log.workers["Worker_DP0_TP1"], log.workers["Worker_DP1_TP0"]) == ("post-load", "loading")
    log.feed(at("EngineCore_DP0", 20, "GPU KV cache size: 100 tokens"), 3.0)
    assert log.phase == "loading"
    log.feed(at("EngineCore_DP1", 21, "GPU KV cache size: 100 tokens"), 4.0)
    assert log.phase == "kv-allocation"


def test_what_a_failed_engine_prints_while_it_ends_leaves_it_failed() -> None:
    log = EngineLog("vllm")
    log.feed(b"INFO:     Application startup complete.\n", 1.0)
    log.feed(b"(EngineCore pid=2) ERROR 10-12 08:00:05 [a.py:1] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.\n", 2.0)
    events = log.feed(b"INFO:     Shutting down\nINFO:     Application shutdown complete.\n", 3.0)
    assert log.phase == "failed"
    assert "phase" not in [e.kind for e in events]


def test_a_wait_between_processes_is_no_sign_of_life() -> None:
    log = EngineLog("vllm")
    log.feed(at("EngineCore", 2, "Starting to load model /m..."), 10.0)
    log.feed(at("EngineCore", 2, "No available shared memory broadcast block found in 60 seconds."), 70.0)
    assert log.last_line_at == 10.0
    log.feed(at("EngineCore", 2, "something else"), 80.0)
    assert log.last_line_at == 80.0


def test_a_banner_after_an_ending_starts_again() -> None:
    log = EngineLog("vllm")
    log.feed(LOG.encode(), 1.0)
    log.feed("(APIServer pid=99) INFO 10-12 09:00:00 [api_utils.py:339]  ▄▄ ▄█ █     █ ▀▄▀ █  version 0.32.0\n".encode(), 2.0)
    assert (log.phase, log.version) == ("configuring", "0.32.0")


def test_harmless_lines_are_counted_and_not_errors() -> None:
    log = EngineLog("vllm")
    events = log.feed(b"(EngineCore pid=2) WARNING 10-12 08:00:05 [a.py:1] Skipping tactic 3 due to x\n" * 4, 1.0)
    assert [e.kind for e in events] == ["benign"] * 4
    assert (log.benign, log.errors) == ({"benign-autotuner-skip": 4}, 0)


def test_llama_cpp_lines() -> None:
    text = (
        "0.00.003.650 I srv          init: build_info: b7731-2f1c9d0\n"
        "0.00.006.112 I srv    load_model: loading model '/m.gguf'\n"
        "0.00.403.540 I cmn          init: llama threadpool init, n_threads = 2\n"
        "0.00.432.464 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 2048, kv_unified = 'false'\n"
        "0.00.434.137 I srv          init: model loaded\n"
        "0.00.434.155 I srv          init: listening on http://127.0.0.1:8977\n"
    )
    log = EngineLog("auto", stamped=True)
    events = log.feed(text.encode(), 0.0)
    assert [e.data["name"] for e in events if e.kind == "phase"] == ["configuring", "loading", "warming", "api-start", "ready"]
    assert (log.engine, log.version, log.fields["n_ctx_slot"]) == ("llamacpp", "b7731-2f1c9d0", 2048)
    assert events[-1].time == 0.434155


def test_a_replay_carries_the_times_of_the_lines() -> None:
    log = EngineLog("vllm", stamped=True)
    events = log.feed(LOG.encode(), 0.0)
    times = {e.data["name"]: e.time for e in events if e.kind == "phase"}
    assert times["kv-allocation"] - times["configuring"] == 40.0


OLD = (
    "INFO 10-12 08:00:00 api_server.py:712] vLLM API server version 0.6.6.post1\n"
    "INFO 10-12 08:00:00 api_server.py:713] args: Namespace(model='/m', tensor_parallel_size=2)\n"
    "INFO 10-12 08:00:06 llm_engine.py:234] Initializing an LLM engine (v0.6.6.post1) with config: model='/m'\n"
    "INFO 10-12 08:00:07 selector.py:120] Using Flash Attention backend.\n"
    "(VllmWorkerProcess pid=31) INFO 10-12 08:00:08 selector.py:120] Using Flash Attention backend.\n"
    "(VllmWorkerProcess pid=31) INFO 10-12 08:00:09 pynccl.py:69] vLLM is using nccl==2.21.5\n"
    "INFO 10-12 08:00:10 model_runner.py:1094] Starting to load model /m...\n"
    "(VllmWorkerProcess pid=31) INFO 10-12 08:00:10 model_runner.py:1094] Starting to load model /m...\n"
    "\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.05s/it]\n"
    "(VllmWorkerProcess pid=31) INFO 10-12 08:00:30 model_runner.py:1099] Loading model weights took 7.4944 GB\n"
    "INFO 10-12 08:00:33 worker.py:241] Memory profiling takes 2.25 seconds\n"
    "INFO 10-12 08:00:33 worker.py:241] the current vLLM instance can use total_gpu_memory (79.11GiB)"
    " x gpu_memory_utilization (0.90) = 71.20GiB\n"
    "INFO 10-12 08:00:33 worker.py:241] model weights take 7.49GiB; non_torch_memory takes 0.31GiB;"
    " PyTorch activation peak memory takes 1.20GiB;"
    " the rest of the memory reserved for KV Cache is 62.20GiB.\n"
    "INFO 10-12 08:00:34 distributed_gpu_executor.py:57] # GPU blocks: 63692, # CPU blocks: 4096\n"
    "INFO 10-12 08:00:34 distributed_gpu_executor.py:61] Maximum concurrency for 131072 tokens per request: 7.77x\n"
    "INFO 10-12 08:00:36 model_runner.py:1415] Capturing cudagraphs for decoding. This may lead to unexpected consequences\n"
    "\rCapturing CUDA graph shapes:  20%|##        | 7/35 [00:03<00:12,  2.30it/s]\n"
    "INFO 10-12 08:00:51 model_runner.py:1535] Graph capturing finished in 15 secs, took 0.21 GiB\n"
    "INFO 10-12 08:00:51 llm_engine.py:431] init engine (profile, create kv cache, warmup model) took 20.57 seconds\n"
    "INFO:     Started server process [9]\n"
    "INFO:     Application startup complete.\n"
)


def test_the_old_engine_with_its_lines_without_a_bracket() -> None:
    log = EngineLog("auto", stamped=True)
    events = log.feed(OLD.encode(), 0.0)
    names = [e.data["name"] for e in events if e.kind == "phase"]
    assert names == [
        "configuring", "distributed-init", "loading", "profiling", "kv-allocation", "capturing", "warming", "api-start", "ready",
    ]  # fmt: skip
    expected = {
        "engine_version": "0.6.6.post1", "attention_backend": "Flash Attention", "weights_gib": 7.49, "profiling_seconds": 2.25,
        "device_total_gib": 79.11, "gpu_memory_utilization": 0.9, "non_torch_gib": 0.31, "activation_peak_gib": 1.2, "kv_cache_gib": 62.2,
        "gpu_blocks": 63692, "cpu_blocks": 4096, "max_concurrency": 7.77, "capture_seconds": 15.0, "graphs_gib": 0.21,
        "engine_init_seconds": 20.57,
    }  # fmt: skip
    assert {k: log.fields.get(k) for k in expected} == expected
    assert log.worker_fields["VllmWorkerProcess pid=31"]["weights_gib"] == 7.4944
