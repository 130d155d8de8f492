"""`up` on real llama.cpp with the real demo model."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e_runner import Firstlight, alive, run_folder, wait_for

pytestmark = pytest.mark.llamacpp


def test_a_known_question_is_answered_the_endpoint_measured_and_verified_again(firstlight: Firstlight, demo_gguf: Path) -> None:
    first = firstlight("up", str(demo_gguf), "--name", "demo")
    assert first.returncode == 0, first.stderr
    folder = run_folder(firstlight.runs()[0])
    verdict = json.loads((folder / "verdict.json").read_text())
    (known,) = [c for c in verdict["checks"] if c["name"] == "known-answers"]
    assert known["passed"]
    report = json.loads((folder / "bench.json").read_text())
    assert report["points"][0]["tokens_per_second_total"] > 0
    for word in ("endpoint", "curl -s http://127.0.0.1:", "promised", "measured", "firstlight down demo"):
        assert word in first.stdout
    curl = next(line for line in first.stdout.splitlines() if "curl -s" in line).partition("curl")[2]
    answer = subprocess.run(["bash", "-c", "curl" + curl], capture_output=True, text=True, timeout=60, check=False).stdout
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]
    again = firstlight("up", str(demo_gguf), "--name", "demo")
    assert again.returncode == 0, again.stderr
    assert len(firstlight.runs()) == 1
    assert firstlight("down", "demo").returncode == 0


def test_kill_9_of_a_serving_engine_is_noticed_and_the_engine_comes_back(firstlight: Firstlight, demo_gguf: Path) -> None:
    assert firstlight("up", str(demo_gguf), "--name", "demo", "--skip", "verify", "--skip", "bench").returncode == 0
    run = firstlight.runs()[0]
    events = Path(run["folder"]) / "attempts" / "1" / "supervisor.jsonl"
    os.kill(run["engine_process"]["pid"], signal.SIGKILL)
    killed = time.time()
    died = wait_for(lambda: next((e for e in map(json.loads, events.read_text().splitlines()) if e["kind"] == "died"), None))
    assert died["time"] - killed < 0.5
    wait_for(lambda: [json.loads(line)["kind"] for line in events.read_text().splitlines()].count("ready") == 2, seconds=60)
    assert firstlight("down", "demo").returncode == 0
    assert not alive(run["supervisor"]["pid"])


def test_foreground_ends_with_its_signal_and_leaves_nothing(firstlight: Firstlight, demo_gguf: Path) -> None:
    process = firstlight.start("up", str(demo_gguf), "--name", "demo", "--foreground", "--skip", "verify", "--skip", "bench")
    run = wait_for(lambda: next((r for r in firstlight.runs() if r["state"] == "serving"), None), seconds=90)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not alive(run["engine_process"]["pid"])


def test_a_wrong_chat_template_is_blamed_by_name(firstlight: Firstlight, demo_gguf: Path, tmp_path: Path) -> None:
    template = tmp_path / "wrong.jinja"
    template.write_text("{% for m in messages %}# # # #{% endfor %}")
    words = (
        "up",
        str(demo_gguf),
        "--name",
        "demo",
        "--skip",
        "bench",
        "--blame",
        "--",
        "--chat-template-file",
        str(template),
        "--threads",
        "1",
    )
    blamed = firstlight(*words, seconds=240)
    assert blamed.returncode == 6, blamed.stderr
    run = firstlight.runs()[0]
    verdict = json.loads((run_folder(run) / "verdict.json").read_text())
    assert [b["knob"] for b in verdict["blame"] if b["culprit"]] == ["chat-template"]
    assert "the culprit: chat-template" in blamed.stderr
    assert run["state"] == "failed"
    assert not alive(run["engine_process"]["pid"])
