"""vLLM (CPU build) under the supervisor: overlay, first request, death of the engine core, rehearsal at both depths."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from firstlight.app.rehearsing import observer
from firstlight.core.checkpoint import Checkpoint, KvCacheQuantization, MoeSpec
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.run import LaunchSpec
from firstlight.engines.vllm.adapter import adapter
from firstlight.launch.client import SupervisorClient, start
from firstlight.launch.overlay import lay_overlay
from firstlight.launch.ownership import find_processes
from firstlight.probe.local import LocalHost
from firstlight.rehearse.rehearse import rehearse

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]
HOST = LocalHost()
MACHINE = Machine(hostname="here", memory_available_bytes=8 << 30)
SOURCES = ["config.json:quantization_config.kv_cache_scheme", "hf_quant_config.json:quantization.kv_cache_quant_algo"]
SMALL = ["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vllm_python: str) -> Path:
    """Seven layers, so that two truncated depths exist; the embedded FP8 KV cache that kills a ready engine."""
    path = tmp_path_factory.mktemp("models") / "Tiny MLA"
    script = Path(__file__).with_name("make_tiny_mla.py")
    subprocess.run([vllm_python, str(script), str(path), "--layers", "7", "--fp8-kv"], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def install(vllm_python: str) -> EngineInstall:
    found = adapter.read_install(vllm_python, HOST.run(adapter.discovery(vllm_python), timeout=60).text)
    assert found is not None
    return found


def checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(
        ref=str(folder),
        format="safetensors",
        path=str(folder),
        name="tiny-mla",
        attention="mla",
        num_hidden_layers=7,
        moe=MoeSpec(num_experts=8, first_dense_layers=1),
        tensor_bytes=sum(p.stat().st_size for p in folder.glob("*.safetensors")),
        kv_cache_quantization=KvCacheQuantization(dtype="fp8", sources=SOURCES),
    )


def candidate() -> Candidate:
    return Candidate(
        engine=EngineRef(name="vllm"), args=SMALL, max_model_len=512, kv_bytes_per_token=7 * 1152, env={"VLLM_CPU_KVCACHE_SPACE": "1"}
    )


def spec_for(folder: Path, install: EngineInstall, tmp_path: Path) -> LaunchSpec:
    overlay = adapter.overlay(checkpoint(folder), candidate(), MACHINE, install)
    assert overlay is not None
    laid = lay_overlay(HOST, checkpoint(folder), overlay, root=str(tmp_path / "overlays"))
    return adapter.launch(
        candidate=candidate(),
        checkpoint=checkpoint(folder),
        intent=Intent(model=str(folder)),
        install=install,
        model_path=laid.path,
        served_name="tiny-mla",
        port=free_port(),
    )


def wait_for(client: SupervisorClient, kind: str, seconds: float = 500.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := next((e for e in client.past_events() if e.kind == kind), None)) is not None:
            return found
        assert not client.status().over or kind in ("died", "ended"), Path(client.folder, "engine.log").read_text()[-3000:]
        time.sleep(0.05)
    raise AssertionError(f"no {kind}: {[e.kind for e in client.past_events()]}")


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_through_the_overlay_it_serves_and_the_death_of_its_core_is_told(folder: Path, install: EngineInstall, tmp_path: Path) -> None:
    before = hashes(folder)
    spec = spec_for(folder, install, tmp_path)
    (tmp_path / "run").mkdir()
    client = start(HOST, folder=str(tmp_path / "run"), spec=spec)
    try:
        wait_for(client, "ready")
        body = json.dumps({"model": "tiny-mla", "prompt": "small words", "max_tokens": 4}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{spec.port}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        time.sleep(1.5)
        core = next(p for p in find_processes(HOST, client.folder).processes if "EngineCore" in p.command)
        assert core.proof in ("cgroup", "session", "known")
        killed = time.time()
        os.kill(core.pid, signal.SIGKILL)
        assert wait_for(client, "member-exited").time - killed < 0.5
        assert wait_for(client, "ended").data["clean"] is True
    finally:
        client.stop(grace_seconds=0)
    assert hashes(folder) == before


def run(folder: Path, install: EngineInstall, tmp_path: Path, depth: str, **changes: Any) -> Any:
    spec = spec_for(folder, install, tmp_path)
    spec = msgspec.structs.replace(spec, argv=[*spec.argv, *changes.pop("args", [])])
    config = json.loads(Path(spec.model_path or "", "config.json").read_text())
    return rehearse(
        spec,
        checkpoint=checkpoint(folder),
        candidate=candidate(),
        machine=MACHINE,
        install=install,
        config=config,
        observe=observer(HOST, str(tmp_path / "run"), version=install.version, diagnoses=[]),
        port=free_port(),
        depth=depth,
        patience=500.0,
    )


def test_a_rehearsal_at_full_depth_reads_no_weights(folder: Path, install: EngineInstall, tmp_path: Path) -> None:
    empty = tmp_path / "no weights"
    empty.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (empty / file.name).write_bytes(file.read_bytes())
    report = run(empty, install, tmp_path, "full")
    assert report.passed, report.refusal
    assert not report.extrapolated
    assert report.kv_tokens is not None
    assert report.kv_tokens > 100_000
    assert report.phase_seconds["loading"] > 0
    assert "one completion runs through every kernel" in report.proves


def test_a_rehearsal_at_two_depths_finds_a_wrong_flag_with_the_first(folder: Path, install: EngineInstall, tmp_path: Path) -> None:
    report = run(folder, install, tmp_path, "truncated")
    assert report.passed, report.refusal
    assert (report.extrapolated, report.depth) == (True, 4)
    wrong = run(folder, install, tmp_path, "truncated", args=["--block-size", "7"])
    assert not wrong.passed
    assert wrong.refusal
