"""`verify --blame` stops a run for its trials: whoever takes its port meanwhile keeps it, and the run is served at another."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from e2e_runner import FAKE_PYTHON, Firstlight, run_folder


@contextmanager
def waiting_for(port: int) -> Iterator[threading.Event]:
    """Listens at `port` as soon as it is free, and stays. The event is set once it does."""
    over, got = threading.Event(), threading.Event()

    def work() -> None:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while not over.is_set():
                try:
                    server.bind(("127.0.0.1", port))
                    server.listen()
                    got.set()
                    over.wait()
                except OSError:
                    time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield got
    finally:
        over.set()
        thread.join()


def test_a_port_that_a_stranger_took_meanwhile_is_left_to_it(firstlight: Firstlight, llama_folder: Path) -> None:
    env = {"FAKE_ENGINE_SCRIPT": "incoherent"}
    words = ("--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify", "--skip", "bench")
    assert firstlight("up", str(llama_folder), *words, env=env).returncode == 0
    was = firstlight.runs()[0]
    with waiting_for(urlsplit(was["endpoint"]["base_url"]).port or 0) as taken:
        asked = ("--checks", "known-answers", "--blame", "--yes", "-o", "json")
        blamed = firstlight("verify", "tiny", *asked, env=env)
        assert taken.is_set()
        run = firstlight.runs()[0]
        assert blamed.returncode == 6, blamed.stderr
        assert not any(b["culprit"] for b in json.loads(blamed.stdout)["blame"])
        assert (run["state"], run["attempt"]) == (was["state"], 2), blamed.stderr
        assert run["endpoint"]["base_url"] != was["endpoint"]["base_url"]
        assert f"tiny serves at {run['endpoint']['base_url']}" in blamed.stderr
        launch = json.loads((run_folder(run) / "attempts" / "2" / "launch.json").read_text())
        assert run["endpoint"]["base_url"] == f"http://127.0.0.1:{launch['port']}/v1"
        assert firstlight("verify", "tiny", "--checks", "models").returncode == 6, "it answers as before, without sense"
