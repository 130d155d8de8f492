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
    """They look for a port at the same moment; each is ready at a port of its own that is on record, and none took another's."""
    started = [firstlight.start(*up(llama_folder, "--name", f"side-{n}"), env={"FAKE_ENGINE_SCRIPT": "plain"}) for n in range(3)]
    for process in started:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    runs = firstlight.runs()
    assert len({first_port(run_folder(run)) for run in runs}) == 3
    ports = {r["endpoint"]["base_url"] for r in runs}
    assert len(ports) == 3
    for run in runs:
        launch = json.loads((run_folder(run) / "attempts" / str(run["attempt"]) / "launch.json").read_text())
        assert run["endpoint"]["base_url"] == f"http://127.0.0.1:{launch['port']}/v1"


def test_users_who_start_at_once_never_meet_at_a_port(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    """Each has a home of its own, so none can read what the others have chosen; still nobody needs a second attempt."""
    homes = [{f"XDG_{kind}_HOME": str(tmp_path / user / kind) for kind in ("STATE", "CACHE", "DATA")} for user in ("ann", "bob", "eve")]
    started = [
        firstlight.start(*up(llama_folder), env={"FAKE_ENGINE_SCRIPT": json.dumps({"steps": [{"sleep": 1.5}, {"serve": {}}]}), **home})
        for home in homes
    ]
    try:
        for process in started:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert "attempt 1" not in err
        runs = [json.loads(firstlight("get", "runs", "-o", "json", env=home).stdout)["items"] for home in homes]
        assert len({run["endpoint"]["base_url"] for (run,) in runs}) == len(homes)
    finally:
        for home in homes:
            firstlight("down", "--all", "--kill", env=home)


def first_port(folder: Path) -> int:
    """The port of the first attempt: strangers on this machine may have led to a second."""
    return int(json.loads((folder / "attempts" / "1" / "launch.json").read_text())["port"])


@contextmanager
def thief(root: Path, start: str, go: Path, taken: list[int]) -> Iterator[None]:
    """Listens at the port of the engine that is started in `start`, lets it go on then, answers every request with 200, and stays."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set() and not [p for p in root.glob(f"{start}/supervisor.jsonl") if "engine-started" in p.read_text()]:
            time.sleep(0.01)
        if over.is_set():
            return
        found = json.loads(next(root.glob(f"{start}/supervise.json")).read_text())
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", found["spec"]["port"]))
            server.listen()
            server.settimeout(0.2)
            taken.append(found["spec"]["port"])
            go.touch()
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
    go = tmp_path / "go"
    waits = json.dumps({"steps": [{"wait_file": str(go)}, {"sleep": 1.5}, {"serve": {}}]})
    taken: list[int] = []
    with thief(own_home, "state/firstlight/runs/*/rehearsal/1", go, taken):
        served = firstlight(*up(llama_folder, "--rehearse", "always"), env={"FAKE_ENGINE_SCRIPT": waits})
    assert served.returncode == 0, served.stderr
    folder = run_folder(firstlight.runs()[0])
    first, second = ([json.loads(e) for e in (folder / "rehearsal" / n / "supervisor.jsonl").read_text().splitlines()] for n in "12")
    assert not any(e["kind"] == "ready" for e in first)
    assert [e["data"]["port"] for e in first if e["kind"] == "port-stolen"] == taken
    assert [e["data"]["port"] for e in second if e["kind"] == "ready"] != taken
    assert json.loads((folder / "rehearsal.json").read_text())["passed"]
