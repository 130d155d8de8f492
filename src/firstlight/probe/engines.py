"""Which engines are installed: every candidate interpreter is asked, none is imported here."""

from collections.abc import Iterable, Sequence
from posixpath import basename, dirname, join

from firstlight.core.errors import HostError
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall
from firstlight.core.ports import EngineAdapter, Host
from firstlight.probe.running import results, workers
from firstlight.probe.sshscript import UNREACHABLE

START_LIMIT = 20.0
DISCOVERY_LIMIT = 60.0
BINARIES = ("llama-server",)


def find_engines(host: Host, adapters: Sequence[EngineAdapter], *, hints: Sequence[str] = ()) -> list[EngineInstall]:
    """Engines of every interpreter that is hinted at, set in the environment, running us, or on PATH; hints first.

    hints: interpreters, binaries or environment folders. A hinted interpreter that does not start is returned as an install
    of engine `unknown` with the finding `engine-python-does-not-start`; one found on the way is left out.
    """
    wanted = _hinted(host, hints)
    candidates = _distinct(host, [*wanted, *_around(host)])
    with workers(host, 2) as pool:
        found = results([pool.submit(_ask_one, host, adapters, exe, hinted=exe in wanted) for exe in candidates])
    installs = [install for group in found for install in group]
    return list({(i.engine, i.version, i.python or i.binary): i for i in installs}.values())


def _hinted(host: Host, hints: Sequence[str]) -> list[str]:
    variables = host.environ()
    named = [*hints, *variables.get("FIRSTLIGHT_ENGINE_PYTHON", "").split(":")]
    return [_executable(host, hint) for hint in named if hint]


def _executable(host: Host, hint: str) -> str:
    info = host.stat(hint)
    return join(hint, "bin", "python") if info is not None and info.kind == "directory" else hint


def _around(host: Host) -> list[str]:
    variables = host.environ()
    environments = [variables[k] for k in ("VIRTUAL_ENV", "CONDA_PREFIX") if variables.get(k)]
    own = _own_python() if host.is_local else []
    return [*own, *(join(e, "bin", "python") for e in environments), *_on_path(host)]


def _own_python() -> list[str]:
    import sys

    return [sys.executable] if sys.executable else []


def _on_path(host: Host) -> list[str]:
    """Environments that firstlight made there, `python3`, engine binaries, and the interpreter in the first line of a `vllm` script."""
    script = (
        'for p in "${XDG_DATA_HOME:-$HOME/.local/share}"/firstlight/engines/*/bin/python; do [ -x "$p" ] && echo "$p"; done;'
        ' for t in "$@"; do command -v "$t"; done; v=$(command -v vllm) &&'
        ' head -c 300 "$v" | sed -n "1s/^#! *\\(\\/[^ ]*python[^ ]*\\).*/\\1/p"; true'
    )
    try:
        text = host.run(["sh", "-c", script, "sh", "python3", *BINARIES], timeout=START_LIMIT).text
    except HostError as e:
        if e.code in UNREACHABLE:
            raise
        return []
    return [line for line in text.splitlines() if line.startswith("/")]


def _distinct(host: Host, candidates: Iterable[str]) -> list[str]:
    """One interpreter per environment: `bin/python` and `bin/python3` are the same one."""
    seen: dict[str, str] = {}
    for path in candidates:
        seen.setdefault(_environment(path), path)
    return list(seen.values())


def _environment(path: str) -> str:
    return dirname(path) if basename(path).startswith("python") else path


def _ask_one(host: Host, adapters: Sequence[EngineAdapter], executable: str, *, hinted: bool) -> list[EngineInstall]:
    if basename(executable).startswith("python") and (problem := _does_not_start(host, executable)):
        return [EngineInstall(engine="unknown", python=executable, findings=[problem])] if hinted else []
    answers = (_discover(host, adapter, executable) for adapter in adapters)
    return [a for a in answers if a is not None]


def _discover(host: Host, adapter: EngineAdapter, executable: str) -> EngineInstall | None:
    argv = list(adapter.discovery(executable))
    if not argv:
        return None
    try:
        done = host.run(argv, timeout=DISCOVERY_LIMIT)
    except HostError as e:
        if e.code in UNREACHABLE:
            raise
        return None
    return adapter.read_install(executable, done.text + done.stderr.decode("utf-8", "replace"))


def _does_not_start(host: Host, python: str) -> Finding | None:
    """A finding when `python -c` does not print within the limit; None when it does."""
    try:
        done = host.run([python, "-c", "print('ready')"], timeout=START_LIMIT)
    except HostError as e:
        if e.code in UNREACHABLE:
            raise
        return _broken(python, [e.message, *e.evidence])
    if done.ok and done.text.strip() == "ready":
        return None
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return _broken(python, [how, *done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]])


def _broken(python: str, evidence: list[str]) -> Finding:
    return Finding(
        code="engine-python-does-not-start",
        severity=Severity.BLOCKER,
        message=f"the engine's Python {python} does not start",
        evidence=evidence,
        hint="name a working one with --engine-python PATH, or make one with `firstlight engines install vllm`",
    )
