"""`firstlight` as a user runs it: a process, its streams, its exit code."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAKE_PYTHON = Path(__file__).parents[1] / "fake_engine" / "python"
LIMIT_SECONDS = 240


class Firstlight:
    """Runs command lines of firstlight in this test's own home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "firstlight", *words]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, "CI": "1", **(env or {})},
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """Whatever was started is ended, its pipes are closed."""
        self("down", "--all", "--kill")
        for process in self.started:
            process.kill()
            process.communicate()

    def __call__(
        self, *words: str, env: dict[str, str] | None = None, seconds: float = LIMIT_SECONDS
    ) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words, env=env)
        out, err = process.communicate(timeout=seconds)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json").stdout)

    def runs(self, *, all_runs: bool = True) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.json("get", "runs", *(["--all"] if all_runs else []))["items"]
        return items


def hashes(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(what: Any, seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def run_folders(runs: Path) -> list[Path]:
    """The folders below `runs` that hold a run, oldest first: one that is being made, or a file beside them, is none."""
    return [record.parent for record in sorted(runs.glob("*/run.json"), key=lambda p: p.parent.stat().st_mtime)]


def run_folder(run: dict[str, Any]) -> Path:
    return Path(run["folder"])
