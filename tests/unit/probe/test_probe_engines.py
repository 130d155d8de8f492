"""Engines are found by asking interpreters, and a broken interpreter is told, not stumbled over."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from firstlight.core.machine import EngineInstall
from firstlight.engines.registry import load_adapters
from firstlight.probe import engines
from firstlight.probe.engines import find_engines
from firstlight.probe.local import LocalHost


class Adapter:
    """An engine that every interpreter has whose environment sets WITH_ENGINE."""

    name = "test-engine"

    def discovery(self, executable: str) -> Sequence[str]:
        return [executable, "-c", "import os, sys; print('have', os.environ.get('WITH_ENGINE'), sys.prefix)"]

    def read_install(self, executable: str, stdout: str) -> EngineInstall | None:
        return EngineInstall(engine=self.name, version="1", python=executable) if stdout.startswith("have") else None


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def found(hints: list[str]) -> list[EngineInstall]:
    return find_engines(LocalHost(), [Adapter()], hints=hints)  # type: ignore[list-item]


def test_hints_come_first_and_one_environment_counts_once(tmp_path: Path) -> None:
    real = script(tmp_path / "env a" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script(tmp_path / "env a" / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    installs = found([str(tmp_path / "env a"), real, str(tmp_path / "env a" / "bin" / "python3")])
    assert next(i.python for i in installs) == real
    assert [i.python for i in installs if "env a" in (i.python or "")] == [real]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\nkill -SEGV $$\n", "killed by signal 11"),
        ("#!/nonexistent/python\n", "not found"),
        ("#!/bin/sh\necho something else\n", "exit status 0"),
    ],
)
def test_an_interpreter_that_does_not_start(tmp_path: Path, text: str, said: str) -> None:
    path = script(tmp_path / "bin" / "python", text)
    broken = next(i for i in found([path]) if i.python == path)
    assert broken.engine == "unknown"
    finding = broken.findings[0]
    assert (finding.code, str(finding.severity)) == ("engine-python-does-not-start", "blocker")
    assert said in " ".join(finding.evidence)
    assert path in finding.message


def test_one_that_is_not_there_and_one_that_is_no_program(tmp_path: Path) -> None:
    plain = tmp_path / "python"
    plain.write_text("x")
    installs = found([str(tmp_path / "gone" / "python"), str(plain)])
    assert [i.engine for i in installs[:2]] == ["unknown", "unknown"]


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "START_LIMIT", 0.5)
    path = script(tmp_path / "bin" / "python", "#!/bin/sh\nsleep 60\n")
    began = time.monotonic()
    broken = next(i for i in found([path]) if i.python == path)
    assert time.monotonic() - began < 15
    assert "did not end within 0.5 s" in broken.findings[0].evidence[0]


def test_what_is_broken_on_the_way_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "python3", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert all(i.engine != "unknown" for i in found([]))


def test_the_variable_and_a_script_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(tmp_path / "one" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    behind = script(tmp_path / "two" / "bin" / "python3.12", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script(tmp_path / "path" / "vllm", f"#!{behind}\nimport vllm\n")
    monkeypatch.setenv("FIRSTLIGHT_ENGINE_PYTHON", named)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    pythons = [i.python for i in found([])]
    assert pythons[0] == named
    assert behind in pythons


@pytest.mark.llamacpp
def test_llamacpp_of_this_environment_is_found() -> None:
    installs = find_engines(LocalHost(), load_adapters())
    own = next(i for i in installs if i.engine == "llamacpp")
    assert os.path.dirname(own.python or "") == os.path.dirname(sys.executable)
    assert own.version


@pytest.mark.vllm
def test_vllm_is_found_by_its_interpreter(vllm_python: str) -> None:
    installs = find_engines(LocalHost(), load_adapters(), hints=[vllm_python])
    own = next(i for i in installs if i.engine == "vllm")
    assert (own.python, own.device) == (vllm_python, "cpu")
    assert own.transformers


def test_environments_that_firstlight_made_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data ü"))
    made = script(tmp_path / "data ü" / "firstlight" / "engines" / "vllm-1" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert made in [i.python for i in found([])]
