"""llama.cpp behind the EngineAdapter port: `llama-server`, or the same server embedded through xllamacpp in a Python environment."""

import json
from collections.abc import Sequence
from pathlib import PurePosixPath

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, OverlaySpec
from firstlight.core.run import LaunchSpec
from firstlight.engines.command import refuse_secrets, shell_command, visible_gpus

RUNNER = str(PurePosixPath(__file__).with_name("inside") / "serve.py")
LOG_VERBOSITY = "4"  # llama.cpp says what it loads and where the memory goes from this level on

DISCOVERY = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(name):
    try: return m.version(name)
    except Exception: return None
name = next((n for n in ("xllamacpp",) if version(n)), None)
print(json.dumps(dict(python=sys.executable, python_version=".".join(map(str, sys.version_info[:3])), distribution=name,
    xllamacpp=name and version(name), importable=u.find_spec("xllamacpp") is not None)))
"""


class LlamaCppAdapter:
    """llama.cpp's server. Its flags are the planner's in llama.cpp's own spelling, so that binary and runner take the same."""

    name = "llamacpp"
    title = "llama.cpp"

    def accepts(self, checkpoint: Checkpoint) -> int:
        return 100 if checkpoint.format == "gguf" else 0

    def discovery(self, executable: str) -> Sequence[str]:
        return [executable, "--version"] if _is_binary(executable) else [executable, "-c", DISCOVERY]

    def read_install(self, executable: str, stdout: str) -> EngineInstall | None:
        return _read_binary(executable, stdout) if _is_binary(executable) else _read_python(executable, stdout)

    def overlay(self, checkpoint: Checkpoint, candidate: Candidate, machine: Machine, install: EngineInstall | None) -> OverlaySpec | None:
        """A GGUF carries its own metadata: nothing beside it to patch."""
        return None

    def launch(
        self,
        *,
        candidate: Candidate,
        checkpoint: Checkpoint,
        intent: Intent,
        install: EngineInstall,
        model_path: str,
        served_name: str,
        port: int,
    ) -> LaunchSpec:
        refuse_secrets(intent.extra_args, ("--api-key", "--hf-token", "-hft"))
        program = [install.python, RUNNER] if install.python else [install.binary or "llama-server"]
        argv = [*program, "--model", model_path, "--alias", served_name, "--host", intent.bind, "--port", str(port)]
        argv += ["--metrics", "--verbosity", LOG_VERBOSITY]
        return LaunchSpec(
            engine=self.name,
            argv=[*argv, *candidate.args, *intent.extra_args],
            env={"LLAMA_OFFLINE": "1"} | visible_gpus(intent) | candidate.env | intent.env,
            secret_files={"LLAMA_API_KEY": intent.api_key_file} if intent.api_key_file else {},
            host=intent.bind,
            port=port,
            health_path="/health",
            served_model_name=served_name,
            stop_signal="SIGTERM",
            stop_grace_seconds=10.0,
            model_path=model_path,
        )

    def command(self, spec: LaunchSpec) -> str:
        return shell_command(spec)

    def install_hint(self, machine: Machine | None) -> str:
        return "pip install 'firstlight[embedded]'"


def _is_binary(executable: str) -> bool:
    return PurePosixPath(executable).name.startswith("llama-server")


def _read_binary(executable: str, stdout: str) -> EngineInstall | None:
    """`version: 6527 (7f76692)` and `built with …`; llama-server prints them on stderr, so the probe hands over both."""
    for line in stdout.splitlines():
        if line.startswith("version: "):
            number = line.removeprefix("version: ").split()[0]
            return EngineInstall(engine="llamacpp", version=number, build=f"llama-server {line}", binary=executable)
    return None


def _read_python(executable: str, stdout: str) -> EngineInstall | None:
    for line in reversed(stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if not isinstance(found, dict) or not found.get("xllamacpp") or not found.get("importable"):
            return None
        version = str(found["xllamacpp"])
        return EngineInstall(
            engine="llamacpp",
            version=version,
            build=f"xllamacpp {version}, python {found.get('python_version')}",
            python=executable if executable.startswith("/") else found.get("python") or executable,
            packages={"xllamacpp": version},
        )
    return None


adapter = LlamaCppAdapter()
