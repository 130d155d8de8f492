"""What is said where no error explains a failure: warnings, what the start went on after, the earliest consequence, spared lines."""

import pytest

from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.messages import joined, says_ended

HEAD = (
    "(APIServer pid=9) INFO 10-12 08:00:00 [api_utils.py:273] non-default args: {'model': '/m', 'tensor_parallel_size': 2}\n"
    "(EngineCore pid=20) INFO 10-12 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.31.0) with config: model='/m'\n"
)
WORLD = (
    "(Worker_TP0 pid=30) INFO 10-12 08:00:05 [parallel_state.py:1607] world_size=2 rank=0 local_rank=0"
    " distributed_init_method=tcp://192.0.2.9:40311 backend=nccl\n"
)
CUT = (
    "(Worker_TP0 pid=30) ERROR 10-12 08:00:09 [multiproc_executor.py:870] WorkerProc failed to start.\n"
    "(Worker_TP0 pid=30) ERROR 10-12 08:00:09 [multiproc_executor.py:870] Traceback (most recent call last):\n"
    '(Worker_TP0 pid=30) ERROR 10-12 08:00:09 [multiproc_executor.py:870]   File "/v/vllm/v1/executor/multiproc_executor.py", line 8, in worker_main\n'  # noqa: E501
)
OLD_GPU = "(Worker_TP0 pid=30) Merlin 7 with CUDA capability sm_61 is not compatible with the current PyTorch installation.\n"


def code_of(text: str) -> tuple[str, str | None]:
    found = diagnose(text.encode())
    return found.outcome, found.cause.code if found.cause else None


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("RuntimeError: ('not for ', 'this GPU. Has: 70.')", "RuntimeError: not for this GPU. Has: 70."),
        ("ValueError: ('not for', 'this GPU')", "ValueError: not for this GPU"),
        ("""ValueError: ("it's", 'bad', 7)\nmore""", "ValueError: it's bad 7\nmore"),
        ("RuntimeError: ('only one',)", "RuntimeError: only one"),
        ("RuntimeError: ('dtype', torch.float8)", "RuntimeError: ('dtype', torch.float8)"),
        ("RuntimeError: ('open", "RuntimeError: ('open"),
        ("RuntimeError: f('a', 'b')", "RuntimeError: f('a', 'b')"),
        ("KeyError: 'a'", "KeyError: 'a'"),
    ],
)
def test_strings_raised_as_a_tuple_are_one_sentence(raised: str, said: str) -> None:
    assert joined(raised) == said


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("llama.cpp terminated unexpectedly: llama.cpp failed: exit", True),
        ("llama runner process has terminated: exit status 2", True),
        ("llama runner process no longer running: 1", True),
        ("llama-server exited with code 1", True),
        ("llama-server exited with code 0", False),
        ("upstream process exited prematurely: exit status 1", True),
        ("upstream command exited prematurely but successfully", False),
        ("vllm terminated unexpectedly: vLLM failed: exit status 1", True),
        ("The model has crashed without additional information. (Exit code: 6)", True),
        ("srv  llama_server: model loaded", False),
    ],
)
def test_who_says_that_a_server_ended(text: str, ended: bool) -> None:
    assert says_ended(text) is ended


def test_what_the_start_went_on_after_explains_a_silent_failure_with_less_confidence() -> None:
    found = diagnose((HEAD + OLD_GPU + WORLD + CUT).encode())
    assert found.cause is not None
    assert (found.cause.code, found.cause.confidence) == ("no-kernel-image", 0.7)
    assert found.cause.evidence[0].line == 3


def test_it_is_nothing_to_a_start_that_went_on_or_failed_of_something_else() -> None:
    assert code_of(HEAD + OLD_GPU + WORLD) == ("incomplete", None)
    other = CUT + "(Worker_TP0 pid=30) ERROR 10-12 08:00:09 [multiproc_executor.py:870] torch.OutOfMemoryError: CUDA out of memory.\n"
    assert code_of(HEAD + OLD_GPU + WORLD + other)[1] != "no-kernel-image"


def test_a_warning_at_the_end_is_named_of_an_excerpt_and_not_of_a_start_under_way() -> None:
    full = "[rank0]:[W1012 08:10:01.1 CUDACachingAllocator.cpp:508] expandable_segments: memory mapping failed with OOM on device 0"
    full += " while trying to map 2097152 bytes (free: 1048576, total: 25757220864).\n"
    assert code_of(full * 3) == ("incomplete", "oom-gpu")
    assert code_of(HEAD + WORLD + full) == ("incomplete", None)


def test_a_server_that_was_ready_does_not_die_of_what_was_warned_of_before() -> None:
    ready = "(EngineCore pid=20) INFO 10-12 08:00:20 [gpu_worker.py:538] Available KV cache memory: 11.08 GiB\n"
    ready += "(APIServer pid=9) INFO:     Application startup complete.\n"
    dead = "(EngineCore pid=20) ERROR 10-12 09:00:09 [x.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"
    outcome, code = code_of(HEAD + OLD_GPU + WORLD + ready + dead)
    assert outcome == "serving-failed"
    assert code != "no-kernel-image"


def test_a_lost_peer_alone_is_named_as_a_consequence() -> None:
    wrapped = "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    lost = "(EngineCore pid=20) ERROR 10-12 08:00:09 [core.py:1] RuntimeError: Connection closed by peer [192.0.2.7]:4011\n"
    found = diagnose((HEAD + lost + wrapped).encode())
    assert found.cause is not None
    assert found.cause.code == "cause-not-visible"
    assert found.cause.title.endswith("; why is not in the log")
    assert found.cause.evidence[0].line == 3


def test_a_call_that_was_not_answered_is_the_verdict_where_nothing_comes_before_it() -> None:
    late = "(EngineCore pid=20) ERROR 10-12 08:00:09 [core.py:1] TimeoutError: RPC call to execute_model timed out.\n"
    dead = "(APIServer pid=9) ERROR 10-12 08:00:09 [async_llm.py:704] AsyncLLM output_handler failed.\n"
    found = diagnose((HEAD + late + dead).encode())
    assert found.cause is not None
    assert found.cause.code == "engine-call-timeout"
    assert "execute_model" in found.cause.title
    unknown = "(EngineCore pid=20) ERROR 10-12 08:00:08 [core.py:1] the third plume is ruffled\n"
    assert code_of(HEAD + unknown + late + dead)[1] != "engine-call-timeout"


def test_an_error_that_is_harmless_mostly_is_evidence_where_nothing_else_is() -> None:
    spared = "(EngineCore pid=20) ERROR 10-12 08:00:08 [x.py:1] Audio preprocessing warmup failed. First request may be slower.\n"
    wrapped = "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    found = diagnose((HEAD + spared + wrapped).encode())
    assert found.unknown is not None
    assert found.unknown.first_exception is not None
    assert "warmup failed" in found.unknown.first_exception


def test_frames_of_windows_are_read_as_all_others_and_name_facts() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "C:\\e\\Lib\\site-packages\\vllm\\entrypoints\\cli\\main.py", line 3, in main\n    import vllm.x\n'
        '  File "C:\\e\\Lib\\site-packages\\vllm\\x.py", line 44\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    )
    found = diagnose(text.encode())
    assert found.cause is not None
    assert found.cause.code == "engine-package-inconsistent"
    assert "vllm/x.py, line 44" in found.cause.title


def test_a_line_without_words_of_an_error_is_no_first_exception() -> None:
    line = "[overlay] the third plume is there already, skipping\n"
    wrapped = "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    found = diagnose((HEAD + wrapped + line).encode())
    assert found.unknown is None or found.unknown.first_exception is None


def test_a_bare_heading_is_shown_with_the_line_behind_it() -> None:
    found = diagnose(b"main: loading model\nError:\nthe kestrel is not at home\n")
    assert found.unknown is not None
    assert found.unknown.first_exception == "line 2: Error: the kestrel is not at home"


def test_a_text_that_is_nothing_but_waiting_is_put_down_to_the_wait() -> None:
    line = (
        "(APIServer pid=1) DEBUG 01-02 03:04:{:02} [v1/engine/utils.py:1143] Waiting for 1 local, 0 remote core engine proc(s) to start.\n"
    )
    waits = "".join(line.format(second) for second in range(0, 60, 10))
    found = diagnose(waits.encode())
    assert (found.outcome, found.cause and found.cause.code) == ("incomplete", "hang-unknown")
    begun = "(EngineCore pid=7) INFO 01-02 03:04:01 [gpu_model_runner.py:99] Starting to load model x...\n"
    assert diagnose((waits + begun).encode()).cause is None
    assert diagnose(line.format(1).encode()).cause is None
