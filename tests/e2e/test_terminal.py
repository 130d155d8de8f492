"""What a terminal is given: colour only where it is wanted, ASCII where it is asked for, JSON as UTF-8 whatever the locale."""

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_runner import Firstlight

ESCAPE = "\x1b["


def on_a_terminal(*words: str, env: dict[str, str] | None = None) -> str:
    """What `firstlight words` writes to a terminal of its own, stdout and stderr together."""
    leader, follower = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FIRSTLIGHT_ASCII")}
    process = subprocess.Popen(
        [sys.executable, "-m", "firstlight", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "100", **(env or {})},
    )
    os.close(follower)
    written = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break  # the other side is closed
        if not data:
            break
        written += data
    process.wait(60)
    os.close(leader)
    return written.decode()


COMMANDS = [("inspect", "{model}"), ("plan", "{model}", "--gpu", "1xrtx-4090", "--engine", "vllm@0.32.0"), ("up", "{model}-absent")]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["no-color", "dumb"])
def test_no_escape_sequence_is_sent_where_colour_is_not_wanted(
    llama_folder: Path, words: tuple[str, ...], variable: dict[str, str]
) -> None:
    command = [w.format(model=llama_folder) for w in words]
    assert "\x1b[3" in on_a_terminal(*command)  # colour, where nothing forbids it
    plain = on_a_terminal(*command, env=variable)
    assert not any(f"\x1b[{code}" in plain for code in ("3", "1m", "9"))


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_ascii_is_ascii_but_for_the_models_own_name(llama_folder: Path, words: tuple[str, ...]) -> None:
    command = [w.format(model=llama_folder) for w in words]
    shown = on_a_terminal(*command, env={"FIRSTLIGHT_ASCII": "1"})
    assert "tiny llama ü" in shown.replace("\r\n", "")
    assert {c for c in shown if ord(c) > 126} <= {"ü"}


def test_json_is_utf8_in_any_locale(firstlight: Firstlight, llama_folder: Path) -> None:
    process = firstlight(
        "inspect", str(llama_folder), "-o", "json", env={"FIRSTLIGHT_ASCII": "1", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    )
    assert json.loads(process.stdout)["path"] == str(llama_folder)


def test_no_locale_brings_it_down(firstlight: Firstlight, llama_folder: Path) -> None:
    planned = firstlight(
        "plan", str(llama_folder), "--gpu", "1xrtx-4090", "--engine", "vllm@0.32.0", env={"PYTHONIOENCODING": "ascii:strict"}
    )
    assert planned.returncode == 0, planned.stderr


def test_a_name_that_is_no_utf8_is_an_error_like_any_other(firstlight: Firstlight) -> None:
    for words in (("inspect",), ("up",), ("inspect", "-o", "json")):
        refused = firstlight(words[0], os.fsdecode(b"/tmp/\xff-absent"), *words[1:])
        assert refused.returncode == 2, refused.stderr
        assert "not-utf8" in refused.stderr + refused.stdout
