"""On another host a killed supervisor leaves nothing behind either, connected or not."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "facts"))

from loopback_sshd import Sshd, running  # noqa: E402

from firstlight.core.run import LaunchSpec  # noqa: E402
from firstlight.launch.client import SupervisorClient, start  # noqa: E402
from firstlight.launch.ownership import find_processes  # noqa: E402
from firstlight.probe.local import LocalHost  # noqa: E402
from firstlight.probe.ssh import SshHost  # noqa: E402


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def deaf_engine() -> LaunchSpec:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    argv = [sys.executable, str(TESTS / "fake_engine" / "fake_engine.py"), "deaf", "--port", str(port), "--served-model-name", "fake"]
    return LaunchSpec(engine="fake", argv=argv, port=port, served_model_name="fake", stop_grace_seconds=3.0)


def test_its_guardian_ends_the_engine_there(server: Sshd, tmp_path: Path) -> None:
    folder = tmp_path / "far run"
    far = SupervisorClient(SshHost("ssh://spark", config=server.config), str(folder))
    start(far.host, folder=str(folder), spec=deaf_engine(), run=f"far-{os.getpid()}")
    try:
        deadline = time.monotonic() + 60
        while far.status().state != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        server.cut()
        os.kill(json.loads((folder / "supervisor.json").read_text())["supervisor"]["pid"], signal.SIGKILL)
        while find_processes(LocalHost(), str(folder)).processes:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        ended = far.stop()
        assert (ended.state, ended.reason) == ("failed", "supervisor-died")
        assert (far.exit() or {})["proof"]["clean"] is True
    finally:
        far.sweep()
