"""Real engines as context managers: llama.cpp through the product's own embedded runner, vLLM's CPU build in its own environment."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firstlight.core.run import Endpoint

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "src/firstlight/engines/llamacpp/inside/serve.py"
SERVERS = Path(__file__).with_name("servers.py")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def process(argv: list[str], port: int, *, log: Path | None = None, env: dict[str, str] | None = None, wait: float = 60) -> Iterator[int]:
    """Starts a server in its own process group, waits for its /health, and ends the whole group afterwards."""
    with open(log or os.devnull, "wb") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        _wait_healthy(child, port, wait)
        yield child.pid
    finally:
        _end(child)


def _wait_healthy(child: "subprocess.Popen[bytes]", port: int, wait: float) -> None:
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"the server ended with {child.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {wait:.0f} s")


def _end(child: "subprocess.Popen[bytes]") -> None:
    for sig, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, sig)
        except ProcessLookupError:
            break
        try:
            child.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def llamacpp(
    model: Path, *, parallel: int = 4, context: int = 8192, threads: int = 1, extra: tuple[str, ...] = (), name: str = "demo"
) -> Iterator[Endpoint]:
    port = free_port()
    argv = [sys.executable, str(RUNNER), "--model", str(model), "--alias", name, "--port", str(port), "--parallel", str(parallel)]
    argv += ["--ctx-size", str(context), "--threads", str(threads), "--metrics", "--kv-unified", *extra]
    with process(argv, port, wait=180):
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=name, engine="llamacpp", max_model_len=context)


@contextmanager
def vllm(folder: Path, *, python: str, extra: tuple[str, ...] = (), name: str = "demo", log: Path | None = None) -> Iterator[Endpoint]:
    """vLLM on the CPU, eager. About 30 s to start; tell the caller's lock."""
    port = free_port()
    argv = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--served-model-name", name, "--port", str(port)]
    argv += ["--host", "127.0.0.1", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager", *extra]
    own = {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    own |= {"VLLM_SERVER_DEV_MODE": "1"}  # /collective_rpc and /reset_prefix_cache, by which damaged weights come into a running engine
    with process(argv, port, env={**os.environ, **own}, log=log, wait=480):
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=name, engine="vllm", max_model_len=2048)


@contextmanager
def liar(kind: str, *, upstream: Endpoint | None = None, after: int = 40, text: str = "") -> Iterator[Endpoint]:
    """A server of `servers.py`, in front of `upstream` when it is a proxy. text: the template that `template` asks for."""
    port = free_port()
    argv = [sys.executable, str(SERVERS), kind, str(port), upstream.base_url if upstream else "-", str(after), text]
    with process(argv, port):
        model = upstream.model if upstream else "demo"
        engine, length = (upstream.engine, upstream.max_model_len) if upstream else (None, None)
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=model, engine=engine, max_model_len=length)


def environment_python() -> str | None:
    """The interpreter of a vLLM environment, from FIRSTLIGHT_ENGINE_PYTHON."""
    return os.environ.get("FIRSTLIGHT_ENGINE_PYTHON") or None


def pretty(value: object) -> str:
    return json.dumps(value, indent=1)
