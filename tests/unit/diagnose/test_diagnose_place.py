"""Failures of which only the place is known: by the frames, through the frames of tools, or by what only one file prints."""

import pytest

from firstlight.catalog.texts import load_texts, place_of_text
from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.place import place_of_frames

SITE = "/opt/venv/lib/python3.12/site-packages/"
READY = "INFO:     Application startup complete.\n"
DEAD = "CRITICAL 01-12 08:05:01 launcher.py:99] MQLLMEngine is already dead, terminating server process\n"
V0 = """ERROR 01-12 08:05:00 engine.py:135] Traceback (most recent call last):
ERROR 01-12 08:05:00 engine.py:135]   File "/x/vllm/engine/multiprocessing/engine.py", line 133, in start
ERROR 01-12 08:05:00 engine.py:135]     self.run_engine_loop()
ERROR 01-12 08:05:00 engine.py:135]   File "/x/vllm/worker/model_runner.py", line 1701, in execute_model
ERROR 01-12 08:05:00 engine.py:135]     output = rows[0]
ERROR 01-12 08:05:00 engine.py:135] IndexError: list index out of range
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (SITE + "vllm/lora/utils.py", "vllm/lora/utils.py:f"),
        ("/workspace/vllm/vllm/lora/utils.py", "vllm/lora/utils.py:f"),
        ("/usr/lib/python3.12/json/decoder.py", None),
        (SITE + "torch/nn/modules/module.py", None),
        (SITE + "vllm/v1/executor/multiproc_executor.py", None),
        ("/root/.cache/huggingface/modules/transformers_modules/kestrel/modeling.py", "transformers_modules/kestrel/modeling.py:f"),
    ],
)
def test_place_of_one_frame(path: str, place: str | None) -> None:
    assert place_of_frames([f'File "{path}", line 3, in f', "f()"]) == place


def test_the_frames_of_tools_are_looked_through() -> None:
    frames = [
        f'File "{SITE}vllm/lora/utils.py", line 3, in get',
        f'File "{SITE}torch/nn/modules/module.py", line 9, in _call_impl',
        'File "/usr/lib/python3.12/contextlib.py", line 9, in inner',
    ]
    assert place_of_frames(frames) == "vllm/lora/utils.py:get"


def test_a_message_without_frames_is_looked_up() -> None:
    """Anywhere in the text where a word begins, by how its fixed part begins; what nobody collected is not known."""
    said = "ValueError: Packing is only supported for num_bits in [1, 8], got 9"
    assert place_of_text("vllm", said) == "compressed_tensors/compressors/pack_quantized/helpers.py:"
    assert place_of_text("vllm", f"(Worker pid=3) wrapped ('{said}')") == place_of_text("vllm", said)
    assert place_of_text("vllm", said.replace("Packing is", "Pack is")) is None
    assert place_of_text("vllm", "ValueError: kestrels do not swim") is None
    assert load_texts("sglang") == {}


def test_a_traceback_without_its_end_does_not_blame_the_loop_that_is_left() -> None:
    text = f"""ERROR 10-12 08:00:31 [multiproc_executor.py:935] Traceback (most recent call last):
ERROR 10-12 08:00:31 [multiproc_executor.py:935]   File "{SITE}vllm/v1/executor/multiproc_executor.py", line 905, in worker_main
ERROR 10-12 08:00:31 [multiproc_executor.py:935]     worker = WorkerProc(*args, **kwargs)
ERROR 10-12 08:00:31 [multiproc_executor.py:935] IndexError: list index out of range
"""
    found = diagnose(text.encode())
    assert found.cause is None
    assert found.unknown is not None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("'ForwardContext' object has no attribute 'wings'", "engine-check-failed"),
        ("'AscendKestrelRunner' object has no attribute 'wings'", "plugin-failed"),
        ("'model.layers.0.mlp.wings.weight'", "weight-name-unknown"),
        ("No module named 'kestrel'", "dependency-missing"),
        ("NPU out of memory. Tried to allocate 11.50 GiB", "oom-gpu"),
    ],
)
def test_a_message_that_is_only_quoted_gets_the_type_that_says_such_things(message: str, code: str) -> None:
    text = f"(EngineCore pid=8) RuntimeError: Worker failed with error '{message}', please check the stack trace above for the root cause\n"
    v0 = f"ERROR 05-13 11:59:07 engine.py:400] {message}\nERROR 05-13 11:59:07 engine.py:400] Traceback (most recent call last):\n"
    for log in (text, v0):
        found = diagnose(log.encode())
        assert found.cause is not None, log
        assert found.cause.code == code


def test_a_warning_explains_only_what_nothing_else_does() -> None:
    warning = "WARNING 05-22 11:41:53 [_custom_ops.py:21] Failed to import from vllm._C with ImportError('kestrel')\n"
    died = "(EngineCore pid=382) ERROR 05-22 11:41:54 [core.py:396] EngineCore failed to start.\n"
    known = "(EngineCore pid=382) ERROR 05-22 11:41:54 [core.py:396] ValueError: No available memory for the cache blocks.\n"
    codes = [found.cause.code for log in (warning + died, warning + died + known) if (found := diagnose(log.encode())).cause is not None]
    assert codes == ["engine-package-inconsistent", "no-memory-for-cache-blocks"]
    assert diagnose((warning + READY).encode()).outcome == "ready"


@pytest.mark.parametrize("end", [DEAD, ""])
def test_an_engine_of_the_v0_era_that_dies_while_serving(end: str) -> None:
    found = diagnose((READY + V0 + end + "INFO:     Shutting down\n").encode())
    assert found.outcome == "serving-failed"
    assert found.cause is not None
    assert found.cause.code == "engine-check-failed"
    assert found.cause.evidence[0].worker == "EngineCore"


def test_knowing_only_the_place_makes_no_server_a_failed_one() -> None:
    """A request's traceback in the front end, after ready, is handled by the server; the place of its code changes nothing."""
    frames = f'  File "{SITE}vllm/multimodal/kestrel.py", line 3, in decode\n    rows[0]\n'
    text = READY + "Traceback (most recent call last):\n" + frames + "IndexError: list index out of range\n"
    assert diagnose(text.encode()).outcome == "ready"


TORN = """(EngineCore pid=41) ERROR 11-02 09:14:05 [core.py:1148]   File "/v/site-packages/vllm/lora/worker_manager.py", line 166, in set
(EngineCore pid=41) ERROR 11-02 09:14:05 [core.py:1148]     self.add_adapter(lora)
"""


def test_a_traceback_without_its_end_still_tells_the_part_of_the_engine() -> None:
    found = diagnose(TORN.encode())
    assert found.outcome == "failed"
    assert found.cause is not None
    assert found.cause.code == "lora-unsupported-weight"
    assert found.cause.confidence <= 0.5


def test_a_torn_traceback_of_the_engines_loop_tells_nothing() -> None:
    found = diagnose(TORN.replace("vllm/lora/worker_manager.py", "vllm/v1/engine/core.py").encode())
    assert found.cause is None or found.cause.code == "cause-not-visible"


def test_a_torn_traceback_before_another_exception_counts_for_nothing() -> None:
    found = diagnose((TORN + "(APIServer pid=40) OSError: [Errno 98] Address already in use\n").encode())
    assert found.cause is not None
    assert found.cause.code == "port-in-use"


def test_v0_engine_process_that_prints_a_repr_has_died() -> None:
    log = (
        'INFO:     127.0.0.1:50416 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        "ERROR 11-11 11:42:38 engine.py:158] RecursionError('maximum recursion depth exceeded')\n"
    )
    assert diagnose(log.encode()).outcome in ("failed", "serving-failed")


def test_the_line_next_to_a_crash_says_more_than_the_crash() -> None:
    thrown = "terminate called after throwing an instance of 'vk::IncompatibleDriverError'\n"
    log = thrown + "  what():  vk::createInstance: ErrorIncompatibleDriver\n"
    found = diagnose(log.encode())
    assert found.cause is not None
    assert found.cause.code == "no-gpu-found"


SERVED = f"""(APIServer pid=40) {READY}(EngineCore pid=71) ERROR 11-30 09:20:11 [core.py:1240] Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-30 09:20:11 [core.py:1240]   File "{SITE}vllm/v1/worker/gpu_model_runner.py", line 4011, in execute_model
(EngineCore pid=71) ERROR 11-30 09:20:11 [core.py:1240]     assert state.embeds is not None
(EngineCore pid=71) ERROR 11-30 09:20:11 [core.py:1240] AssertionError: embeds are required here
"""


def test_where_only_a_wrapper_tells_of_the_end_the_engines_exception_before_it_is_the_cause() -> None:
    ended = "(APIServer pid=40) ERROR 11-30 09:20:12 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore died.\n"
    found = diagnose((SERVED + ended).encode())
    assert found.outcome == "serving-failed"
    assert found.cause is not None
    assert found.cause.code == "engine-check-failed"
    assert diagnose(SERVED.encode()).outcome == "ready"


def test_the_ray_executors_calls_to_workers_are_no_place_of_a_failure() -> None:
    file = SITE + "vllm/executor/ray_distributed_executor.py"
    assert place_of_frames([f'File "{file}", line 503, in _run_workers']) is None
    begun = place_of_frames([f'File "{file}", line 201, in _init_workers_ray'])
    assert begun == "vllm/executor/ray_distributed_executor.py:_init_workers_ray"
