"""Ctrl-C at any moment: it ends soon, and nothing that was started stays behind."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, wait_for

from firstlight.launch.ownership import find_processes
from firstlight.launch.supervisor import procfs
from firstlight.probe.local import LocalHost

NEVER_READY = {"FAKE_ENGINE_SCRIPT": "never-ready"}


def up(folder: Path, *more: str) -> tuple[str, ...]:
    words = ("up", str(folder), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny")
    return (*words, "--skip", "verify", "--skip", "bench", *more)


def left_in(home: Path) -> list[int]:
    """Living processes that carry the mark of a supervisor's folder in this test's home: supervisors, engines, their children."""
    folders = {p.parent for p in home.rglob("supervise.json")}
    found = [find_processes(LocalHost(), str(folder)) for folder in folders]
    return [p.pid for f in found for p in f.processes] + [0 for f in found if f.supervised]


def test_during_a_rehearsal(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    process = firstlight.start(*up(llama_folder, "--rehearse", "always"), env=NEVER_READY)
    wait_for(lambda: [p for p in own_home.rglob("rehearsal/1/supervisor.jsonl") if "engine-started" in p.read_text()])
    assert left_in(own_home)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [(r["state"], r["reason"]) for r in firstlight.runs()] == [("stopped", "interrupted")]
    wait_for(lambda: not left_in(own_home), seconds=20)


@pytest.mark.parametrize("part", range(6))
def test_around_the_launch(firstlight: Firstlight, llama_folder: Path, own_home: Path, part: int) -> None:
    """From the stage's beginning on, in steps of 40 ms: before the supervisor is there, while it comes, and after."""
    process = firstlight.start(*up(llama_folder, "--rehearse", "never"), env=NEVER_READY)
    wait_for(lambda: [p for p in own_home.rglob("events.jsonl") if '"launch"' in p.read_text()])
    time.sleep(0.04 * part)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert process.returncode == 130
    (run,) = firstlight.runs()
    assert run["state"] == "stopped", (run["reason"], said)
    wait_for(lambda: not left_in(own_home), seconds=20)


def watches_begun(home: Path) -> int:
    events = [json.loads(line) for path in home.rglob("events.jsonl") for line in path.read_text().splitlines()]
    return sum((e["kind"], e["stage"]) == ("stage-started", "watch") for e in events)


def test_up_again_after_its_terminal_closed_waits_until_it_is_ready(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    """The supervisor has outlived the first `up`: the second follows the rest of the start, and calls nothing served before."""
    go = own_home / "go"
    script = {"FAKE_ENGINE_SCRIPT": json.dumps({"steps": [{"log": "still loading"}, {"wait_file": str(go)}, {"serve": {}}]})}
    first = firstlight.start(*up(llama_folder, "--rehearse", "never"), env=script)
    wait_for(lambda: [p for p in own_home.rglob("attempts/1/engine.log") if "still loading" in p.read_text()])
    first.send_signal(signal.SIGHUP)
    first.communicate(timeout=60)
    again = firstlight.start(*up(llama_folder, "--rehearse", "never"), env=script)
    wait_for(lambda: watches_begun(own_home) == 2)
    assert again.poll() is None
    go.touch()
    out, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert "ready after" in out + said
    (run,) = firstlight.runs()
    assert run["state"] in ("ready", "serving")


def test_a_down_elsewhere_is_told_as_what_it_is(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    process = firstlight.start(*up(llama_folder, "--rehearse", "never"), env=NEVER_READY)
    wait_for(lambda: [p for p in own_home.rglob("attempts/1/supervisor.jsonl") if "engine-started" in p.read_text()])
    assert firstlight("down", "tiny").returncode == 0
    _, said = process.communicate(timeout=60)
    assert process.returncode == 5, said
    assert "stopped-meanwhile" in said
    assert "cause-not-visible" not in said
    assert [(r["state"], r["reason"]) for r in firstlight.runs()] == [("stopped", None)]
    assert not list(own_home.rglob("diagnosis.json"))


def test_down_all_ends_what_a_record_calls_over(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    process = firstlight.start(*up(llama_folder, "--rehearse", "never"), env=NEVER_READY)
    started = wait_for(lambda: [p for p in own_home.rglob("attempts/1/supervisor.jsonl") if "engine-started" in p.read_text()])
    process.kill()
    process.communicate()
    record = started[0].parents[2] / "run.json"
    told = json.loads(record.read_text()) | {"state": "failed", "reason": "interrupted before the engine was started"}
    record.write_text(json.dumps(told))
    assert left_in(own_home)
    assert firstlight("down", "--all").returncode == 0
    wait_for(lambda: not left_in(own_home), seconds=20)
    assert os.path.exists(started[0])


def test_while_the_engine_is_asked(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    """A question may take two minutes: it ends at once, with every process that it had started."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    wait = f"echo $$ > {asked}.new; mv {asked}.new {asked}; sleep 100; exit"
    script = f'#!/bin/sh\ncase "$*" in *asking*) {wait};; esac\nexec {FAKE_PYTHON} "$@"\n'
    python.write_text(script)
    python.chmod(0o755)
    words = [w if w != str(FAKE_PYTHON) else str(python) for w in up(llama_folder, "--ask", "always", "--rehearse", "never")]
    process = firstlight.start(*words)
    wait_for(asked.exists)
    group = int(asked.read_text())
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert time.monotonic() - began < 45  # a busy core is slow; what was waited for takes 100 s
    assert [p for p in procfs.processes() if p.pgid == group and p.state not in "ZX"] == []
    assert [(r["state"], r["reason"]) for r in firstlight.runs()] == [("stopped", "interrupted")]


@pytest.mark.parametrize("verb", ["up", "plan", "probe"])
def test_while_the_driver_does_not_answer(firstlight: Firstlight, llama_folder: Path, tmp_path: Path, verb: str) -> None:
    """nvidia-smi of a lost GPU hangs for a minute: nobody has to wait for it."""
    smi, asked = tmp_path / "bin" / "nvidia-smi", tmp_path / "asked"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 100\n")
    smi.chmod(0o755)
    words = {"up": up(llama_folder), "plan": ("plan", str(llama_folder)), "probe": ("probe",)}[verb]
    process = firstlight.start(*words, env={"PATH": f"{smi.parent}:{os.environ['PATH']}"})
    wait_for(asked.exists)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert time.monotonic() - began < 45  # a busy core is slow; what was waited for takes 100 s


def test_a_rehearsal_whose_supervisor_is_killed_says_so_and_leaves_nothing(
    firstlight: Firstlight, llama_folder: Path, own_home: Path
) -> None:
    process = firstlight.start("rehearse", *up(llama_folder)[1:6], env=NEVER_READY)
    (record,) = wait_for(lambda: [p for p in own_home.rglob("rehearsal/1/supervisor.json") if '"engine": {' in p.read_text()])
    os.kill(json.loads(record.read_text())["supervisor"]["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, (out, err)
    assert "nothing learned" in out + err
    assert "refuted" not in out + err
    wait_for(lambda: not left_in(own_home), seconds=20)
