"""llama.cpp under the supervisor: the real server out of xllamacpp, a real GGUF."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.engines.llamacpp.adapter import adapter
from firstlight.launch.client import SupervisorClient, start
from firstlight.launch.ownership import find_processes
from firstlight.probe.local import LocalHost

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]
HOST = LocalHost()


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(client: SupervisorClient, kind: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := next((e for e in client.past_events() if e.kind == kind), None)) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {kind}: {client.past_events()}")


def begin(folder: Path, model: Path, *extra: str, key: Path | None = None) -> SupervisorClient:
    spec = adapter.launch(
        candidate=Candidate(engine=EngineRef(name="llamacpp"), args=["--ctx-size", "1024", "--parallel", "2", "--threads", "1"]),
        checkpoint=Checkpoint(ref=str(model), format="gguf", path=str(model)),
        intent=Intent(model=str(model), extra_args=list(extra), api_key_file=str(key) if key else None),
        install=EngineInstall(engine="llamacpp", python=sys.executable),
        model_path=str(model),
        served_name="SmolLM2 demo",
        port=free_port(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    return start(HOST, folder=str(folder), spec=spec)


@pytest.fixture
def served(tmp_path: Path, demo_gguf: Path) -> Iterator[SupervisorClient]:
    client = begin(tmp_path / "run", demo_gguf)
    wait_for(client, "ready")
    yield client
    client.stop(grace_seconds=0)


def post(client: SupervisorClient, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    address = f"http://127.0.0.1:{client.status().port}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


QUESTION = {
    "model": "SmolLM2 demo",
    "messages": [{"role": "user", "content": "Name the capital of France."}],
    "max_tokens": 16,
    "temperature": 0,
}


def test_it_answers_under_its_own_name_and_ends_clean(served: SupervisorClient) -> None:
    answer = post(served, QUESTION)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "SmolLM2 demo"
    log = Path(served.folder, "engine.log").read_text()
    assert "load_tensors" in log
    assert "n_ctx_slot = 512" in log
    ended = served.stop()
    assert ended.exit is not None
    assert (ended.exit["returncode"], ended.exit["proof"]["clean"]) == (0, True)


def test_its_death_is_noticed_at_once(served: SupervisorClient) -> None:
    engine = served.status().engine
    assert engine is not None
    killed = time.time()
    os.kill(engine.pid, signal.SIGKILL)
    assert wait_for(served, "died").time - killed < 0.5
    assert wait_for(served, "ended").data["clean"] is True


def test_a_killed_supervisor_leaves_nothing(served: SupervisorClient) -> None:
    supervisor = served.status().supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while find_processes(HOST, served.folder).processes:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert served.stop().over


def test_ending_does_not_wait_for_a_long_answer(served: SupervisorClient) -> None:
    import threading

    body = {**QUESTION, "max_tokens": 900, "ignore_eos": True}

    def ask() -> None:
        with pytest.raises(OSError, match=r".*"):
            post(served, body)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1.0)
    begun = time.monotonic()
    ended = served.stop()
    thread.join(timeout=10)
    assert time.monotonic() - begun < 8
    assert ended.exit is not None
    assert ended.exit["returncode"] == 0


def test_a_key_guards_the_endpoint(tmp_path: Path, demo_gguf: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open-sesame\n")
    client = begin(tmp_path / "run", demo_gguf, key=key)
    try:
        wait_for(client, "ready")
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(client, QUESTION)
        assert refused.value.code == 401
        refused.value.close()
        assert "Paris" in str(post(client, QUESTION, "open-sesame"))
    finally:
        client.stop()
    assert not any(b"open-sesame" in p.read_bytes() for p in Path(client.folder).iterdir())


@pytest.mark.parametrize(
    ("extra", "text"),
    [(["--no-such-flag"], "unrecognized arguments"), (["--cache-type-k", "fp8"], "invalid choice"), (["--ctx-size", "x"], "invalid int")],
)
def test_wrong_flags_end_it_with_their_name(tmp_path: Path, demo_gguf: Path, extra: list[str], text: str) -> None:
    client = begin(tmp_path / "run", demo_gguf, *extra)
    assert wait_for(client, "died").data["returncode"] == 2
    wait_for(client, "ended")
    assert text in Path(client.folder, "engine.log").read_text()


def test_a_cut_file_ends_it_with_a_reason(tmp_path: Path, demo_gguf: Path) -> None:
    cut = tmp_path / "Modell mit Lücke.gguf"
    cut.write_bytes(demo_gguf.read_bytes()[: 40 << 20])
    client = begin(tmp_path / "run", cut)
    assert wait_for(client, "died").data["returncode"] == 1
    wait_for(client, "ended")
    assert "failed to load model" in Path(client.folder, "engine.log").read_text()
