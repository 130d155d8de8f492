"""`up --foreground` under any manager that listens: status, more time while it loads, ready at the end, the engine ended with it."""

import os
import signal
import socket
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, alive, wait_for


def test_a_manager_is_told_and_the_engine_ends_with_the_process(
    firstlight: Firstlight, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        words = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify", "--skip", "bench")
        process = firstlight.start("up", str(llama_folder), *words, "--foreground", env={"NOTIFY_SOCKET": str(tmp_path / "notify")})

        def ready() -> bool:
            try:
                while True:
                    heard.append(manager.recv(65536).decode())
            except BlockingIOError:
                return any("READY=1" in m for m in heard)

        wait_for(ready, 60)
    assert "EXTEND_TIMEOUT_USEC=300000000" in heard
    assert any(m.startswith("STATUS=loading") for m in heard)
    assert sum("READY=1" in m for m in heard) == 1
    assert "serving tiny at http://127.0.0.1:" in heard[-1]
    run = firstlight.runs()[0]
    assert run["state"] == "serving"
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not alive(run["engine_process"]["pid"])
