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
from firstlight.watch.records import ENVIRONMENT, Record, RecordSocket, plugin_files
from firstlight.watch.state import EngineLog, LogEvent

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


def lay_plugin(tmp_path: Path) -> dict[str, str]:
    """The plugin's files as `up` lays them, and the environment of an engine that loads it."""
    for name, data in plugin_files().items():
        (tmp_path / "plugin" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugin" / name).write_bytes(data)
    own = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**os.environ, **own, "PYTHONPATH": str(tmp_path / "plugin"), ENVIRONMENT: str(tmp_path / "log.sock")}


class Told:
    """One start, read as `up` does it (text and records into one log) and as text alone; every record is kept."""

    def __init__(self, source: RecordSocket) -> None:
        self.source, self.records, self.text = source, list[Record](), b""
        self.both, self.plain = EngineLog("vllm"), EngineLog("vllm")
        self.events: dict[str, list[LogEvent]] = {"both": [], "plain": []}

    def take(self, chunk: bytes) -> None:
        for record in self.source.drain():
            self.records.append(record)
            self.events["both"] += self.both.take(record.as_line(self.both.lines), 1.0)
        self.text += chunk
        self.events["both"] += self.both.feed(chunk, 1.0)
        self.events["plain"] += self.plain.feed(chunk, 1.0)

    def facts(self, way: str) -> list[str]:
        """What was told, in any order, without line numbers (a record is ahead of its line) and processes (uvicorn's text has none)."""
        kinds = ("figure", "ready", "progress", "benign")
        return sorted(f"{e.kind} {sorted(e.data.items())}" for e in self.events[way] if e.kind in kinds)


async def start_told(argv: list[str], tmp_path: Path) -> tuple[Told, int]:
    """Runs an engine with the plugin until it is ready (then it is ended) or over."""
    env = lay_plugin(tmp_path)
    told = Told(RecordSocket(env[ENVIRONMENT]))
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    if not (chunk := await process.stdout.read(65536)):
                        break
                    told.take(chunk)
            told.take(b"")
            if told.plain.phase == "ready" and process.returncode is None:
                await asyncio.sleep(0.5)
                break
        return told, process.returncode if process.returncode is not None else 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        told.source.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, vllm_python: str) -> str:
    model, script = tmp_path_factory.mktemp("models") / "tiny", Path(__file__).with_name("make_tiny_mla.py")
    subprocess.run([vllm_python, str(script), str(model), "--layers", "2"], check=True, capture_output=True)
    return str(model)


def serve_argv(python: str, model: str, *more: str) -> list[str]:
    small = ["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4", "--port", str(free_port())]
    return [python, "-m", "vllm.entrypoints.cli.main", "serve", model, *small, *more]


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_vllm_sends_records_as_data(vllm_python: str, tmp_path: Path) -> None:
    """A start that fails early (no such model) with the plugin: records of the API process arrive, the text names the cause."""
    told, status = await start_told(serve_argv(vllm_python, str(tmp_path / "no-model")), tmp_path)
    assert any(r.format.startswith("non-default args") and r.process == "APIServer" for r in told.records), told.text[-2000:]
    found = diagnose(told.text, exit_status=status)
    assert found.cause is not None
    assert found.cause.code in ("model-not-found", "model-config-missing")


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_records_of_every_process_and_the_text_tell_the_same_start_once(vllm_python: str, tiny: str, tmp_path: Path) -> None:
    told, _ = await start_told(serve_argv(vllm_python, tiny), tmp_path)
    assert (told.both.phase, told.plain.phase) == ("ready", "ready"), told.text[-3000:]
    senders = {record.process for record in told.records}
    assert {"APIServer", "EngineCore"} <= senders
    assert any("Worker" in str(name) for name in senders) == (b"(Worker" in told.text), senders
    assert any(isinstance(a, float) for r in told.records for a in r.args), "numbers come as numbers"
    assert told.facts("both") == told.facts("plain")
    assert {e.worker for e in told.events["plain"]} - {None} == {e.worker for e in told.events["both"]} - {None}
    assert told.both.fields["kv_tokens"] == told.plain.fields["kv_tokens"]
