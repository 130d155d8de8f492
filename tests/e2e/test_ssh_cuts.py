"""A run on another host outlives its connections: twenty cuts lose no event and leave nothing behind."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "facts"))

from loopback_sshd import Sshd, running  # noqa: E402

from firstlight.core.errors import FirstlightError, HostError  # noqa: E402
from firstlight.core.run import LaunchSpec  # noqa: E402
from firstlight.launch.client import Options, Restart, SupervisorClient, SupervisorEvent, start  # noqa: E402
from firstlight.probe.local import LocalHost  # noqa: E402
from firstlight.probe.ssh import SshHost  # noqa: E402

CUTS = 20
STEPS = [{"log": "starting on {port}"}, {"serve": {}}, {"sleep": 0.3}, {"exit": 1}]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


class Follower(threading.Thread):
    """Reads events from the byte where the last connection broke off, until the run is over."""

    def __init__(self, client: SupervisorClient) -> None:
        super().__init__(daemon=True)
        self.client, self.attached = client, 0
        self.events, self.problems = list[SupervisorEvent](), list[str]()

    def run(self) -> None:
        byte, deadline = 0, time.monotonic() + 120
        while time.monotonic() < deadline and not any(e.kind == "ended" for e in self.events):
            self.attached += 1
            try:
                for event in self.client.events(byte):
                    self.events.append(event)
                    byte = event.byte
            except FirstlightError as e:
                self.problems.append(e.code)


def engine(port: int) -> LaunchSpec:
    script = json.dumps({"steps": STEPS})
    argv = [sys.executable, str(TESTS / "fake_engine" / "fake_engine.py"), script, "--port", str(port), "--served-model-name", "fake"]
    return LaunchSpec(engine="fake", argv=argv, port=port, served_model_name="fake", stop_grace_seconds=3.0)


def marked(run: str) -> list[int]:
    """Processes that carry the run's mark, wherever they hide."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"FIRSTLIGHT_RUN={run}".encode() in text.split(b"\0"):
                found.append(int(entry.name))
    return found


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_twenty_cuts(server: Sshd, tmp_path: Path) -> None:
    folder = str(tmp_path / "a run with späces")
    run = f"cut-{os.getpid()}"
    options = Options(restart=Restart(policy="on-failure", max_restarts=1000, backoff_seconds=0.1, longest_backoff_seconds=0.1))
    lost: list[HostError] = []
    far = SupervisorClient(SshHost("ssh://spark", config=server.config, on_lost=lost.append), folder)
    start(far.host, folder=folder, spec=engine(free_port()), options=options, run=run)
    try:
        follower = Follower(far)
        follower.start()
        cuts, deadline = 0, time.monotonic() + 90
        while cuts < CUTS and time.monotonic() < deadline:
            cuts += server.cut() > 0
            time.sleep(0.3)
        assert cuts == CUTS
        stop(far)
        follower.join(60)
        on_file = SupervisorClient(LocalHost(), folder).past_events()
        assert [(e.byte, e.kind) for e in follower.events] == [(e.byte, e.kind) for e in on_file], "no event lost, none twice"
        assert follower.attached > 1 or lost, "the cuts were felt"
        assert set(follower.problems) <= {"host-unreachable", "never-supervised"}, "its record could not be read at that moment"
        assert sum(e.kind == "engine-started" for e in on_file) > 1, "the engine came and went meanwhile"
        assert marked(run) == []
    finally:
        SupervisorClient(LocalHost(), folder).sweep()


def stop(client: SupervisorClient) -> None:
    """A lost connection while stopping is asked again."""
    for _ in range(5):
        try:
            if client.stop(grace_seconds=1.0).over:
                return
        except HostError:
            continue
    raise AssertionError("the run did not stop")
