"""`attach` and `restart` look at a run as it is: they change nothing by looking, follow healing, and say when nobody is there."""

import json
import os
import signal
from pathlib import Path

from e2e_runner import FAKE_PYTHON, LIMIT_SECONDS, Firstlight, run_folder, wait_for

SCRIPTS = Path(__file__).parents[1] / "fake_engine" / "scripts"


def up(folder: Path, *more: str) -> tuple[str, ...]:
    own = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--skip", "verify", "--skip", "bench")
    return ("up", str(folder), *own, "--name", "tiny", *more)


def waits_for(gate: Path) -> dict[str, str]:
    return {"FAKE_ENGINE_SCRIPT": json.dumps({"steps": [{"wait_file": str(gate)}, {"serve": {}}]})}


def supervisor_pid(firstlight: Firstlight) -> int:
    def look() -> int | None:
        runs = firstlight.runs()
        found = list(run_folder(runs[0]).glob("attempts/1/supervisor.json")) if runs else []
        return json.loads(found[0].read_text())["supervisor"]["pid"] if found else None

    return int(wait_for(look))


def test_looking_changes_nothing_and_what_is_over_is_not_shown_as_ready(firstlight: Firstlight, llama_folder: Path) -> None:
    assert firstlight(*up(llama_folder)).returncode == 0
    assert firstlight("attach", "tiny").returncode == 0
    assert [r["state"] for r in firstlight.runs()] == ["serving"]
    restarted = firstlight("restart", "tiny")
    assert restarted.returncode == 0, restarted.stderr
    assert [(r["state"], r["reason"]) for r in firstlight.runs()] == [("ready", "restarted, not verified since")]
    assert firstlight("down", "tiny").returncode == 0
    for verb in ("attach", "restart"):
        over = firstlight(verb, "tiny")
        assert (over.returncode, "run-is-over" in over.stderr) == (2, True), over.stderr
    assert [r["state"] for r in firstlight.runs()] == ["stopped"]


def test_nothing_said_names_no_run_and_a_beginning_of_several_names_none(firstlight: Firstlight, llama_folder: Path) -> None:
    assert firstlight(*up(llama_folder)).returncode == 0
    assert firstlight(*up(llama_folder, "--name", "tinier")).returncode == 0
    for verb in ("down", "restart", "attach", "describe"):
        nothing, several = firstlight(verb, ""), firstlight(verb, "tin")
        assert (nothing.returncode, "run-not-found" in nothing.stderr) == (2, True), nothing.stderr
        assert (several.returncode, "run-ambiguous" in several.stderr) == (2, True), several.stderr
    assert firstlight("down", "tinier-2").returncode == 0
    assert {r["name"]: r["state"] for r in firstlight.runs()} == {"tiny": "serving", "tinier": "stopped"}
    assert firstlight("down", "tin").returncode == 0  # the only one that lives
    assert {r["state"] for r in firstlight.runs()} == {"stopped"}


def test_an_attempt_that_is_healed_is_followed_to_the_next(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    """The first attempt waits, its first lines logged, until somebody looks at it; then it fails, and the second one serves."""
    steps = json.loads((SCRIPTS / "context-too-long.json").read_text())["steps"]
    waiting = {"steps": [*steps[:3], {"wait_file": str(tmp_path / "gate")}, *steps[3:]]}
    process = firstlight.start(*up(llama_folder), env={"FAKE_ENGINE_SCRIPT": json.dumps(waiting)})
    supervisor_pid(firstlight)
    looking = firstlight.start("attach", "tiny")
    assert looking.stderr is not None
    assert "watch" in looking.stderr.readline()
    (tmp_path / "gate").touch()
    _, said = looking.communicate(timeout=LIMIT_SECONDS)
    process.communicate(timeout=LIMIT_SECONDS)
    assert looking.returncode == 0, said
    assert "attempt 1 failed: " in said
    assert [(r["state"], r["attempt"]) for r in firstlight.runs()] == [("serving", 2)]


def test_a_supervisor_that_somebody_stopped_is_said_and_a_request_given_up_is_not_done_later(
    firstlight: Firstlight, llama_folder: Path, tmp_path: Path
) -> None:
    process = firstlight.start(*up(llama_folder), env=waits_for(tmp_path / "gate"))
    pid = supervisor_pid(firstlight)
    os.kill(pid, signal.SIGSTOP)
    refused = firstlight("restart", "tiny")
    assert (refused.returncode, "supervisor-hangs" in refused.stderr) == (1, True), refused.stderr
    looking = firstlight.start("attach", "tiny")
    assert looking.stderr is not None
    assert "somebody stopped the supervisor" in looking.stderr.readline()
    os.kill(pid, signal.SIGCONT)
    (tmp_path / "gate").touch()
    _, said = looking.communicate(timeout=LIMIT_SECONDS)
    assert (looking.returncode, process.wait(LIMIT_SECONDS)) == (0, 0), said
    (run,) = firstlight.runs()
    kinds = [json.loads(line)["kind"] for line in (run_folder(run) / "attempts/1/supervisor.jsonl").read_text().splitlines()]
    assert "stopping" not in kinds
