"""A damaged record or a full disk hides no engine and keeps none alive."""

import json
import os
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, alive, run_folder

from firstlight.app.reconcile import record
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import FirstlightError
from firstlight.core.events import Event
from firstlight.core.run import RunState


def serve(firstlight: Firstlight, folder: Path) -> tuple[Path, list[int]]:
    words = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify", "--skip", "bench")
    assert firstlight("up", str(folder), *words).returncode == 0
    (run,) = firstlight.runs()
    return run_folder(run), [run["engine_process"]["pid"], run["supervisor"]["pid"]]


@pytest.mark.parametrize("text", ["", "{", '{"schema": "firstlight/1", "kind": "Run"}'])
@pytest.mark.parametrize("every", [False, True])
def test_a_run_whose_record_is_damaged_is_shown_and_stopped(firstlight: Firstlight, llama_folder: Path, text: str, every: bool) -> None:
    folder, pids = serve(firstlight, llama_folder)
    (folder / "run.json").write_text(text)
    assert folder.name in firstlight("get", "runs").stderr
    ended = firstlight("down", "--all" if every else folder.name)
    assert ended.returncode == 0, ended.stderr
    assert f"{folder.name} is stopped" in ended.stderr
    assert not any(alive(p) for p in pids)


def test_a_run_of_a_newer_schema_is_left_alone_by_down(firstlight: Firstlight, llama_folder: Path) -> None:
    folder, pids = serve(firstlight, llama_folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace("firstlight/1", "firstlight/9"))
    assert firstlight("down", folder.name).returncode == 2
    assert "left alone" in firstlight("down", "--all").stderr
    assert all(alive(p) for p in pids)
    (folder / "run.json").write_text(text)


def test_a_damaged_record_of_the_supervisor_calls_nothing_over_that_lives(firstlight: Firstlight, llama_folder: Path) -> None:
    folder, pids = serve(firstlight, llama_folder)
    (folder / "attempts/1/supervisor.json").write_text("")
    assert [r["state"] for r in firstlight.runs()] == ["serving"]
    ended = firstlight("down", "tiny")
    assert (ended.returncode, "is stopped" in ended.stdout) == (0, True), ended
    assert not any(alive(p) for p in pids)
    assert [r["state"] for r in firstlight.runs()] == ["stopped"]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunStore(tmp_path / "state").create(name="full", model="m", host="local")


def test_events_on_a_full_disk_are_an_error_with_a_code(run: RunFolder) -> None:
    os.symlink("/dev/full", run.path / "events.jsonl")
    with pytest.raises(FirstlightError) as caught:
        run.append_event(Event(seq=0, time=0.0, run="r", stage="s", kind="k", data={}))
    assert caught.value.code == "run-folder-unwritable"


def test_a_name_is_claimed_on_a_full_disk(run: RunFolder) -> None:
    store = RunStore(run.path.parent.parent)
    (store.root.parent / "locks").mkdir()
    os.symlink("/dev/full", store.root.parent / "locks" / "full.lock")
    with store.claim("full"):
        assert store.claimed("full")


def test_a_state_that_cannot_be_written_is_shown_all_the_same(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FirstlightError("run-folder-unwritable", "no space")

    monkeypatch.setattr(RunFolder, "write", full)
    assert record(run, run.run, RunState.FAILED, "killed").state is RunState.FAILED
    assert json.loads((run.path / "run.json").read_text())["state"] == "planned"
