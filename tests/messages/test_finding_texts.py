"""Golden texts of findings and errors: what a person reads, in Unicode and in ASCII, one file each.

A changed message is a changed file in the same commit: delete it, run the test, read it, commit it.
"""

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_checks import context_of

from firstlight.app.output import ASCII, UNICODE, error_lines, finding_lines
from firstlight.core.errors import FirstlightError
from firstlight.preflight.command import read_words
from firstlight.preflight.run import run_checks
from firstlight.probe.hosts import open_host
from firstlight.probe.sshscript import refusal

HERE = Path(__file__).parent
CASES = HERE.parent / "checks" / "cases"
SHOWN = {
    "kv-dtype-without-backend": ("attention", "the first user's case"),
    "kv-dtype-cured": ("attention", "cured by the plan's overlay"),
    "kv-dtype-on-cpu": ("attention", "vLLM on CPU becomes ready"),
    "gpu-memory-occupied": ("machine", "somebody holds the GPUs"),
    "heads": ("quantization", "64 heads over 3 GPUs"),
    "shm": ("machine", "docker's 64 MiB"),
    "parser": ("model", "a misspelt parser"),
    "driver": ("machine", "a driver of the 12 series"),
}


def case(file: str, start: str) -> dict[str, Any]:
    cases = tomllib.loads((CASES / f"{file}.toml").read_text("utf-8"))["case"]
    found: dict[str, Any] = next(c for c in cases if c["name"].startswith(start))
    return found


def errors() -> dict[str, FirstlightError]:
    found: dict[str, FirstlightError] = {}
    for name, action in (("no-command", lambda: read_words(["true"])), ("bad-host", lambda: open_host("gpu1"))):
        with pytest.raises(FirstlightError) as error:
            action()
        found[name] = error.value
    code, message, hint = refusal(b"user@gpu1: Permission denied (publickey).\n", "gpu1")
    found["login-refused"] = FirstlightError(code, message, evidence=("user@gpu1: Permission denied (publickey).",), hint=hint)
    return found


def golden(name: str, forms: list[list[str]]) -> None:
    text = "\n\n".join("\n".join(lines) for lines in forms) + "\n"
    path = HERE / f"{name}.txt"
    if not path.exists():
        path.write_text(text, "utf-8")
        pytest.fail(f"{path.name} was written: read it, then commit it")
    assert text == path.read_text("utf-8")


@pytest.mark.parametrize("name", SHOWN)
def test_finding(name: str) -> None:
    wanted = case(*SHOWN[name])
    codes = [e.split()[1] for e in wanted["expect"]]
    findings = [f for f in run_checks(context_of(wanted)) if f.code in codes]
    golden(name, [[line for f in findings for line in finding_lines(f, marks)] for marks in (UNICODE, ASCII)])


@pytest.mark.parametrize("name", ["no-command", "bad-host", "login-refused"])
def test_error(name: str) -> None:
    golden(f"error-{name}", [error_lines(errors()[name], marks) for marks in (UNICODE, ASCII)])


def test_the_ascii_form_is_ascii() -> None:
    for path in HERE.glob("*.txt"):
        second = path.read_text("utf-8").split("\n\n")[1]
        assert second.isascii(), path.name


def on_a_terminal(variables: dict[str, str]) -> bytes:
    """What a person's terminal gets from an error message."""
    parent, child = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"} | variables
    argv = [sys.executable, "-m", "firstlight.app.main", "explain", "no-such-code"]
    program = "import sys; sys.argv = ['firstlight', *sys.argv[1:]]; from firstlight.app.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *argv[3:]], stdout=child, stderr=child, env=environment)
    os.close(child)
    text = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    process.wait()
    os.close(parent)
    return text


def test_no_color_is_respected() -> None:
    plain = on_a_terminal({"NO_COLOR": "1"})
    assert b"\x1b" not in plain
    assert b"error unknown-code" in plain


def test_a_terminal_gets_colour() -> None:
    assert b"\x1b[31m" in on_a_terminal({})


def test_no_glyph_goes_where_it_cannot_be_shown() -> None:
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"FIRSTLIGHT_ASCII": "1"}):
        text = on_a_terminal({"NO_COLOR": "1", **variables})
        assert text.isascii()
        assert b"x error unknown-code" in text
