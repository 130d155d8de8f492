"""Starts the engine: no shell, a session of its own, death with the supervisor, secrets only in its environment."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import resource
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import procfs
from .kernel import PR_SET_PDEATHSIG, libc
from .members import FOLDER, MARKER, Claim, make_cgroup

F_SETPIPE_SZ = 1031


class StartError(RuntimeError):
    """The engine could not be started. code: kebab, for the record; the text is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Engine(NamedTuple):
    """A started engine. output: the reading end of its stdout and stderr (None: adopted, its output goes elsewhere)."""

    pid: int
    start_ticks: int
    claim: Claim
    output: int | None
    environment: dict[str, str]


def start(spec: Mapping[str, Any], *, run: str, folder: str, runtime: str, keep_on_our_death: bool = False) -> Engine:
    """Raises StartError: `secret-unreadable`, `program-not-found`, `program-not-startable`."""
    secrets = read_secrets(spec.get("secret_files") or {})
    env = {**environment(spec, secrets, runtime=runtime), MARKER: run, FOLDER: os.path.realpath(folder)}
    cgroup = make_cgroup(run)
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(writer, F_SETPIPE_SZ, 1 << 20)  # a burst of log must not make the engine wait
    try:
        pid = _spawn(spec, env, writer, cgroup, None if keep_on_our_death else signal_number(spec))
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    os.set_blocking(reader, False)
    found = procfs.process(pid)
    ticks = found.start_ticks if found else 0
    return Engine(pid, ticks, Claim(run, pid, ticks, cgroup, supervisor=os.getpid(), folder=os.path.realpath(folder)), reader, env)


def signal_number(spec: Mapping[str, Any]) -> int:
    found = getattr(signal, str(spec.get("stop_signal") or "SIGTERM"), None)
    return int(found) if isinstance(found, signal.Signals) else int(signal.SIGTERM)


def _spawn(spec: Mapping[str, Any], env: dict[str, str], writer: int, cgroup: str | None, death_signal: int | None) -> int:
    prctl, parent = libc().prctl, os.getpid()

    def in_child() -> None:
        os.setsid()
        if death_signal is not None:
            prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(126)  # the supervisor died before the signal was set
        _join_cgroup(cgroup)
        _without_core_dump()

    argv = [str(word) for word in spec["argv"]]
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, env=env, cwd=spec.get("cwd"), preexec_fn=in_child
        )
    except FileNotFoundError as e:
        code = "folder-not-found" if spec.get("cwd") and not os.path.isdir(spec["cwd"]) else "program-not-found"
        raise StartError(code, f"{argv[0]}: {e.strerror}") from None
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise StartError("program-not-startable", f"{argv[0]}: {e}") from None
    child.returncode = 0  # the supervisor waits itself; Popen must not
    return child.pid


def _without_core_dump() -> None:
    """A dump takes minutes, and an engine's death is told after it. Pipes (systemd-coredump) get one at a limit of 0, none at 1."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard != resource.RLIM_INFINITY else 1, hard))


def _join_cgroup(path: str | None) -> None:
    """Before the program starts, so that no child of it can be outside."""
    if path is not None:
        # where it is refused, the session and the marker prove membership as well
        with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))


def environment(spec: Mapping[str, Any], secrets: Mapping[str, str], *, runtime: str) -> dict[str, str]:
    """Inherited, less `unset_env`, plus our own defaults, plus the plan's variables, plus secrets.

    TMPDIR is the run's own: engines leave sockets and scratch files there when they are killed.
    """
    env = {k: v for k, v in os.environ.items() if k not in set(spec.get("unset_env") or ())}
    defaults = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return {**defaults, **env, "TMPDIR": runtime, **(spec.get("env") or {}), **secrets}


def read_secrets(files: Mapping[str, str]) -> dict[str, str]:
    """Variable -> what its file holds, without the line end. Raises StartError `secret-unreadable`."""
    found = {}
    for name, path in files.items():
        try:
            with open(path, encoding="utf-8") as file:
                found[name] = file.read().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise StartError("secret-unreadable", f"{name} from {path}: {e}") from None
        if not found[name]:
            raise StartError("secret-unreadable", f"{name} from {path}: the file is empty")
    return found


def runtime_path(folder: str) -> str:
    """The run's short private folder for sockets and temporary files (a Unix socket's path holds 107 bytes)."""
    base = os.path.join(_temporary(), f"firstlight-{os.getuid()}")
    if len(base) > 60:
        base = f"/tmp/firstlight-{os.getuid()}"
    return os.path.join(base, _short(folder))


def runtime_folder(folder: str) -> str:
    """Makes it. Raises StartError `runtime-folder-unsafe` where another user could have laid it."""
    path = runtime_path(folder)
    base = os.path.dirname(path)
    os.makedirs(base, mode=0o700, exist_ok=True)
    found = os.lstat(base)
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        raise StartError("runtime-folder-unsafe", f"{base} is not a private folder of this user")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def is_runtime_of(path: str, folder: str) -> bool:
    """Whether `path` is what `runtime_path` makes of the run folder, wherever temporary files went at that time."""
    base, name = os.path.split(path)
    return name == _short(folder) and os.path.basename(base) == f"firstlight-{os.getuid()}" and os.path.normpath(path) == path


def _temporary() -> str:
    """Where `tempfile` would put things, without its imports: they would take as long as all of ours."""
    places = [os.environ.get(name) or "" for name in ("TMPDIR", "TEMP", "TMP")]
    return next((p for p in (os.path.abspath(p) for p in places if p) if os.path.isdir(p) and os.access(p, os.W_OK)), "/tmp")


def _short(folder: str) -> str:
    return hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:10]
