"""Carries the asking scripts to where the engine's Python is, runs them there, and reads their one JSON answer."""

import importlib.resources
from typing import Any

import msgspec

from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.ids import digest
from firstlight.core.ports import Host

GRACE = 20.0  # seconds beyond the script's own limit before it is killed
_START = "import sys; sys.path.insert(0, sys.argv[1]); from {package}.{module} import main; main()"


class ScriptFailed(FirstlightError):
    """The script ended without an answer: killed, out of memory, or the interpreter itself is broken."""


def scripts(engine: str, package: str) -> dict[str, bytes]:
    """The files of `firstlight.engines.ENGINE.inside.PACKAGE`, or of `inside` itself."""
    inside = importlib.resources.files(f"firstlight.engines.{engine}.inside")
    folder = inside if package == "inside" else inside / package
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name.endswith(".py")}


def carry(host: Host, engine: str, package: str, cache: str) -> str:
    """Lays the scripts under `cache` on the host, at a path named by their content; returns the folder to import from."""
    files = scripts(engine, package)
    folder = f"{cache}/inside/{engine}-{digest(sorted(files.items()))}"
    for name, data in files.items():
        if host.stat(f"{folder}/{package}/{name}") is None:
            host.write(f"{folder}/{package}/{name}", data)
    return folder


def run_inside(
    host: Host,
    python: str,
    request: dict[str, Any],
    *,
    cache: str,
    timeout: float,
    engine: str = "vllm",
    package: str = "asking",
    module: str = "main",
) -> dict[str, Any]:
    """One question to the engine behind `python`. The script ends itself at `timeout`; a little later it is killed.

    Raises ScriptFailed `asking-failed`.
    """
    folder = carry(host, engine, package, cache)
    argv = [python, "-c", _START.format(package=package, module=module), folder]
    try:
        # Not isolated: a launch finds the engine through the same environment. cwd is our folder: nothing else is imported from it.
        done = host.run(argv, stdin=msgspec.json.encode({**request, "timeout": timeout}), timeout=timeout + GRACE, cwd=folder)
    except HostError as e:
        raise ScriptFailed("asking-failed", f"the engine's Python gave no answer: {e.message}", evidence=e.evidence) from None
    try:
        answer = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError:
        raise ScriptFailed(
            "asking-failed", "the engine's Python gave no answer", evidence=_last_lines(done.returncode, done.stderr)
        ) from None
    if not isinstance(answer, dict):
        raise ScriptFailed("asking-failed", "the engine's Python gave no answer", evidence=(f"found {answer!r:.80}",))
    return answer


def _last_lines(returncode: int, stderr: bytes) -> tuple[str, ...]:
    if returncode in (-9, 137):
        how = "killed by signal 9: out of memory, or stopped from outside"
    else:
        how = f"killed by signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
    return (how, *[line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()][-4:])
