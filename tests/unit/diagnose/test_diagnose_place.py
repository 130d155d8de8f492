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
    part, place = load_texts("vllm")[0]
    assert place_of_text("vllm", f"ValueError: {part} and so on") == place
    assert place_of_text("vllm", "ValueError: kestrels do not swim") is None
    assert load_texts("sglang") == ()


def test_a_traceback_without_its_end_does_not_blame_the_loop_that_is_left() -> None:
    text = f"""ERROR 10-12 08:00:31 [multiproc_executor.py:935] Traceback (most recent call last):
ERROR 10-12 08:00:31 [multiproc_executor.py:935]   File "{SITE}vllm/v1/executor/multiproc_executor.py", line 905, in worker_main
ERROR 10-12 08:00:31 [multiproc_executor.py:935]     worker = WorkerProc(*args, **kwargs)
ERROR 10-12 08:00:31 [multiproc_executor.py:935] AttributeError: 'KestrelModel' object has no attribute 'wings'
"""
    found = diagnose(text.encode())
    assert found.cause is None
    assert found.unknown is not None


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
