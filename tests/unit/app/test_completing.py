"""What the shell completes, as the shell asks for it."""

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from firstlight.app.group import firstlight
from firstlight.app.store import RunStore


def completed(*words: str) -> list[tuple[str, str]]:
    *before, incomplete = words
    shell = BashComplete(firstlight, {}, "firstlight", "_FIRSTLIGHT_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(before, incomplete)]


@pytest.fixture(autouse=True)
def one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return RunStore().create(name="kimi", model="m", host="local").run.id


def test_verbs_and_flags() -> None:
    assert completed("pla") == [("plain", "plan")]
    assert ("plain", "--gpu") in completed("plan", "--gp")
    assert completed("plan", "m", "--for", "ag") == [("plain", "agents")]


@pytest.mark.parametrize("verb", ["down", "logs", "describe", "restart", "attach", "report", "verify-not"])
def test_runs_by_name_and_id(verb: str, one_run: str) -> None:
    expected = [] if verb == "verify-not" else [("plain", "kimi"), ("plain", one_run)]
    assert completed(verb, "ki") == expected


def test_a_log_that_is_no_run_is_a_file() -> None:
    assert completed("diagnose", "engine") == [("file", "engine")]
    assert ("plain", "kimi") in completed("diagnose", "k")


def test_codes_in_any_case() -> None:
    assert ("plain", "engine-missing") in completed("explain", "ENGINE-M")


def test_gpus_after_their_count() -> None:
    assert ("plain", "8xrtx-pro-6000-blackwell") in completed("plan", "m", "--gpu", "8xrtx-pro-6")
    assert completed("plan", "m", "--gpu", "rtx") == []
