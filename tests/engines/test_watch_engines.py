"""Watch and diagnose on real engines: llama.cpp's server (healthy, cut file, no file, taken port) and vLLM with the record plugin."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from firstlight.diagnose.diagnose import diagnose
from firstlight.engines.llamacpp import inside
from firstlight.watch.records import ENVIRONMENT, RecordSocket, plugin_files
from firstlight.watch.state import EngineLog

SERVE = str(Path(inside.__file__).with_name("serve.py"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def serve(model: str, port: int, *, seconds: float = 60.0) -> tuple[bytes, int]:
    """One start of llama.cpp's server: its log up to ready (then it is stopped) or to its end, and its exit status."""
    pytest.importorskip("xllamacpp")
    argv = [sys.executable, SERVE, "--model", model, "--alias", "demo", "--port", str(port), "--ctx-size", "512", "--threads", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    log, state = b"", EngineLog("llamacpp")
    try:
        while chunk := os.read(process.stdout.fileno(), 65536):
            log += chunk
            state.feed(chunk, 0.0)
            if state.phase == "ready":
                process.send_signal(signal.SIGTERM)
        return log, process.wait(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


@pytest.mark.llamacpp
def test_llama_cpp_gets_ready(demo_gguf: Path) -> None:
    log, status = serve(str(demo_gguf), free_port())
    state = EngineLog("auto")
    names = [e.data["name"] for e in state.feed(log, 0.0) if e.kind == "phase"]
    assert names[:3] == ["configuring", "loading", "warming"]
    assert "ready" in names
    assert state.engine == "llamacpp"
    assert diagnose(log, exit_status=status).outcome == "ready"


@pytest.mark.llamacpp
def test_llama_cpp_broken_files(demo_gguf: Path, tmp_path: Path) -> None:
    cut, junk = tmp_path / "cut.gguf", tmp_path / "junk.gguf"
    with open(demo_gguf, "rb") as f:
        cut.write_bytes(f.read(20_000_000))
    junk.write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 40)
    for path, code in ((cut, "gguf-file-corrupt"), (junk, "gguf-file-corrupt"), (tmp_path / "none.gguf", "model-not-found")):
        log, status = serve(str(path), free_port())
        found = diagnose(log, exit_status=status)
        assert (found.outcome, found.cause and found.cause.code) == ("failed", code), log.decode(errors="replace")[-2000:]


@pytest.mark.vllm
async def test_vllm_sends_records_as_data(vllm_python: str, tmp_path: Path) -> None:
    """A start that fails early (no such model) with the plugin: records of the API process arrive before the text is read."""
    for name, data in plugin_files().items():
        (tmp_path / "plugin" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugin" / name).write_bytes(data)
    source = RecordSocket(str(tmp_path / "log.sock"))
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "plugin"),
        ENVIRONMENT: source.path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    argv = [vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", str(tmp_path / "no-model"), "--port", str(free_port())]
    process = await asyncio.create_subprocess_exec(*argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    text, _ = await asyncio.wait_for(process.communicate(), 240)
    records = source.drain()
    source.close()
    assert any(r.format.startswith("non-default args") and r.process == "APIServer" for r in records), text[-2000:]
    found = diagnose(text, exit_status=process.returncode)
    assert found.cause is not None
    assert found.cause.code in ("model-not-found", "model-config-missing")
