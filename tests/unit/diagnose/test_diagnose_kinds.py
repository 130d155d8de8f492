"""Kinds of logs that hid their cause: streams that interleave, errors that were outlived, a shell's word, bars at nothing, cut paths."""

import pytest

from firstlight.catalog.rules import read_rules
from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.place import place_of_frames

HEAD = "(EngineCore pid=196) ERROR 10-12 08:00:20 [core.py:1132] "
SITE = "/opt/venv/lib/python3.12/site-packages/"
PLANE = """[[rule]]
code = "plane-broken"
title = "t"
meaning = "m"
match = ['kestrel wing broken']
"""


def traceback(*frames: str, message: str, head: str = HEAD) -> list[str]:
    lines = [f"{head}Traceback (most recent call last):"]
    for frame in frames:
        path, function = frame.split(":")
        lines += [f'{head}  File "{SITE}{path}", line 12, in {function}', f"{head}    go()"]
    return [*lines, f"{head}{message}"]


def code_of(lines: list[str]) -> str | None:
    found = diagnose("\n".join(lines).encode())
    return found.cause.code if found.cause else None


def test_what_the_same_process_prints_between_a_loggers_lines_ends_no_traceback() -> None:
    lines = traceback("vllm/v1/engine/core.py:run", "vllm/a.py:go", message="RuntimeError: No available memory for the cache blocks")
    lines[3:3] = ["(EngineCore pid=196) Process EngineCore:", "(EngineCore pid=196) Traceback (most recent call last):"]
    lines[6:6] = ['(EngineCore pid=196)   File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap']
    lines += ["(EngineCore pid=196)     self.run()", "(EngineCore pid=196) RuntimeError: No available memory for the cache blocks"]
    assert code_of(lines) == "no-memory-for-cache-blocks"


def test_an_error_that_a_download_outlived_is_not_what_it_failed_of_later() -> None:
    lines = [
        "common_download_file_single_online: failed to open 'kestrel_preset.ini': 'No such file or directory'",
        "gguf_init_from_file: failed to open 'models/kestrel.gguf': 'No such file or directory'",
        "[==================================================] 100%  (3683 MB / 3683 MB)",
        "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'kestrel4'",
        "llama_model_load_from_file_impl: failed to load model",
    ]
    assert code_of(lines) == "gguf-arch-unsupported"
    assert code_of(lines[:3]) == "model-not-found"


def test_killed_behind_an_exception_is_a_shells_word_and_no_cause() -> None:
    rules = read_rules(PLANE.replace("kestrel wing broken", "^Killed$").replace("plane-broken", "shell-said"), "own.toml")
    log = (
        "Traceback (most recent call last):\n"
        + f'  File "{SITE}kestrel/a.py", line 3, in go\n'
        + "AssertionError: one of no rule\nKilled\n"
    )
    found = diagnose(log.encode(), rules=rules)
    assert found.cause is None
    assert found.unknown is not None


def test_a_bar_at_nothing_behind_an_exception_is_no_progress() -> None:
    lines = traceback("sglang/srt/models/qwen2.py:load_weights", message="KeyError: 'layers.0.wing.weight'", head="")
    bar = "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]"
    assert code_of([*lines, "", bar]) == code_of(lines) is not None


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (".../mem_cache/swa_radix_cache.py", "sglang/srt/mem_cache/swa_radix_cache.py:go"),
        (".../managers/scheduler.py", "sglang/srt/managers/scheduler.py:go"),
        ("/root/sglang/python/sglang/srt/lora/layers.py", "sglang/srt/lora/layers.py:go"),
        ("/usr/local/python3.10.17/lib/python3.10/site-packages/torch_npu/npu/graphs.py", "torch_npu/npu/graphs.py:go"),
        ("/usr/local/python3.10.17/lib/python3.10/contextlib.py", None),
    ],
)
def test_paths_tell_the_place_however_they_are_written(path: str, place: str | None) -> None:
    assert place_of_frames([f'File "{path}", line 3, in go']) == place


@pytest.mark.parametrize(
    ("tail", "named"),
    [
        ("CMake Error at CMakeLists.txt:14 (project):\n  No CMAKE_CUDA_COMPILER could be found.", "CMake Error"),
        ("-- Configuring incomplete, errors occurred!", "errors occurred"),
        ("make: *** No rule to make target 'wing'.  Stop.", "No rule to make target"),
        ("ERROR: No matching distribution found for kestrel==9.9", "No matching distribution"),
        ("docker: Error response from daemon: failed to create task for container: kestrel", "Error response from daemon"),
        ("Nov 30 10:00:01 host systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE", "Main process exited"),
        ("(Worker pid=3) ERROR 10-12 08:00:20 [wing.py:3] the kestrel did not answer", "the kestrel did not answer"),
    ],
)
def test_the_error_that_a_log_ends_in_is_named_though_no_verdict_is_given(tail: str, named: str) -> None:
    found = diagnose(f"INFO 10-12 08:00:02 [__init__.py:216] Automatically detected platform cuda.\n{tail}\n".encode())
    assert found.cause is None
    assert found.unknown is not None
    assert named in (found.unknown.first_exception or "")


def test_an_error_long_before_the_end_of_an_unfinished_log_is_not_its_end() -> None:
    lines = ["error: kestrel went by", *(f"plain line {i}" for i in range(20))]
    assert diagnose("\n".join(lines).encode()).unknown is None


def test_warnings_behind_an_exception_are_not_its_message() -> None:
    lines = traceback("vllm/a.py:go", message="RuntimeError: kestrel wing broken", head="")
    tail = [
        "",
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: resource_tracker: There appear to be 1 leaked objects",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    found = diagnose("\n".join([*lines, *tail]).encode(), rules=read_rules(PLANE, "own.toml"))
    assert found.cause is not None
    assert found.cause.evidence[0].text == "RuntimeError: kestrel wing broken"


@pytest.mark.parametrize("end", ["$ ", "(venv) user@host:~# ", "```"])
def test_a_prompt_behind_a_cut_traceback_is_no_exception(end: str) -> None:
    lines = traceback("transformers_modules/kestrel/modeling_kestrel.py:forward", message="x", head="")[:-1]
    found = diagnose("\n".join([*lines, end]).encode())
    assert found.unknown is None or end.strip() not in (found.unknown.first_exception or "")
    assert found.cause is not None
    assert found.cause.code == "remote-code-failed"


def test_every_second_line_may_be_empty() -> None:
    lines = [
        "0.01.200.000 I srv load_model: loading model 'kestrel.gguf'",
        "0.01.200.100 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 21474836480",
        "0.01.200.200 E llama_init_from_model: failed to initialize the context:",
        "failed to allocate buffer for kv cache",
        "0.01.200.300 E srv load_model: failed to load model, 'kestrel.gguf'",
    ]
    spaced = [part for line in lines for part in (line, "")]
    assert code_of(spaced) == code_of(lines) is not None


def test_records_of_llama_cpp_are_read_in_a_block_that_is_indented_below_a_line_that_is_not() -> None:
    lines = [
        "0.01.200.100 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 21474836480",
        "0.01.200.200 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ]
    assert code_of(["the log:", *(f"        {line}" for line in lines)]) == code_of(lines) is not None


def test_fields_of_a_description_are_read_though_they_are_indented() -> None:
    log = "Name:  vllm-0\n  Last State:     Terminated\n    Reason:       OOMKilled\n    Exit Code:    137\n"
    assert code_of(["INFO 10-12 08:00:02 [__init__.py:216] Automatically detected platform cuda.", log]) == "host-ram-oom"


def test_a_message_for_anything_counts_for_less_where_its_place_speaks_of_something_else() -> None:
    rules = read_rules(PLANE.replace("kestrel wing broken", "JSONDecodeError: Expecting value"), "own.toml")
    placed = read_rules(
        PLANE.replace("plane-broken", "place-known").replace("kestrel wing broken", "JSONDecodeError")
        + "places = ['^vllm/platforms/']\npriority = -10\n",
        "own.toml",
    )
    log = "\n".join(traceback("vllm/platforms/cpu.py:get_cores", message="json.decoder.JSONDecodeError: Expecting value: line 6")).encode()
    sure, contested = diagnose(log, rules=rules).cause, diagnose(log, rules=[*rules, *placed]).cause
    assert sure is not None
    assert contested is not None
    assert (sure.code, sure.confidence) == ("plane-broken", 0.9)
    assert (contested.code, contested.confidence) == ("plane-broken", 0.65)
