"""What the fault matrix stands on: runs under a real supervisor, faults at exact moments, and a search for whatever was left behind."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from firstlight.core.run import LaunchSpec
from firstlight.launch.client import Options, SupervisorClient, SupervisorEvent, start
from firstlight.launch.ownership import find_processes
from firstlight.launch.supervisor import procfs
from firstlight.probe.local import LocalHost

ROOT = Path(__file__).resolve().parents[1]
FAKE = ROOT / "tests" / "fake_engine" / "fake_engine.py"
HOST = LocalHost()


class Skip(Exception):
    """This machine cannot make the fault (no root, no compiler, no engine)."""


class Result(NamedTuple):
    """noticed: seconds from the fault to the moment somebody was told; None where there is nothing to notice."""

    noticed: float | None
    outcome: str


class Case(NamedTuple):
    """run: one start. Where several faults are made in it, it returns each with its own name, and `fault` names them all."""

    fault: str
    engine: str
    run: Callable[[Kit], Result | list[tuple[str, Result]]]


class Kit:
    """One case's runs. `finish` ends them and lists what was lost or left behind."""

    def __init__(self, llama_model: str | None, vllm_python: str | None, vllm_model: str | None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="firstlight-faults-"))
        self.llama_model, self.vllm_python, self.vllm_model = llama_model, vllm_python, vllm_model
        self.clients: list[SupervisorClient] = []
        self.watched: dict[Path, str] = {}
        self.ports: set[int] = set()
        self.members: set[tuple[int, int]] = set()
        self.runtimes: set[str] = set()
        self.cgroups: set[str] = set()
        self.segments: set[str] = set()
        self.mounts: list[Path] = []

    # starting

    def fake(self, script: str | dict[str, Any], *args: str, **changes: Any) -> LaunchSpec:
        port = changes.pop("port", None) or free_port()
        text = script if isinstance(script, str) else json.dumps(script)
        argv = [sys.executable, str(FAKE), text, "--port", str(port), "--served-model-name", "fake", *args]
        fields = {"engine": "fake", "argv": argv, "port": port, "served_model_name": "fake", "stop_grace_seconds": 3.0}
        return LaunchSpec(**{**fields, **changes})

    def llama(self, *args: str, model: str | None = None) -> LaunchSpec:
        from firstlight.engines.llamacpp.adapter import RUNNER

        path, port = model or self.llama_model, free_port()
        if path is None:
            raise Skip("no GGUF: set FIRSTLIGHT_TEST_GGUF")
        argv = [
            sys.executable,
            RUNNER,
            "--model",
            path,
            "--alias",
            "demo",
            "--port",
            str(port),
            "--ctx-size",
            "1024",
            "--threads",
            "1",
            "--metrics",
        ]
        return LaunchSpec(
            engine="llamacpp", argv=[*argv, *args], port=port, served_model_name="demo", model_path=path, stop_grace_seconds=5.0
        )

    def vllm(self, *args: str, model: str | None = None) -> LaunchSpec:
        path, port = model or self.vllm_model, free_port()
        if path is None or self.vllm_python is None:
            raise Skip("no vLLM: set FIRSTLIGHT_ENGINE_PYTHON")
        argv = [self.vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", path, "--served-model-name", "tiny", "--port", str(port)]
        argv += ["--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4", *args]
        env = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        return LaunchSpec(engine="vllm", argv=argv, env=env, port=port, served_model_name="tiny", model_path=path, stop_grace_seconds=10.0)

    def start(self, spec: LaunchSpec, *, options: Options | None = None, folder: Path | None = None) -> SupervisorClient:
        folder = folder or self.root / f"run{len(self.clients)}-{spec.port}"
        folder.mkdir(parents=True, exist_ok=True)
        client = start(HOST, folder=str(folder), spec=spec, options=options, run=f"{self.root.name}-{folder.name}"[-60:])
        self.clients.append(client)
        self.ports.add(spec.port)
        self.note(client)
        return client

    def note(self, client: SupervisorClient) -> None:
        """Remembers everything that the run has now, so that it can be looked for afterwards."""
        try:
            record = json.loads(Path(client.folder, "supervisor.json").read_text())
        except (OSError, ValueError):
            return
        refs = [record.get("supervisor"), record.get("guardian"), record.get("engine")]
        self.members |= {(r["pid"], r["start_ticks"]) for r in refs if r} | {(p, t) for p, t in record.get("members") or []}
        self.segments |= set().union(*(procfs.shared_memory(p) for p, t in self.members if procfs.same(p, t)))
        self.runtimes |= {record["runtime"]} if record.get("runtime") else set()
        self.cgroups |= {record["cgroup"]} if record.get("cgroup") else set()

    def ready(self, client: SupervisorClient, *, seconds: float = 400.0) -> SupervisorClient:
        until(client, "ready", seconds=seconds)
        time.sleep(1.2)  # the supervisor has looked for members once
        self.note(client)
        return client

    # things to break

    def copy(self, path: str) -> Path:
        """A copy of a model that a fault may damage; the original is watched."""
        source = Path(path)
        self.watch(source)
        target = self.root / "model" / source.name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
        return target

    def watch(self, path: Path) -> None:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                self.watched[file] = sha256(file)

    def small_disk(self, mebibytes: int) -> Path:
        """A file system of its own with that much room."""
        path = self.root / f"disk{len(self.mounts)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "firstlight-faults", str(path)], capture_output=True)
        if done.returncode:
            raise Skip("mounting a small file system is not allowed here")
        self.mounts.append(path)
        return path

    # afterwards

    def finish(self) -> list[str]:
        for client in self.clients:
            self.note(client)
        for client in self.clients:
            try:
                client.stop(grace_seconds=3)
            except Exception:
                client.sweep()
        until = time.monotonic() + 5.0  # a supervisor answers before it is gone itself
        while any(procfs.same(pid, ticks) for pid, ticks in self.members) and time.monotonic() < until:
            time.sleep(0.02)
        lost = list(self._lost())
        for path in self.mounts:
            subprocess.run(["umount", str(path)], check=False)
        shutil.rmtree(self.root, ignore_errors=True)
        return lost

    def _lost(self) -> Iterator[str]:
        for client in self.clients:
            for process in find_processes(HOST, client.folder).processes:
                yield f"process {process.pid}: {process.command}"
            yield from _records(client)
        yield from (f"process {pid}: {procfs.command(pid)}" for pid, ticks in sorted(self.members) if procfs.same(pid, ticks))
        yield from (f"port {port}" for port in sorted(self.ports) if procfs.listening_inodes(port))
        yield from (f"runtime folder {path}" for path in sorted(self.runtimes) if os.path.exists(path))
        yield from (f"cgroup {path}" for path in sorted(self.cgroups) if os.path.exists(path))
        yield from (f"changed: {path}" for path, digest in self.watched.items() if not path.exists() or sha256(path) != digest)
        yield from (f"shared memory {path}" for path in sorted(self.segments) if os.path.exists(path))


def _records(client: SupervisorClient) -> Iterator[str]:
    """The run folder tells how it ended, whatever happened to it."""
    folder = Path(client.folder)
    for name in ("supervisor.json", "exit.json"):
        try:
            json.loads((folder / name).read_text())
        except (OSError, ValueError) as e:
            yield f"record {name}: {type(e).__name__}"
    if not client.status().over:
        yield f"the run's record says {client.status().state}"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def event(client: SupervisorClient, kind: str, *, after: float = 0.0) -> SupervisorEvent | None:
    return next((e for e in client.past_events() if e.kind == kind and e.time >= after), None)


def until(client: SupervisorClient, *kinds: str, seconds: float = 60.0, after: float = 0.0) -> SupervisorEvent:
    """The first event of one of the kinds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for kind in kinds:
            if (found := event(client, kind, after=after)) is not None:
                return found
        time.sleep(0.01)
    raise TimeoutError(f"no {' or '.join(kinds)} within {seconds:.0f} s; events: {[e.kind for e in client.past_events()]}")


def wait(condition: Callable[[], Any], *, seconds: float = 60.0, what: str = "it") -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise TimeoutError(f"{what} did not come to pass within {seconds:.0f} s")


def engine_pid(client: SupervisorClient) -> int:
    ref = client.status().engine
    assert ref is not None, "no engine"
    return ref.pid


def supervisor_pid(client: SupervisorClient) -> int:
    ref = client.status().supervisor
    assert ref is not None, "no supervisor"
    return ref.pid


def guardian_pid(client: SupervisorClient) -> int:
    record = json.loads(Path(client.folder, "supervisor.json").read_text())
    return int(record["guardian"]["pid"])


def named(client: SupervisorClient, text: str, *, seconds: float = 60.0) -> int:
    """The pid of the run's process whose command line has that text (`--role X` of a fake child stands at its end)."""

    def look() -> int | None:
        lines = [(p.pid, command_line(p.pid)) for p in find_processes(HOST, client.folder).processes]
        found = [pid for pid, line in lines if (line.endswith(text) if text.startswith("--role") else text in line)]
        return found[-1] if found else None

    return int(wait(look, seconds=seconds, what=f"a process {text}"))


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def strike(pid: int, name: str = "SIGKILL") -> float:
    """Sends the signal; returns when (Unix seconds)."""
    assert pid > 1, "no process to strike"
    descriptor = os.pidfd_open(pid) if name in ("SIGKILL", "SIGSEGV") else None
    now = time.time()
    os.kill(pid, getattr(signal, name))
    if descriptor is not None:
        threading.Thread(target=_see_end, args=(descriptor, now), daemon=True).start()
    return now


ENDS: list[float] = []  # seconds from each deadly blow to the moment when the kernel tells of it


def _see_end(descriptor: int, since: float) -> None:
    select.select([descriptor], [], [], 60.0)
    ENDS.append(time.time() - since)
    os.close(descriptor)


def log_has(client: SupervisorClient, text: str) -> bool:
    try:
        return text in Path(client.folder, "engine.log").read_text(errors="replace")
    except OSError:
        return False


def post(port: int, body: dict[str, Any], path: str = "/v1/completions", seconds: float = 60.0) -> tuple[int | None, str]:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as e:
        return e.code, ""
    except OSError as e:
        return None, str(e)


def with_changes(spec: LaunchSpec, **changes: Any) -> LaunchSpec:
    return msgspec.structs.replace(spec, **changes)


@contextmanager
def memory_limit(mebibytes: int) -> Iterator[str]:
    """A cgroup with a memory limit; yields the file that a process writes its pid into. Raises Skip where that is not allowed."""
    name = f"firstlight-faults-{os.getpid()}"
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = os.path.join(base, name)
        try:
            os.mkdir(path)
            Path(path, limit).write_text(str(mebibytes << 20))
        except OSError:
            if os.path.isdir(path):
                os.rmdir(path)
            continue
        try:
            yield os.path.join(path, "cgroup.procs")
        finally:
            wait(lambda p=path: not Path(p, "cgroup.procs").read_text().strip(), seconds=20, what="an empty cgroup")
            os.rmdir(path)
        return
    raise Skip("no memory cgroup may be made here")
