"""An engine that dies while it serves: diagnosed, started again, or left down when the cause stays."""

import json
import os
import signal
from pathlib import Path

from e2e_runner import FAKE_PYTHON, Firstlight, run_folder, wait_for

LOST = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."


def events(folder: Path) -> list[dict[str, object]]:
    """Of the attempt that serves: the first one's port may have gone to another test."""
    last = json.loads((folder / "run.json").read_text())["attempt"]
    return [json.loads(line) for line in (folder / f"attempts/{last}/supervisor.jsonl").read_text().splitlines()]


def up(firstlight: Firstlight, model: Path, script: str, *more: str) -> Path:
    words = ("up", str(model), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--skip", "verify", "--skip", "bench", *more)
    served = firstlight(*words, env={"FAKE_ENGINE_SCRIPT": script})
    assert served.returncode == 0, served.stderr
    return run_folder(firstlight.runs()[0])


def test_a_killed_engine_is_diagnosed_started_again_and_every_step_is_told(
    firstlight: Firstlight, llama_folder: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    folder = up(firstlight, llama_folder, "plain", "--on-event", f'echo "$FIRSTLIGHT_EVENT $FIRSTLIGHT_DATA" >> {told}')
    run = json.loads((folder / "run.json").read_text())
    os.kill(run["engine_process"]["pid"], signal.SIGKILL)
    wait_for(lambda: [e for e in events(folder) if e["kind"] == "restarted"])
    kinds = [str(e["kind"]) for e in events(folder)]
    assert kinds.index("died") < kinds.index("restarting") < kinds.index("diagnosed") < kinds.index("restarted")
    wait_for(lambda: kinds.count("ready") == 1 and [e["kind"] for e in events(folder)].count("ready") == 2)
    heard = wait_for(lambda: t if (t := told.read_text()).count("ready {") == 2 else None)
    assert "died" in heard
    assert "restarted" in heard
    described = firstlight("describe", run["name"]).stdout
    assert "process-killed" in described
    assert "started again" in described


def test_a_lost_gpu_ends_the_run_with_its_cause(firstlight: Firstlight, llama_folder: Path) -> None:
    script = {"steps": [{"serve": {}}, {"sleep": 4}, {"log": LOST}, {"exit": 1}]}
    folder = up(firstlight, llama_folder, json.dumps(script))
    wait_for(lambda: [e for e in events(folder) if e["kind"] == "ended"])
    (run,) = firstlight.runs()
    assert (run["state"], run["reason"]) == ("failed", "gpu-lost")
    assert not [e for e in events(folder) if e["kind"] == "restarted"]


def test_a_run_of_launch_can_be_restarted_and_attached_to(firstlight: Firstlight) -> None:
    fake = FAKE_PYTHON.parent / "fake_engine.py"
    port = "18431"
    begun = firstlight("launch", "--port", port, "--name", "mine", "--", str(FAKE_PYTHON), str(fake), "plain", "--port", port)
    assert begun.returncode == 0, begun.stderr
    again = firstlight("restart", "mine")
    assert again.returncode == 0, again.stderr
    assert firstlight("attach", "mine").returncode == 0


def test_a_run_that_is_over_cannot_be_restarted_and_says_what_to_do(firstlight: Firstlight, llama_folder: Path) -> None:
    up(firstlight, llama_folder, "ready", "--name", "tiny")
    assert firstlight("down", "tiny").returncode == 0
    refused = firstlight("restart", "tiny")
    assert refused.returncode == 2
    assert "run-is-over" in refused.stderr
    assert "firstlight up" in refused.stderr
