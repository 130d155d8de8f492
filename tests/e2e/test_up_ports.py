"""Ports: side by side, taken by strangers, and never somebody else's server for our own."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e_runner import FAKE_PYTHON, Firstlight, run_folder

QUICK = ("--skip", "verify", "--skip", "bench")


def up(model: Path, *more: str) -> tuple[str, ...]:
    return ("up", str(model), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), *QUICK, *more)


def test_three_at_once_have_three_ports(firstlight: Firstlight, llama_folder: Path) -> None:
    """They look for a port at the same moment; each is ready at its first attempt, at a port of its own that is on record."""
    started = [firstlight.start(*up(llama_folder, "--name", f"side-{n}"), env={"FAKE_ENGINE_SCRIPT": "plain"}) for n in range(3)]
    for process in started:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    runs = firstlight.runs()
    assert [r["attempt"] for r in runs] == [1, 1, 1]
    ports = {r["endpoint"]["base_url"] for r in runs}
    assert len(ports) == 3
    for run in runs:
        launch = json.loads((run_folder(run) / "attempts" / "1" / "launch.json").read_text())
        assert run["endpoint"]["base_url"] == f"http://127.0.0.1:{launch['port']}/v1"


@contextmanager
def thief(root: Path, request: str, taken: list[int]) -> Iterator[None]:
    """Listens at the port of the start that is asked for in the file `request`, answers every request with 200, and stays."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set() and not list(root.glob(request)):
            time.sleep(0.01)
        if over.is_set():
            return
        time.sleep(0.5)  # its supervisor has found the port free by now
        found = json.loads(next(root.glob(request)).read_text())
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", found["spec"]["port"]))
            server.listen()
            server.settimeout(0.2)
            taken.append(found["spec"]["port"])
            while not over.is_set():
                try:
                    with server.accept()[0] as connection:
                        connection.recv(4096)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                except OSError:
                    continue

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_rehearsal_whose_port_a_stranger_takes_goes_to_another(
    firstlight: Firstlight, llama_folder: Path, own_home: Path, tmp_path: Path
) -> None:
    """The stranger answers 200 to everything: neither is it taken for the engine, nor does the plan count as refuted."""
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"steps": [{"sleep": 4}, {"serve": {}}]}))
    taken: list[int] = []
    with thief(own_home, "state/firstlight/runs/*/rehearsal/1/supervise.json", taken):
        served = firstlight(*up(llama_folder, "--rehearse", "always"), env={"FAKE_ENGINE_SCRIPT": str(script)})
    assert served.returncode == 0, served.stderr
    folder = run_folder(firstlight.runs()[0])
    first, second = ([json.loads(e) for e in (folder / "rehearsal" / n / "supervisor.jsonl").read_text().splitlines()] for n in "12")
    assert not any(e["kind"] == "ready" for e in first)
    assert any(e["kind"] == "port-stolen" for e in first)
    assert [e["data"]["port"] for e in second if e["kind"] == "ready"] != taken
    assert json.loads((folder / "rehearsal.json").read_text())["passed"]
    assert [p.name for p in (folder / "attempts").iterdir()] == ["1"]
