"""From one attempt to the next: what the first left is gone before the second begins."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from e2e_runner import FAKE_PYTHON, Firstlight, run_folder

HELPER = "resource_tracker"  # the sweep leaves such a process two seconds to clean up


def events(folder: Path, attempt: int) -> dict[str, Any]:
    lines = (folder / "attempts" / str(attempt) / "supervisor.jsonl").read_text().splitlines()
    return {e["kind"]: e for e in map(json.loads, lines)}


def test_the_next_attempt_begins_when_the_last_ones_leftovers_are_gone(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    leftover = {"spawn": {"name": HELPER, "detach": True, "steps": [{"hang": "deaf"}]}}
    script = json.loads((FAKE_PYTHON.parent / "scripts" / "context-too-long.json").read_text())
    script["steps"].insert(0, {"if": {"above": ["--max-model-len", 4096]}, **leftover})
    script["abandon_children"] = True
    path = tmp_path / "leftover.json"
    path.write_text(json.dumps(script))
    healed = firstlight(
        "up", str(llama_folder), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify",
        "--skip", "bench", env={"FAKE_ENGINE_SCRIPT": str(path)},
    )  # fmt: skip
    assert healed.returncode == 0, healed.stderr
    folder = run_folder(firstlight.runs()[0])
    first, second = events(folder, 1), events(folder, 2)
    assert first["ended"]["time"] <= second["supervisor-started"]["time"]
    assert first["ended"]["data"]["proof"]["processes"] == []


REFUSES = (
    "(EngineCore pid={pid}) ERROR {time} [core.py:900] ValueError: Free memory on device cuda:0 (12.00/80.00 GiB) on startup is less than "
    "desired GPU memory utilization (0.9, 72.0 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


def up_beside(firstlight: Firstlight, folder: Path, tmp_path: Path, frees: list[int]) -> "subprocess.CompletedProcess[str]":
    """An engine that finds too little memory, on a GPU whose driver tells these MiB one after the other."""
    told, refused, script = tmp_path / "told", tmp_path / "refused", tmp_path / "script.json"
    told.write_text("".join(f"{free}\n" for free in frees))
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    tell = f'echo "0, $(head -1 {told})"\n[ $(wc -l < {told}) -gt 1 ] && sed -i 1d {told}\nexit 0\n'
    smi.write_text(f'#!/bin/sh\ncase "$*" in *memory.free*) ;; *) exit 1;; esac\n{tell}')
    smi.chmod(0o755)
    ready = json.loads((FAKE_PYTHON.parent / "scripts" / "ready.json").read_text())
    once = {"if": {"no_file": str(refused)}}
    ready["steps"][2:2] = [{**once, "log": REFUSES, "stream": "stderr"}, {**once, "touch": str(refused), "exit": 1}]
    script.write_text(json.dumps(ready))
    words = ("up", str(folder), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify")
    env = {"FAKE_ENGINE_SCRIPT": str(script), "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    return firstlight(*words, "--skip", "bench", "--rehearse", "never", env=env)


def test_memory_that_is_being_freed_is_waited_for_and_the_plan_stays(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    served = up_beside(firstlight, llama_folder, tmp_path, [12000, 30000, 50000, 75000])
    assert served.returncode == 0, served.stderr
    (run,) = firstlight.runs()
    assert run["attempt"] == 2
    story = (run_folder(run) / "story.md").read_text()
    assert "- changed: nothing" in story
    assert "is free" in story
    commands = [json.loads((run_folder(run) / "attempts" / n / "launch.json").read_text())["argv"] for n in ("1", "2")]
    assert [w for w in commands[0] if "memory" in w] == [w for w in commands[1] if "memory" in w]


def test_memory_that_stays_taken_is_not_waited_for_long(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    failed = up_beside(firstlight, llama_folder, tmp_path, [12000])
    assert failed.returncode == 5, failed.stderr
    assert "gpu-memory-occupied" in failed.stderr
    assert firstlight.runs()[0]["attempt"] == 1


STRANGE = """(EngineCore pid={pid}) ERROR {time} [core.py:900] EngineCore failed to start.
(EngineCore pid={pid}) ERROR {time} [core.py:900] Traceback (most recent call last):
(EngineCore pid={pid}) ERROR {time} [core.py:900]   File "/opt/own/flutes.py", line 7, in tune
(EngineCore pid={pid}) ERROR {time} [core.py:900]     raise FluteError("flute 7 plays no tune")
(EngineCore pid={pid}) ERROR {time} [core.py:900] own.flutes.FluteError: flute 7 plays no tune
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"""


def test_an_exception_that_no_rule_knows_is_quoted_and_not_called_invisible(firstlight: Firstlight, llama_folder: Path) -> None:
    logged = [{"log": line, "stream": "stderr"} for line in STRANGE.splitlines()]
    script = json.dumps({"steps": [*logged, {"exit": 1}]})
    words = ("up", str(llama_folder), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "flutes", "--rehearse", "never")
    ended = firstlight(*words, env={"FAKE_ENGINE_SCRIPT": script})
    assert ended.returncode == 5
    assert "cause-unknown: no rule knows what the engine printed" in ended.stderr
    assert "FluteError: flute 7 plays no tune" in ended.stderr
    assert "See root cause above" not in ended.stderr
