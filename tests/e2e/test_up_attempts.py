"""From one attempt to the next: what the first left is gone before the second begins."""

import json
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
