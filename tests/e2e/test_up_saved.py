"""`plan --save` and `apply`; a dry run leaves no trace."""

import os
from pathlib import Path

from e2e_runner import FAKE_PYTHON, Firstlight

ENGINE = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON))


def tree(home: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in home.rglob("*")}


def save(firstlight: Firstlight, folder: Path, path: Path) -> None:
    machine = path.with_name("machine.json")
    machine.write_text(firstlight("probe", "-o", "json", env={"FIRSTLIGHT_ENGINE_PYTHON": str(FAKE_PYTHON)}).stdout)
    saved = firstlight("plan", str(folder), "--machine", str(machine), "--engine", "vllm@0.32.0", "--save", str(path))
    assert saved.returncode == 0, saved.stderr


def test_a_saved_plan_is_applied(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(firstlight, llama_folder, path)
    applied = firstlight("apply", str(path), "--name", "saved", "--engine-python", str(FAKE_PYTHON), "-o", "json")
    assert applied.returncode == 6, applied.stderr  # the fake engine's answers are not coherent: it was started and asked
    assert [(r["name"], r["state"]) for r in firstlight.runs()] == [("saved", "ready")]


def test_a_plan_that_cannot_be_read_is_an_error(firstlight: Firstlight, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    for name in ("broken.json", "absent.json"):
        refused = firstlight("apply", str(tmp_path / name))
        assert refused.returncode == 2, refused.stderr


def test_a_dry_run_leaves_no_trace(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    before = tree(own_home), tree(llama_folder)
    dry = firstlight("up", str(llama_folder), *ENGINE, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "--served-model-name" in dry.stdout
    assert (tree(own_home), tree(llama_folder)) == before
    assert os.listdir(own_home) == []
