"""`down` of a run whose engine has not been started: who would start it is told to stop, and nothing comes after."""

import json
from pathlib import Path

from e2e_runner import FAKE_PYTHON, LIMIT_SECONDS, Firstlight, run_folder, wait_for

OWN = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON))
NEVER_READY = {"FAKE_ENGINE_SCRIPT": json.dumps({"steps": [{"hang": True}]})}


def rehearsing(firstlight: Firstlight) -> Path:
    """The folder of the run whose rehearsal has an engine."""

    def look() -> Path | None:
        runs = firstlight.runs(all_runs=False)
        found = runs and runs[0]["state"] == "rehearsing" and list(run_folder(runs[0]).glob("rehearsal/1/engine.json"))
        return run_folder(runs[0]) if found else None

    return Path(wait_for(look))


def test_an_up_that_rehearses_is_ended_with_its_rehearsal(firstlight: Firstlight, llama_folder: Path) -> None:
    process = firstlight.start("up", str(llama_folder), *OWN, "--name", "tiny", "--rehearse", "always", env=NEVER_READY)
    folder = rehearsing(firstlight)
    ended = firstlight("down", "tiny")
    assert (ended.returncode, "tiny is stopped; nothing of it is left" in ended.stdout) == (0, True), ended.stderr
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 143
    assert [r["state"] for r in firstlight.runs()] == ["stopped"]
    assert not list(folder.glob("attempts/*/supervisor.json")), "nothing was launched afterwards"
    assert json.loads((folder / "rehearsal/1/exit.json").read_text())["proof"]["clean"] is True


def test_a_rehearsal_is_shown_and_can_be_ended(firstlight: Firstlight, llama_folder: Path) -> None:
    process = firstlight.start("rehearse", str(llama_folder), *OWN, env=NEVER_READY)
    folder = rehearsing(firstlight)
    second = firstlight("rehearse", str(llama_folder), *OWN, env=NEVER_READY)
    assert (second.returncode, "run-in-progress" in second.stderr) == (2, True), second.stderr
    killed = firstlight("down", folder.name, "--kill")
    assert killed.returncode == 0, killed.stderr
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -9
    assert [r["state"] for r in firstlight.runs()] == ["stopped"]
    assert json.loads((folder / "rehearsal/1/exit.json").read_text())["proof"]["clean"] is True


def test_an_endpoint_that_is_stopped_while_it_is_verified_has_not_failed(firstlight: Firstlight, llama_folder: Path) -> None:
    """The first answer never comes, so that whoever verifies is still at it when the run is ended."""
    hangs = {"FAKE_ENGINE_SCRIPT": "hang-first"}
    process = firstlight.start("up", str(llama_folder), *OWN, "--name", "tiny", "--rehearse", "never", env=hangs)

    def verifying() -> bool:
        runs = firstlight.runs()
        events = (run_folder(runs[0]) / "events.jsonl").read_text() if runs else ""
        return any(json.loads(line)["stage"] == "verify" for line in events.splitlines())

    wait_for(verifying)
    ended = firstlight("down", "tiny")
    assert ended.returncode == 0, ended.stderr
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode in (5, 143), said  # it saw what happened, or was told to stop after a while
    assert "error verification-failed" not in said
    assert [r["state"] for r in firstlight.runs()] == ["stopped"]
