"""`up` with an engine whose adapter another package brings: found by its entry point, started as pinned, followed to its end."""

import json
import sys
from pathlib import Path

from e2e_runner import Firstlight, run_folder

FAKE = Path(__file__).parents[1] / "fake_engine" / "fake_engine.py"
ADAPTER = f"""
from firstlight.core.machine import EngineInstall
from firstlight.core.run import LaunchSpec
from firstlight.engines.command import shell_command


class Foreign:
    name, title = "foreign", "Foreign Engine"

    def accepts(self, checkpoint):
        return 1

    def discovery(self, executable):
        return [executable, "-c", "print('foreign 1.0')"]

    def read_install(self, executable, stdout):
        return EngineInstall(engine="foreign", version="1.0", python=executable) if stdout.startswith("foreign") else None

    def overlay(self, checkpoint, candidate, machine, install):
        return None

    def launch(self, *, candidate, checkpoint, intent, install, model_path, served_name, port):
        argv = [install.python, {str(FAKE)!r}, "ready", "--port", str(port), "--served-model-name", served_name]
        return LaunchSpec(engine="foreign", argv=[*argv, *candidate.args], port=port, served_model_name=served_name, model_path=model_path)

    def command(self, spec):
        return shell_command(spec)

    def install_hint(self, machine):
        return "none"


adapter = Foreign()
"""


def package(folder: Path) -> dict[str, str]:
    """The installed package as Python finds it; the environment that has it."""
    about = folder / "foreign_engine-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "foreign_engine.py").write_text(ADAPTER)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-engine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[firstlight.engines]\nforeign = foreign_engine:adapter\n")
    return {"PYTHONPATH": str(folder)}


def test_an_engine_without_a_planner_is_started_as_pinned(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    env = package(tmp_path / "site")
    ways = (str(llama_folder), "--engine", "foreign", "--max-model-len", "2k")
    planned = firstlight("plan", *ways, "-o", "json", env=env)
    assert planned.returncode == 0, planned.stderr
    assert [f["code"] for f in json.loads(planned.stdout)["findings"]] == ["not-computed"]
    ended = firstlight("up", *ways, "--engine-python", sys.executable, "--name", "far", "--skip", "verify", "--skip", "bench", env=env)
    assert ended.returncode == 0, ended.stderr
    (run,) = firstlight.runs()
    assert (run["state"], run["engine"]) == ("serving", "foreign")
    assert json.loads((run_folder(run) / "launch.json").read_text())["argv"][-2:] == ["--max-model-len", "2000"]
    assert firstlight("down", "far", env=env).returncode == 0
