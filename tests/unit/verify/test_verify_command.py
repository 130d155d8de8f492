"""`firstlight verify` as a person and as a script use it."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corrupt.engines import free_port, liar, process
from msgspec import structs

from firstlight.app import verifying
from firstlight.app.cli.verify import command
from firstlight.app.endpoints import Target, key_from, looks_like_url
from firstlight.app.store import RunStore
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.reference import Reference
from firstlight.core.run import Endpoint, RunState
from firstlight.core.schema import decode, encode
from firstlight.core.verdict import Verdict

SERVER = Path(__file__).with_name("verify_fluent.py")
KEY = "sk-test-not-a-secret"


@contextmanager
def fluent(*faults: str) -> Iterator[str]:
    port = free_port()
    with process([sys.executable, str(SERVER), str(port), *faults], port):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with fluent() as found:
        yield found


def verify(*args: str) -> Result:
    return CliRunner().invoke(command, list(args), standalone_mode=False)


def test_a_host_and_port_are_enough_and_each_check_has_its_line(address: str) -> None:
    result = verify(address)
    assert result.return_value == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"http://{address}/v1  demo  quick"
    assert any("passed" in line and "known-answers" in line for line in lines)
    assert any(line.startswith("  cannot see mild damage") for line in lines)
    assert re.search(r"passed: \d+ passed in [\d.]+ s\n", result.stdout)


def test_what_the_budget_cut_is_counted_and_the_budget_that_would_not_is_named(address: str) -> None:
    result = verify(address, "--budget", "0")
    assert result.return_value == 0
    assert re.search(r"passed: \d+ passed, 5 skipped for time in [\d.]+ s\n", result.stdout)
    assert re.search(r"for want of time: max-tokens, stop-strings, logprobs, errors, cancel; --budget \d+ asks all of it", result.stdout)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        (["--tolerance", "exact"], "--tolerance does nothing without --against"),
        (["--engine-python", sys.executable], "--engine-python does nothing without --against FOLDER"),
        (["--engine-python", sys.executable, "--against", __file__], "--engine-python does nothing without --against FOLDER"),
        (["--yes"], "--yes does nothing without --blame"),
        (["--allow", "restart"], "--allow does nothing without --blame"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(address: str, options: list[str], needs: str) -> None:
    result = verify(address, *options)
    assert isinstance(result.exception, UsageError)
    assert result.exception.code == "option-needs"
    assert result.exception.message.startswith(needs)
    assert result.exception.exit_code == 2


def test_json_is_a_verdict_document_and_nothing_else(address: str) -> None:
    result = verify(f"http://{address}/v1", "-o", "json", "--checks", " usage, chat ")
    assert decode(result.stdout, Verdict).passed
    assert result.stderr == ""


def test_what_did_not_pass_is_exit_6_and_an_accepted_failure_is_not() -> None:
    with fluent("miscount") as address:
        failed = verify(address, "--checks", "usage")
        accepted = verify(address, "--checks", "usage", "--accept", "usage")
    assert failed.return_value == 6
    assert "not passed" in failed.stdout
    assert accepted.return_value == 0
    assert "accepted" in accepted.stdout


def test_some_checks_that_passed_do_not_stand_for_a_runs_verdict(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunStore().create(name="some", model="m", host="local")
    folder.update(state=RunState.READY, reason="not verified")

    async def ours(ref: str, **_: object) -> Target:
        return Target(Endpoint(base_url=f"http://{address}/v1", model="demo"), None, folder)

    monkeypatch.setattr(verifying, "target_of", ours)
    assert verify("some", "--checks", "usage").return_value == 0
    assert folder.try_load(Verdict, "verdict.json") is None
    assert folder.run.verified is None
    assert verify("some").return_value == 0
    assert folder.run.verified is not None
    assert (folder.run.state, folder.run.reason) == (RunState.SERVING, None)
    assert verify("some", "--checks", "usage").return_value == 0
    kept = folder.try_load(Verdict, "verdict.json")
    assert kept is not None
    assert {"known-answers", "errors"} <= {c.name for c in kept.checks}


def test_a_reference_is_saved_compared_and_not_taken_from_what_failed(address: str, tmp_path: Path) -> None:
    file = tmp_path / "trusted.json"
    assert verify(address, "--checks", "usage", "--save-reference", str(file)).return_value == 0
    again = verify(address, "--checks", "usage", "--against", str(file), "--tolerance", "exact", "-o", "json")
    checks = {c["name"]: c for c in json.loads(again.stdout)["checks"]}
    assert checks["reference"]["passed"] is True
    other = tmp_path / "other.json"
    with liar("bang") as wrong:
        refused = verify(wrong.base_url, "--save-reference", str(other))
    assert refused.return_value == 6
    assert not other.exists()
    assert "no reference saved" in refused.stderr


def test_a_reference_of_another_model_is_told_and_of_another_vocabulary_does_not_pass(address: str, tmp_path: Path) -> None:
    file, renamed = tmp_path / "trusted.json", tmp_path / "renamed.json"
    verify(address, "--checks", "usage", "--save-reference", str(file))
    renamed.write_bytes(encode(structs.replace(decode(file.read_bytes(), Reference), model="a-bigger-one")))
    told = verify(address, "--checks", "usage", "--against", str(renamed))
    assert told.return_value == 0
    assert "WARNING: the reference is of 'a-bigger-one', this endpoint serves 'demo'" in told.stdout
    with fluent("other-vocabulary") as other:
        refused = verify(other, "--checks", "usage", "--against", str(file))
    assert refused.return_value == 6
    assert "the prompts have other token ids: another vocabulary" in refused.stdout


def test_what_cannot_be_compared_has_not_passed(address: str, tmp_path: Path) -> None:
    file = tmp_path / "trusted.json"
    verify(address, "--checks", "usage", "--save-reference", str(file))
    with fluent("rowless") as other:
        result = verify(other, "--checks", "usage", "--against", str(file))
    assert result.return_value == 6
    assert "nothing to compare: no logprobs" in result.stdout


def test_a_folder_to_compare_with_needs_a_python(address: str, tmp_path: Path) -> None:
    result = verify(address, "--against", str(tmp_path))
    assert isinstance(result.exception, FirstlightError)
    assert result.exception.code == "reference-needs-python"


def test_the_key_comes_from_a_file_or_the_environment_and_is_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    with fluent("locked") as address:
        closed = verify(address, "--model", "demo", "--checks", "usage")
        by_file = verify(address, "--checks", "usage", "--api-key-file", str(file), "-o", "json")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        by_environment = verify(address, "--checks", "usage")
    assert closed.return_value == 6
    assert by_file.return_value == by_environment.return_value == 0
    assert KEY not in by_file.output + by_environment.output + closed.output


def test_unreachable_and_unreadable_are_named(tmp_path: Path) -> None:
    nobody = verify(f"127.0.0.1:{free_port()}")
    assert isinstance(nobody.exception, FirstlightError)
    assert nobody.exception.code == "endpoint-unreachable"
    with pytest.raises(FirstlightError) as error:
        key_from(str(tmp_path / "none"))
    assert error.value.code == "api-key-unreadable"
    unknown = verify("no-such-run")
    assert isinstance(unknown.exception, FirstlightError)
    assert unknown.exception.code == "run-not-found"


def test_urls_and_run_names_are_told_apart() -> None:
    assert all(looks_like_url(t) for t in ("http://h/v1", "127.0.0.1:8000", "box:8000/v1"))
    assert not any(looks_like_url(t) for t in ("smollm2", "run-2026-11-30", "/folder/run"))
