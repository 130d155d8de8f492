"""Where it happened: by the frames, by what the wrappers say; nothing where nothing tells."""

import pytest

from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.place import phase_of_frames

CORE = '  File "/x/vllm/v1/engine/core.py", line 10, in {}\n    f()\n'
ERROR = "KeyError: 'a'\n"


def traced(*functions: str) -> bytes:
    return ("Traceback (most recent call last):\n" + "".join(CORE.format(f) for f in functions) + ERROR).encode()


@pytest.mark.parametrize(
    ("functions", "phase"),
    [
        (("run_engine_core", "__init__", "init_device"), "distributed-init"),
        (("run_engine_core", "__init__", "load_model", "load_weights"), "loading"),
        (("_initialize_kv_caches", "determine_available_memory", "profile_run", "_dummy_run"), "profiling"),
        (("_initialize_kv_caches", "initialize_from_config", "compile_or_warm_up_model", "capture_model", "_dummy_run"), "capturing"),
        (("_initialize_kv_caches", "initialize_from_config", "allocate"), "kv-allocation"),
        (("run_engine_core", "run_busy_loop", "_process_engine_step", "execute_model", "load_weights"), "serving"),
        (("run_scheduler_process", "event_loop_overlap", "process"), "serving"),
    ],
)
def test_frames_tell_the_phase(functions: tuple[str, ...], phase: str) -> None:
    assert diagnose(traced(*functions)).phase == phase


def test_frames_without_a_step_tell_nothing() -> None:
    assert phase_of_frames(['File "/x/y.py", line 1, in forward']) is None
    assert phase_of_frames(["profile_run in a message"]) is None
    assert diagnose(traced("forward")).phase is None


def test_wrappers_and_refused_requests_tell_that_it_was_up() -> None:
    wrapped = traced("forward") + b"ERROR 11-30 10:00:00 [async_llm.py:708] AsyncLLM output_handler failed.\n"
    assert diagnose(wrapped).phase == "serving"
    refused = b'(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
    assert diagnose(b"(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1] KeyError: 'a'\n" + refused).phase == "serving"


def test_a_server_that_its_shell_saw_killed_was_not_fine_in_the_end() -> None:
    up = b"(APIServer pid=124) INFO:     Application startup complete.\n"
    killed = b"./serve.sh: line 193: 124 Killed                  vllm serve m --dtype auto --max-model-len 512 --port 80\n"
    assert diagnose(up + killed).outcome == "serving-failed"
    assert diagnose(up + b"./serve.sh: done\n").outcome == "ready"


def test_a_crash_is_not_handled_by_the_lines_of_others() -> None:
    log = (
        b"INFO 11-30 10:00:31 [gpu_model_runner.py:1521] Model loading took 14.9 GiB and 2.6 seconds\n"
        b"[node-7:4535:0:4588] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x7f00)\n"
        b"INFO 11-30 10:00:32 [kv_cache_utils.py:637] GPU KV cache size: 442,160 tokens\n"
        b"ERROR 11-30 10:00:32 [core.py:489] EngineCore failed to start.\n"
    )
    cause = diagnose(log).cause
    assert cause is not None
    assert cause.code == "process-crashed"


def test_a_known_message_right_behind_a_kind_is_the_cause() -> None:
    log = b"node-1:7:16 [0] [FATAL ERROR]: HIP failure: 'invalid argument'\nRuntimeError: NCCL error: unhandled cuda error\n"
    cause = diagnose(log).cause
    assert cause is not None
    assert cause.code == "nccl-unhandled-cuda-error"


def test_of_a_long_npu_message_the_reason_is_shown() -> None:
    log = (
        b"RuntimeError: addmm:torch_npu.dir/depend.ts:112 NPU function error: call aclnnAddmm failed, error code is 161002\n"
        b"[ERROR] 2025-12-23-12:56:15 (PID:17, Device:0, RankID:-1) ERR00100 PTA call acl api failed.\n"
        b"[PID: 17] 2025-12-23-12:56:15.164.100 AclNN_Parameter_Error(EZ1001): The k-axis of the two inputs are different.\n"
    )
    cause = diagnose(log).cause
    assert cause is not None
    assert "161002" in cause.evidence[0].text
    assert cause.evidence[0].text.endswith("EZ1001: The k-axis of the two inputs are different.")


@pytest.mark.parametrize(
    "last",
    [
        "/src/ggml/src/ggml-cuda/mmq.cu:88: GGML_ASSERT(n > 0) failed",
        "terminate called after throwing an instance of 'std::bad_function_call'",
        "/src/ggml/src/ggml-cuda/ggml-cuda.cu:104: CUDA error",
    ],
)
def test_llama_cpp_that_aborts_is_not_ready(last: str) -> None:
    up = "llama_model_loader: loaded meta data with 3 pairs\nmain: server is listening on http://127.0.0.1:80 - starting the main loop\n"
    found = diagnose((up + last + "\n").encode())
    assert found.outcome == "serving-failed"
    assert diagnose(up.encode()).outcome == "ready"


def test_of_an_abort_the_reason_beside_it_is_the_cause() -> None:
    up = "llama_model_loader: loaded meta data with 3 pairs\nmain: server is listening on http://127.0.0.1:80 - starting the main loop\n"
    at, why = "/src/ggml/src/ggml-cuda/ggml-cuda.cu:104: CUDA error\n", "CUDA error: an internal operation failed\n"
    for lines in (at + why, why + at):
        found = diagnose((up + lines).encode())
        assert found.cause is not None
        assert (found.outcome, found.cause.title.rpartition(": ")[2]) == ("serving-failed", "an internal operation failed")


def test_what_a_server_printed_is_quoted_behind_its_end() -> None:
    end = b"Failed to load llama-server: Process exited with code ExitStatus(unix_wait_status(139))\n"
    start = (
        b"build: 6012 (abcdef0) with cc (Debian 12.2.0-14) 12.2.0 for x86_64-linux-gnu\nmain: loading model\n"
        b"srv    load_model: loading model '/m/a.gguf'\nllama_model_loader: Dumping metadata keys/values.\n"
    )
    assert diagnose(end + b"\nStderr:\n" + start).outcome == "failed"
    assert diagnose(end + b"restarting\n" + start).outcome == "incomplete"
