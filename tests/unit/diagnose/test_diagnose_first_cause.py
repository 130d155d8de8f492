"""First cause over several processes: wrappers, consequences, chains, interleaving, endings."""

import pytest

from firstlight.diagnose.diagnose import diagnose

HEAD = """(APIServer pid=9) INFO 10-12 08:00:00 [api_utils.py:273] non-default args: {'model': '/m', 'gpu_memory_utilization': 0.9}
(APIServer pid=9) INFO 10-12 08:00:01 [model.py:598] Resolved architecture: XForCausalLM
(EngineCore pid=20) INFO 10-12 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='/m', tensor_parallel_size=2
(Worker_TP0 pid=30) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...
(Worker_TP1 pid=31) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...
"""
READY = "(APIServer pid=9) INFO:     Application startup complete.\n"
KV = (
    "ValueError: To serve at least one request with the model's max seq len (90112), (7.91 GiB KV cache is needed, which is larger than the "  # noqa: E501
    "available KV cache memory (3.30 GiB). Based on the available memory, the estimated maximum model length is 37552."
)


def traceback(prefix: str, *frames: str, error: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "/x/{frame}.py", line 3, in {frame}', f"    {frame}()"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, error])


def errors(worker: str, pid: int, *frames: str, error: str) -> str:
    return traceback(f"({worker} pid={pid}) ERROR 10-12 08:00:09 [multiproc_executor.py:870] ", *frames, error=error)


def test_wrappers_are_never_the_cause() -> None:
    text = HEAD + errors("EngineCore", 20, "run_engine_core", error=KV)
    text += traceback(
        "(APIServer pid=9) ", "wait", error="RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )
    found = diagnose(text.encode())
    assert found.outcome == "failed"
    assert found.cause is not None
    assert found.cause.code == "kv-too-small-for-max-len"
    assert found.cause.evidence[0].worker == "EngineCore"
    assert found.remedies[0].change == {"max_model_len": 37552}
    assert found.facts["max_model_len_that_fits"] == 37552
    assert found.contributing == []  # a wrapper beside a named cause says nothing


def test_the_first_worker_in_time_wins_and_a_lost_peer_is_a_consequence() -> None:
    lost = "torch.distributed.DistBackendError: [0] store->get('1') got error: Connection closed by peer"
    text = HEAD + errors("Worker_TP0", 30, "broadcast", error=lost)
    text += errors("Worker_TP1", 31, "load_model", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "oom-weight-load"
    assert "nccl-remote-error" in [c.code for c in found.contributing]


def test_the_same_error_of_every_rank_is_one_cause_with_its_workers() -> None:
    text = HEAD
    for rank in range(8):
        text += errors(
            f"Worker_TP{rank}", 30 + rank, "load_model", error=f"torch.OutOfMemoryError: CUDA out of memory. GPU {rank} has {rank}.5 GiB"
        )
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.facts["workers"] == [f"Worker_TP{rank}" for rank in range(8)]
    assert [e.worker for e in found.cause.evidence] == [f"Worker_TP{rank}" for rank in range(6)]


def test_interleaved_tracebacks_are_put_together_per_worker() -> None:
    a = errors("Worker_TP0", 30, "capture_model", error="torch.OutOfMemoryError: CUDA out of memory.").splitlines()
    b = errors("Worker_TP1", 31, "capture_model", error="torch.OutOfMemoryError: CUDA out of memory.").splitlines()
    mixed = [line for pair in zip(a, b, strict=True) for line in pair]
    found = diagnose((HEAD + "\n".join(mixed) + "\n").encode())
    assert found.cause is not None
    assert found.cause.code == "oom-cudagraph-capture"
    assert len(found.cause.evidence) == 2


def test_in_a_chain_the_known_exception_wins_over_what_was_raised_from_it() -> None:
    prefix = "(EngineCore pid=20) ERROR 10-12 08:00:09 [core.py:1231] "
    text = HEAD + errors("EngineCore", 20, "open", error="FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'").replace(
        "multiproc_executor.py:870", "core.py:1231"
    )
    text += f"{prefix}\n{prefix}The above exception was the direct cause of the following exception:\n{prefix}\n"
    text += traceback(prefix, "build", error="RuntimeError: building the sampler did not work")
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "jit-nvcc-missing"


def test_an_unknown_exception_is_named_and_nothing_is_guessed() -> None:
    text = HEAD + errors("Worker_TP1", 31, "forward", error="RuntimeError: flux capacitor 88 at 0x7f12 has no '/srv/charge'")
    text += errors(
        "EngineCore", 20, "run", error="Exception: WorkerProc initialization failed due to an exception in a background process."
    )
    found = diagnose(text.encode())
    assert found.outcome == "failed"
    assert found.cause is None
    assert found.unknown is not None
    assert found.unknown.first_exception is not None
    assert "Worker_TP1" in found.unknown.first_exception
    assert found.unknown.template == "RuntimeError: flux capacitor N at X has no '…'"


def test_only_a_wrapper_means_that_the_cause_is_not_visible() -> None:
    text = HEAD + "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "cause-not-visible"
    assert any("collect" in (r.action or "") for r in found.remedies)


@pytest.mark.parametrize(
    ("status", "code"),
    [(-9, "process-killed"), (137, "process-killed"), (-11, "process-crashed"), (-6, "process-crashed"), (1, "cause-not-visible")],
)
def test_exit_statuses_say_what_the_text_does_not(status: int, code: str) -> None:
    found = diagnose(HEAD.encode(), exit_status=status)
    assert found.outcome == "failed"
    assert found.cause is not None
    assert found.cause.code == code


def test_exit_codes_in_the_log_are_read_and_the_kernel_decides() -> None:
    text = (
        HEAD
        + "(EngineCore pid=20) ERROR 10-12 08:00:09 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.\n"  # noqa: E501
    )
    assert diagnose(text.encode()).cause.code == "process-killed"  # type: ignore[union-attr]
    proven = diagnose(text.encode(), context={"cgroup_oom_kills": 1})
    assert proven.cause is not None
    assert proven.cause.code == "host-ram-oom"
    assert proven.cause.confidence > 0.9


def test_an_error_that_the_start_went_on_after_is_not_a_failure() -> None:
    text = HEAD + errors("EngineCore", 20, "probe", error="RuntimeError: no such feature")
    text += "(EngineCore pid=20) INFO 10-12 08:00:20 [gpu_worker.py:538] Available KV cache memory: 11.08 GiB\n"
    assert diagnose(text.encode()).outcome == "incomplete"
    assert diagnose((text + READY).encode()).outcome == "ready"


def test_a_request_that_fails_does_not_make_a_server_fail() -> None:
    text = HEAD + READY + traceback("(APIServer pid=9) ERROR 10-12 09:00:00 [serving.py:1] ", "chat", error="ValueError: bad request 17")
    assert diagnose(text.encode()).outcome == "ready"


def test_an_engine_that_dies_after_ready_is_a_serving_failure() -> None:
    text = (
        HEAD
        + READY
        + errors("Worker_TP0", 30, "execute_model", error="torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    )
    text += "(APIServer pid=9) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).\n"
    found = diagnose(text.encode())
    assert (found.outcome, found.phase) == ("serving-failed", "serving")
    assert found.cause is not None
    assert found.cause.code == "illegal-memory-access-kernel"


def test_a_stop_by_signal_is_no_failure() -> None:
    text = HEAD + READY + "(EngineCore pid=20) INFO 10-12 09:00:00 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    text += traceback("(EngineCore pid=20) ", "poll", error="KeyboardInterrupt")
    assert diagnose(text.encode(), exit_status=-15).outcome == "ready"


def test_a_new_start_after_a_crash_is_judged_on_its_own() -> None:
    first = HEAD + errors("Worker_TP0", 30, "load_model", error="torch.OutOfMemoryError: CUDA out of memory.")
    banner = "(APIServer pid=90) INFO 10-12 08:10:00 [api_utils.py:339]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.1\n"
    found = diagnose((first + banner + HEAD + READY).encode())
    assert found.outcome == "ready"
    assert found.cause is None


def test_harmless_lines_are_counted_with_their_numbers() -> None:
    text = HEAD + "(EngineCore pid=20) WARNING 10-12 08:00:09 [x.py:1] [Autotuner]: Skipping tactic 3 due to failure\n" * 3 + READY
    found = diagnose(text.encode())
    assert [(b.code, b.count, b.lines) for b in found.benign] == [("benign-autotuner-skip", 3, [6, 7, 8])]
    assert found.cause is None


def test_an_empty_log_is_incomplete() -> None:
    assert diagnose(b"").outcome == "incomplete"


def test_a_start_that_fails_after_it_stopped_its_engine_still_has_a_cause() -> None:
    text = HEAD + "(EngineCore pid=20) INFO 10-12 08:01:00 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    text += traceback("", "build_and_serve", "create_ssl_context", error="FileNotFoundError: [Errno 2] No such file or directory")
    found = diagnose(text.encode(), exit_status=1)
    assert found.cause is not None
    assert found.cause.code == "file-not-found"


def test_a_log_pasted_as_one_line_is_taken_apart() -> None:
    head = "(Worker_TP1 pid=31) ERROR 10-12 08:00:09 [multiproc_executor.py:888]"
    parts = [
        "Traceback (most recent call last):",
        'File "/x/vllm/v1/worker/gpu_worker.py", line 356, in load_model',
        "self.model_runner.load_model()",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    found = diagnose((" ".join(f"{head} {part}" for part in parts) + "\n").encode())
    assert found.cause is not None
    assert (found.cause.code, found.cause.evidence[0].worker) == ("oom-weight-load", "Worker_TP1")


def test_a_nccl_error_yields_to_the_memory_that_ran_out_elsewhere() -> None:
    nccl = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    )
    text = HEAD + errors("Worker_TP1", 31, "all_reduce", error=nccl)
    text += errors("Worker_TP0", 30, "profile_run", error="torch.OutOfMemoryError: CUDA out of memory.")
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "oom-profile-run"
    assert "nccl-unhandled-cuda-error" in [c.code for c in found.contributing]


def test_a_side_thread_that_ends_does_not_make_a_start_fail() -> None:
    text = HEAD + traceback("(APIServer pid=9) ", "_bootstrap_inner", "_report_usage", error="ConnectionError: no way out")
    assert diagnose(text.encode()).outcome == "incomplete"


@pytest.mark.parametrize(
    ("message", "sm"),
    [
        ("FlashMLA is only supported on Hopper devices (SM90a)", 90),
        ("with CUDA capability sm_120 is not compatible with the current PyTorch installation", 120),
    ],
)
def test_the_gpu_generation_is_a_fact(message: str, sm: int) -> None:
    found = diagnose(f"RuntimeError: {message}\n".encode())
    assert found.cause is not None
    assert found.facts["sm"] == sm


def test_many_processes_that_come_and_go_are_no_burden() -> None:
    lines = (f"(RayWorkerWrapper pid={n}, ip=10.0.0.1) RuntimeError: peer {n} said no\n" for n in range(9000))
    found = diagnose(line.encode() for line in lines)
    assert found.outcome == "failed"
    assert found.cause is None
    assert found.facts["lines"] == 9000


def test_a_server_that_cannot_bind_was_never_ready() -> None:
    text = (
        "INFO:     Application startup complete.\n"
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8123): address already in use\n"
        "INFO:     Application shutdown complete.\n"
    )
    found = diagnose(text.encode())
    assert found.outcome == "failed"
    assert found.cause is not None
    assert (found.cause.code, found.phase) == ("port-in-use", "api-start")
    assert (found.facts["host"], found.facts["port"]) == ("0.0.0.0", 8123)


def test_a_traceback_that_is_indented_behind_its_first_line_ends_at_its_exception() -> None:
    text = (
        "12:00:00 framework ERROR: Traceback (most recent call last):\n"
        '     File "/app/backend.py", line 8, in start\n'
        "       engine = AsyncLLM(\n"
        "   TypeError: AsyncLLM.__init__() got an unexpected keyword argument 'log_requests'\n"
    )
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "dependency-version-mismatch"
    assert found.facts["argument"] == "log_requests"


def test_a_process_name_whose_bracket_was_not_copied_is_still_one() -> None:
    text = "EngineCore_DP0 pid=71) ERROR 10-02 08:11:40 [core.py:1301] torch.AcceleratorError: HIP error: invalid device function\n"
    found = diagnose(text.encode())
    assert found.cause is not None
    assert (found.cause.code, found.cause.evidence[0].worker) == ("no-kernel-image", "EngineCore_DP0")


def test_ray_lists_what_may_have_happened_and_proves_nothing() -> None:
    text = (
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n"
    )
    found = diagnose(text.encode())
    assert found.cause is None or found.cause.confidence < 0.7


def test_an_engine_cores_error_is_in_the_phase_that_its_workers_are_in() -> None:
    log = (
        b"(EngineCore pid=8) INFO 10-12 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'\n"
        b"(Worker_TP0 pid=9) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...\n"
        b"(Worker_TP0 pid=9) INFO 10-12 08:00:25 [gpu_worker.py:375] Available KV cache memory: 0.20 GiB\n"
        b"(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165] EngineCore failed to start.\n"
        b"(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165] Traceback (most recent call last):\n"
        b'(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165]   File "/v/vllm/v1/core/kv_cache_utils.py", line 9, in check\n'
        b"(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165] ValueError: No available memory for the cache blocks.\n"
    )
    found = diagnose(log)
    assert found.cause is not None
    assert (found.cause.code, found.phase) == ("no-memory-for-cache-blocks", "kv-allocation")


WARNED = b"""(Worker_TP0 pid=9) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...
(Worker_TP0 pid=9) ERROR 10-12 08:00:06 [x.py:7] Traceback (most recent call last):
(Worker_TP0 pid=9) ERROR 10-12 08:00:06 [x.py:7]   File "/v/kestrel/tuner.py", line 9, in tune
(Worker_TP0 pid=9) ERROR 10-12 08:00:06 [x.py:7] RuntimeError: kestrel cannot tune this
"""
ROUTINE = b"".join(b"(Worker_TP0 pid=9) INFO 10-12 08:00:0%d [y.py:3] reading part %d of the table\n" % (i, i) for i in range(6, 9))


def test_an_error_that_the_same_process_goes_on_after_is_no_failure() -> None:
    assert diagnose(WARNED + ROUTINE).outcome == "incomplete"


@pytest.mark.parametrize(
    "after",
    [
        b"",
        b"(Worker_TP1 pid=10) INFO 10-12 08:00:09 [y.py:3] reading part 1 of the table\n" * 4,
        b"(Worker_TP0 pid=9) INFO 10-12 08:00:09 [y.py:3] Shutting down the kestrel\n" * 4,
        ROUTINE + b"(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
    ],
)
def test_an_error_stays_one_where_another_process_goes_on_or_the_end_is_told(after: bytes) -> None:
    assert diagnose(WARNED + after).outcome == "failed"


def test_an_exception_of_the_engines_loop_without_frames_names_the_engine_and_stays_unknown() -> None:
    found = diagnose(
        b"(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165] AssertionError\n" + b"EngineDeadError: EngineCore encountered an issue.\n"
    )
    assert found.cause is not None
    assert (found.cause.code, found.cause.confidence) == ("engine-check-failed", 0.5)
    assert found.unknown is not None
    assert found.unknown.first_exception is not None


@pytest.mark.parametrize("source", ["kestrel_tool_parser.py:9", "serving_chat.py:200", "hermes_tool_parser.py:108"])
def test_what_a_file_that_handles_requests_logs_is_no_failure_of_the_server(source: str) -> None:
    log = f"""ERROR 10-12 08:00:06 [{source}] Error in reading kestrel
ERROR 10-12 08:00:06 [{source}] Traceback (most recent call last):
ERROR 10-12 08:00:06 [{source}]   File "/v/vllm/kestrel.py", line 9, in extract
ERROR 10-12 08:00:06 [{source}] json.decoder.JSONDecodeError: Extra data: line 3 column 1 (char 91)
"""
    assert diagnose(log.encode()).outcome == "incomplete"
    died = f"ERROR 10-12 08:00:06 [{source}] v.MQEngineDeadError: Inspect the stacktrace to find the original error: ValueError('a').\n"
    assert diagnose(died.encode()).outcome == "failed"


def test_the_rest_of_an_unknown_message_that_a_rule_knows_is_read() -> None:
    found = diagnose(
        b"(EngineCore pid=8) ERROR 10-12 08:00:26 [core.py:1165] RuntimeError: Worker failed with error 'Kestrel reports an inner fault\n"
        b" for this inner error, and the current working operator name is KestrelOperation.\n"
    )
    assert found.cause is not None
    assert found.cause.code == "cuda-error"


def test_the_core_loops_frames_between_answers_are_a_server_that_failed() -> None:
    log = b"""(ApiServer_3 pid=7) INFO:     192.0.2.1:45516 - "POST /v1/completions HTTP/1.1" 200 OK
(EngineCore_DP0 pid=8) ERROR 10-12 08:00:31 [v1/engine/core.py:710]   File "/v/vllm/v1/engine/core.py", line 754, in _process_engine_step
(EngineCore_DP0 pid=8) ERROR 10-12 08:00:31 [v1/engine/core.py:710]     outputs, model_executed = self.step_fn()
(ApiServer_3 pid=7) INFO:     192.0.2.1:45520 - "POST /v1/completions HTTP/1.1" 200 OK
"""
    assert diagnose(log).outcome == "serving-failed"


BARE = b"""(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165] Traceback (most recent call last):
(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165]   File "/opt/own/wing.py", line 12, in spread
(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165]     assert self.feathers % wings == 0
(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165]            ^^^^^^^^^^^^^^^^^^^^^^^^^^
"""


def test_an_exception_without_a_message_is_shown_with_the_line_that_raised_it() -> None:
    found = diagnose(BARE + b"(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165] AssertionError\n")
    assert found.unknown is not None
    assert found.unknown.first_exception == "line 5 [EngineCore]: AssertionError by assert self.feathers % wings == 0"


def test_a_traceback_that_the_logs_end_cuts_is_shown_by_its_last_frame_and_by_no_made_up_word() -> None:
    cut = BARE.replace(b"/opt/own/wing.py", b"/opt/venv/lib/python3.12/site-packages/vllm/model_executor/layers/quantization/awq.py")
    found = diagnose(b"".join(cut.splitlines(keepends=True)[:-1]))
    assert found.cause is not None
    assert found.cause.code == "quantization-unsupported"
    (seen,) = found.cause.evidence
    assert seen.line == 3
    assert seen.text.endswith('quantization/awq.py", line 12, in spread: assert self.feathers % wings == 0')
