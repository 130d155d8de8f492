"""Runs of the fake engine under a real supervisor; whatever a test leaves is ended."""

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstlight.core.run import LaunchSpec
from firstlight.launch.client import Options, SupervisorClient, SupervisorEvent, start
from firstlight.probe.local import LocalHost

FAKE = Path(__file__).parents[2] / "fake_engine" / "fake_engine.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def fake_spec(script: str | dict[str, Any], **changes: Any) -> LaunchSpec:
    text = script if isinstance(script, str) else json.dumps(script)
    port = changes.pop("port", None) or free_port()
    extra = changes.pop("args", [])
    argv = [sys.executable, str(FAKE), text, "--port", str(port), "--served-model-name", "fake", *extra]
    return LaunchSpec(**{"engine": "fake", "argv": argv, "port": port, "served_model_name": "fake", "stop_grace_seconds": 3.0, **changes})


class Runs:
    """Starts runs in folders of their own and ends them all."""

    def __init__(self, host: LocalHost, root: Path) -> None:
        self.host, self.root = host, root
        self.clients: list[SupervisorClient] = []

    def start(
        self, script: str | dict[str, Any], *, options: Options | None = None, folder: Path | None = None, **spec: Any
    ) -> SupervisorClient:
        folder = folder or self.root / f"run{len(self.clients)}-{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        client = start(self.host, folder=str(folder), spec=fake_spec(script, **spec), options=options)
        self.clients.append(client)
        return client

    def end(self) -> None:
        for client in self.clients:
            if client.find()["supervised"] or client.find()["processes"]:
                client.sweep()


def until(client: SupervisorClient, kind: str, *, seconds: float = 60.0) -> SupervisorEvent:
    """The first event of that kind; fails when the supervisor ends, or time is up, without it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := next((e for e in client.past_events() if e.kind == kind), None)) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no event {kind}: {[(e.kind, e.data) for e in client.past_events()]}")


def wait_for(condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to pass")
