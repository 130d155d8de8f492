"""The outermost layer: whatever the command line or the caller's streams are, a message and an exit code, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.app.group import run, wanted_output
from firstlight.core.errors import Exit


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["get", "gpus"], "human"),
        (["get", "-o", "json"], "json"),
        (["get", "-ojsonl"], "jsonl"),
        (["get", "--output=json"], "json"),
        (["get", "--output", "jsonl"], "jsonl"),
        (["check", "--", "vllm", "-o", "json"], "human"),
        (["get", "-o"], "human"),
        (["get", "-o", "yaml"], "human"),
    ],
)
def test_the_output_that_was_asked_for_before_anything_is_parsed(argv: list[str], output: str) -> None:
    assert wanted_output(argv) == output


def test_an_error_is_one_line_of_jsonl(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "no-such-code", "-o", "jsonl"]) == Exit.USAGE
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["code"] == "unknown-code"


def test_a_command_line_that_cannot_be_read_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "gpus", "--no-such-flag", "-o", "json"]) == Exit.USAGE
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["kind"], document["code"], document["exit_code"]) == ("Error", "bad-usage", 2)
    assert "--no-such-flag" in document["message"]
    assert "--no-such-flag" in said.err


def test_a_code_is_explained_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Engine-Missing"]) == Exit.OK
    assert capsys.readouterr().out.startswith("engine-missing:")


def test_a_model_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", ""]) == Exit.USAGE
    assert "model-missing" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "0", "auto"])
def test_a_context_that_asks_for_nothing(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "m", f"--context={value}"]) == Exit.USAGE
    assert "bad-flag-value" in capsys.readouterr().err


def test_another_machine_is_refused_by_what_starts_something_and_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "m", "--gpu", "8xb200-180gb-sxm"]) == Exit.USAGE
    assert "machine-not-here" in capsys.readouterr().err
    run(["up", "--help"])
    assert "--gpus" in (shown := capsys.readouterr().out)
    assert "--gpu COUNTxNAME" not in shown


def test_a_folder_that_is_not_ours_to_look_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Root may look anywhere, so the refusal is made."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", "/somebody/else")

    monkeypatch.setattr("firstlight.fetch.models.cached_models", refuse)
    assert run(["models", "-o", "json"]) == Exit.UNEXPECTED
    document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["message"]) == ("host-io-failed", "the machine refuses: Permission denied")
    assert document["evidence"] == ["/somebody/else"]


def test_only_caches_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["cache", "prune", "/", "--yes"]) == Exit.USAGE
    assert "not-a-cache" in capsys.readouterr().err


CLOSED = [
    ("0<&-", "get", "gpus", "-o", "json"),
    (">&-", "get", "gpus", "-o", "json"),
    ("2>&-", "explain", "no-such-code"),
    ("0<&-", "models", "rm", "x"),
]


@pytest.mark.parametrize("case", CLOSED, ids=lambda c: " ".join(c))
def test_closed_streams(case: tuple[str, ...], tmp_path: Path) -> None:
    redirect, *args = case
    script = f'exec "$@" {redirect}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "firstlight", *args],
        env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode in ((Exit.OK,) if args[0] == "get" else (Exit.USAGE, Exit.UNEXPECTED))
    assert b"unexpected" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_document_that_finds_the_disk_full_is_an_error_as_text() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "firstlight", "explain", "oom-gpu", "-o", "json"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert b"host-io-failed" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode not in (Exit.OK, Exit.INTERRUPTED)
