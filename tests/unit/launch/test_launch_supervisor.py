"""The supervisor with a fake engine that is a real process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from launch_runs import FAKE, Runs, free_port, until, wait_for

from firstlight.core.errors import FirstlightError
from firstlight.launch.client import Alive, Options, Restart, SupervisorClient
from firstlight.launch.ownership import adopt, find_marked, find_processes, stop_orphans
from firstlight.launch.supervisor import children, ending
from firstlight.launch.supervisor.procfs import Listener

pytestmark = pytest.mark.timeout(200)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_ready_then_stopped_with_proof(runs: Runs) -> None:
    client = runs.start("ready")
    assert until(client, "ready").data["seconds"] > 0
    status = client.status()
    assert (status.state, status.answering) == ("ready", True)
    assert status.engine is not None
    assert alive(status.engine.pid)
    ended = client.stop()
    assert (ended.state, ended.reason) == ("stopped", "stopped")
    assert ended.exit is not None
    assert ended.exit["returncode"] == 0
    assert ended.exit["proof"]["clean"] is True
    assert find_processes(runs.host, client.folder).processes == []
    assert not Path(client.folder, "supervisor.sock").exists()
    assert "Application startup complete." in Path(client.folder, "engine.log").read_text()


def test_death_is_noticed_at_once(runs: Runs) -> None:
    client = runs.start("ready")
    until(client, "ready")
    engine = client.status().engine
    assert engine is not None
    killed = time.time()
    os.kill(engine.pid, signal.SIGKILL)
    died = until(client, "died")
    assert died.time - killed < 0.5
    assert (died.data["returncode"], died.data["signal"], died.data["ready"]) == (-9, "SIGKILL", True)
    ended = until(client, "ended")
    assert ended.data["clean"] is True
    record = client.exit()
    assert record is not None
    assert record["reason"] == "engine-killed"
    assert client.status().state == "failed"


def test_failure_while_loading_keeps_the_whole_log(runs: Runs) -> None:
    client = runs.start("oom-weights")
    died = until(client, "died")
    assert (died.data["returncode"], died.data["ready"]) == (1, False)
    log = Path(client.folder, "engine.log").read_text()
    assert "CUDA out of memory" in log
    assert "Engine core initialization failed" in log
    assert died.data["log_bytes"] == len(log.encode())


def segments_of(pids: set[int]) -> set[Path]:
    return {p for p in Path("/dev/shm").iterdir() if p.name.startswith("psm_fake_") and int(p.name.split("_")[2]) in pids}


def test_a_child_that_left_session_and_environment_is_found_and_ended(runs: Runs) -> None:
    client = runs.start("workers")
    until(client, "ready")
    processes = wait_for(lambda: p if len(p := find_processes(runs.host, client.folder).processes) == 4 else None)
    segments = wait_for(lambda: found if len(found := segments_of({p.pid for p in processes})) == 2 else None)
    wait_for(lambda: len(json.loads(Path(client.folder, "supervisor.json").read_text())["members"]) == 4)
    ended = client.stop()
    assert ended.exit is not None
    assert ended.exit["proof"]["clean"] is True
    assert not any(alive(p.pid) for p in processes)
    assert set(map(str, segments)) == set(ended.exit["proof"]["shared_memory_removed"])


def test_engine_that_ignores_sigterm_is_killed_after_grace(runs: Runs) -> None:
    client = runs.start("deaf", stop_grace_seconds=0.5)
    until(client, "ready")
    ended = client.stop()
    assert ended.exit is not None
    assert ended.exit["signal"] == "SIGKILL"
    assert any(e.kind == "grace-over" for e in client.past_events())


def test_stopped_engine_is_paused_not_dead_and_can_be_ended(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    engine = client.status().engine
    assert engine is not None
    os.kill(engine.pid, signal.SIGSTOP)
    until(client, "paused")
    assert client.status().state == "ready"
    assert client.stop().exit["proof"]["clean"] is True  # type: ignore[index]


def test_port_in_use_is_said_before_the_engine_starts(runs: Runs) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        client = runs.start("ready", port=taken.getsockname()[1])
        failed = until(client, "failed")
    assert failed.data["reason"] == "port-in-use"
    assert f"pid {os.getpid()}" in failed.data["message"]
    assert client.status().state == "failed"


def test_a_stranger_on_the_port_is_not_our_readiness(runs: Runs) -> None:
    """The port was free when it was checked; somebody took it before the engine came to bind, and answers /health."""
    client = runs.start({"steps": [{"sleep": 6}, {"serve": {}}]})
    until(client, "engine-started")
    argv = [sys.executable, str(FAKE), "plain", "--port", str(client.status().port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as stranger:
        try:
            stolen = until(client, "port-stolen")
            assert f"pid {stranger.pid}" in stolen.data["holder"]
            assert until(client, "died").data["returncode"] == 1
            assert not any(e.kind == "ready" for e in client.past_events())
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_stranger_that_answers_and_leaves_is_not_our_readiness(runs: Runs) -> None:
    """When the answer arrives, nobody listens on the port any more: that is no proof of anything."""
    client = runs.start({"steps": [{"hang": True}]})
    port = until(client, "engine-started") and client.status().port
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        connection, _ = stranger.accept()
        stranger.close()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        connection.close()
    wait_for(lambda: client.status().health.get("status") == 200 or client.status().health.get("problem") == "refused")
    time.sleep(0.5)
    assert client.status().state == "starting"
    assert not any(e.kind == "ready" for e in client.past_events())


def test_a_stranger_that_never_answers_is_named(runs: Runs) -> None:
    client = runs.start({"steps": [{"hang": True}]})
    until(client, "engine-started")
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", client.status().port))
        stranger.listen()
        assert f"pid {os.getpid()}" in until(client, "port-stolen", seconds=20).data["holder"]


@pytest.mark.parametrize("supervised", [True, False])
def test_a_stranger_on_the_port_is_named_at_the_end_and_is_nothing_of_the_run(runs: Runs, supervised: bool) -> None:
    client = runs.start({"steps": [{"hang": True}]})
    until(client, "engine-started")
    if not supervised:
        kill_unguarded(client)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", client.status().port))
        stranger.listen()
        client.stop(grace_seconds=0)
        proof = (client.exit() or {})["proof"]
    assert (proof["clean"], proof["port_free"], proof["port_holders"]) == (True, False, [])
    (named,) = proof["port_of_others"]
    assert named.startswith(f"pid {os.getpid()}, uid {os.getuid()}: ")


def test_a_port_that_nobody_can_be_seen_to_hold_may_be_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows the socket and its user, and no process of ours or of others that has it."""
    monkeypatch.setattr(ending, "CLOSING_SECONDS", 0.0)
    monkeypatch.setattr(ending.procfs, "holders", lambda inodes, pids: [])
    for uid, whose in ((os.geteuid(), "ours"), (os.geteuid() + 1, "others")):
        monkeypatch.setattr(ending.procfs, "listeners", lambda port, uid=uid: [Listener("1", "127.0.0.1", uid)])
        ours, others = ending.whose_port(1, set())
        assert (len(ours), len(others)) == ((1, 0) if whose == "ours" else (0, 1))
        assert f"uid {uid} " in (ours + others)[0]


def test_a_port_shared_with_a_stranger_is_not_ours(runs: Runs) -> None:
    """SO_REUSEPORT lets two programs of one user listen side by side, and the kernel picks who answers."""
    serve = (
        "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()\n"
        "while True:\n c, _ = s.accept(); c.recv(4096); c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n'); c.close()"
    )
    port = free_port()
    client = runs.start("plain", port=port, argv=[sys.executable, "-c", f"import time; time.sleep(1.0)\n{serve}", str(port)])
    until(client, "engine-started")
    with subprocess.Popen([sys.executable, "-c", serve, str(port)]) as stranger:
        try:
            assert f"pid {stranger.pid}" in until(client, "port-stolen").data["holder"]
            time.sleep(2.0)
            assert not any(e.kind == "ready" for e in client.past_events())
        finally:
            stranger.kill()
    assert until(client, "ready").data["port"] == port


def test_program_that_is_not_there(runs: Runs) -> None:
    client = runs.start("plain", argv=["/no/such/program"])
    failed = until(client, "failed")
    assert failed.data["reason"] == "program-not-found"
    assert client.status().exit["message"].startswith("/no/such/program")  # type: ignore[index]


@pytest.mark.parametrize("odd", [{"host": "x" * 70}, {"port": 70000}, {"stop_signal": "default_int_handler"}])
def test_what_cannot_be_reached_or_sent_does_not_end_the_supervisor(runs: Runs, odd: dict[str, Any]) -> None:
    client = runs.start({"steps": [{"hang": True}]}, **odd)
    until(client, "engine-started")
    wait_for(lambda: client.status().health.get("problem") or "stop_signal" in odd)
    assert client.status().answering
    assert (client.stop(grace_seconds=0.1).exit or {})["proof"]["clean"] is True
    assert not any(e.kind == "supervisor-died" for e in client.past_events())


def test_two_supervisors_of_one_run(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    with pytest.raises(FirstlightError) as raised:
        runs.start("plain", folder=Path(client.folder))
    assert raised.value.code == "already-supervised"
    assert client.status().state == "ready"


def test_secrets_reach_the_engine_and_no_record(runs: Runs, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cr3t-value\n")
    script = {"steps": [{"raw": "the key is s3cr"}, {"sleep": 0.2}, {"raw": "3t-value, it was said\n"}, {"serve": {}}]}
    client = runs.start(script, secret_files={"VLLM_API_KEY": str(key)}, args=["--api-key", "other-secret"])
    until(client, "ready")
    address = f"http://127.0.0.1:{client.status().port}/v1/models"
    request = urllib.request.Request(address, headers={"Authorization": "Bearer s3cr3t-value"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200
    client.stop()
    for path in Path(client.folder).iterdir():
        assert b"s3cr3t-value" not in path.read_bytes(), path
    assert "the key is (secret removed), it was said" in Path(client.folder, "engine.log").read_text()
    assert "other-secret" not in Path(client.folder, "engine.json").read_text()


def test_unreadable_secret_fails_by_name(runs: Runs) -> None:
    client = runs.start("plain", secret_files={"VLLM_API_KEY": "/no/such/file"})
    assert until(client, "failed").data["reason"] == "secret-unreadable"


def kill_unguarded(client: SupervisorClient) -> None:
    """The supervisor and the guardian that would clear up after it."""
    record = json.loads(Path(client.folder, "supervisor.json").read_text())
    for who in ("guardian", "supervisor"):
        os.kill(record[who]["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(record["supervisor"]["pid"]))


def test_killed_supervisor_and_guardian_take_the_engine_along(runs: Runs) -> None:
    client = runs.start("ready")
    until(client, "ready")
    status = client.status()
    assert status.engine is not None
    kill_unguarded(client)
    wait_for(lambda: not alive(status.engine.pid))  # type: ignore[union-attr]
    found = wait_for(lambda: f if not (f := find_processes(runs.host, client.folder)).processes else None)
    assert found.supervised is False
    assert found.recorded_state == "ready"
    assert client.status().answering is False
    assert client.stop().state == "stopped"


def test_engine_that_outlives_supervisor_and_guardian_is_found_and_stopped(runs: Runs) -> None:
    client = runs.start("deaf")
    until(client, "ready")
    status = client.status()
    assert status.engine is not None
    kill_unguarded(client)
    found = find_processes(runs.host, client.folder)
    assert found.orphaned
    assert found.engine is not None
    assert found.engine["pid"] == status.engine.pid
    assert status.engine.pid in {m.pid for m in find_marked(runs.host, scratch=str(runs.root))}
    result = stop_orphans(runs.host, client.folder)
    assert result["clean"] is True
    assert result["ended"] == [status.engine.pid]
    assert not alive(status.engine.pid)
    assert client.status().state == "stopped"


def test_shared_memory_of_a_run_that_was_killed_at_once_is_removed(runs: Runs) -> None:
    """Nobody is left who could tell whose the segments are, but the record."""
    client = runs.start("workers")
    until(client, "ready")
    record = Path(client.folder, "supervisor.json")
    segments = wait_for(lambda: s if len(s := json.loads(record.read_text())["shared_memory"]) == 2 else None)
    kill_unguarded(client)
    for process in find_processes(runs.host, client.folder).processes:
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not find_processes(runs.host, client.folder).processes)
    assert all(Path(path).exists() for path in segments)
    client.stop()
    exit_record = client.exit()
    assert exit_record is not None
    assert exit_record["proof"]["shared_memory_removed"] == segments
    assert not any(Path(path).exists() for path in segments)


def test_adopted_engine_is_supervised_again(runs: Runs) -> None:
    client = runs.start("plain", options=Options(on_supervisor_death="keep"))
    until(client, "ready")
    status = client.status()
    assert status.supervisor is not None
    assert status.engine is not None
    os.kill(status.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not find_processes(runs.host, client.folder).supervised)
    again = adopt(runs.host, client.folder)
    wait_for(lambda: again.status().state == "ready")
    assert again.status().engine == status.engine
    os.kill(status.engine.pid, signal.SIGKILL)
    assert until(again, "died").data["returncode"] is None
    until(again, "ended")


def test_restart_keeps_the_supervisor(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    before = client.status()
    client.restart()
    after = wait_for(lambda: s if (s := client.status()).state == "ready" and s.engine != before.engine else None)
    assert after.supervisor == before.supervisor
    assert after.restarts == 1


def test_dead_engine_is_restarted_until_it_is_a_crash_loop(runs: Runs) -> None:
    restart = Restart(policy="on-failure", max_restarts=2, backoff_seconds=0.05)
    client = runs.start({"steps": [{"serve": {}}, {"sleep": 0.6}, {"exit": 3}]}, options=Options(restart=restart))
    until(client, "ended")
    kinds = [e.kind for e in client.past_events()]
    assert kinds.count("restarting") == 2
    assert kinds.count("died") == 3
    assert client.status().reason == "crash-loop"


DYING = {"steps": [{"serve": {}}, {"sleep": 0.6}, {"exit": 3}]}
ONCE = Restart(policy="on-failure", max_restarts=1, backoff_seconds=0.05)


def says(answer: str, *, tail: str = "") -> list[str]:
    return [sys.executable, "-c", f"print({answer!r}){tail}"]


def test_a_diagnosis_may_keep_the_engine_down(runs: Runs) -> None:
    asked = says('{"restart": false, "code": "gpu-lost", "because": "another start finds it lost"}')
    client = runs.start(DYING, options=Options(restart=ONCE, before_restart=asked))
    assert until(client, "ended").data["reason"] == "gpu-lost"
    assert until(client, "diagnosed").data["code"] == "gpu-lost"
    assert until(client, "failed").data["message"] == "another start finds it lost"
    assert not any(e.kind == "restarted" for e in client.past_events())


def test_a_diagnosed_restart_tells_its_cause(runs: Runs, tmp_path: Path) -> None:
    """Who is asked gets the death with the place in the log where this life began."""
    ask = "import json, os; d = json.loads(os.environ['FIRSTLIGHT_DATA']); print(json.dumps({'code': 'exit-%d' % d['returncode'], **d}))"
    client = runs.start(DYING, options=Options(restart=ONCE, before_restart=[sys.executable, "-c", ask]))
    until(client, "ended")
    assert until(client, "restarted").data["cause"] == "exit-3"
    found = until(client, "diagnosed").data
    assert found["restart"] is True
    assert found["log_bytes"] >= found["log_offset"]


def test_down_during_the_back_off_and_its_diagnosis_is_at_once(runs: Runs) -> None:
    restart = Restart(policy="on-failure", backoff_seconds=30.0)
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    client = runs.start(DYING, options=Options(restart=restart, before_restart=slow))
    until(client, "restarting")
    begun = time.monotonic()
    assert client.stop().state == "stopped"
    assert time.monotonic() - begun < 20
    assert not any(e.kind in ("restarted", "diagnosed") for e in client.past_events())


def test_a_stopped_worker_is_told(runs: Runs) -> None:
    client = runs.start("workers")
    until(client, "ready")
    worker = wait_for(lambda: [p.pid for p in find_processes(runs.host, client.folder).processes if "Worker_TP0" in p.command])[0]
    wait_for(lambda: worker in [pid for pid, _ in json.loads((Path(client.folder) / "supervisor.json").read_text())["members"]])
    os.kill(worker, signal.SIGSTOP)
    assert until(client, "member-paused").data["pid"] == worker
    os.kill(worker, signal.SIGCONT)
    assert until(client, "member-continued").data["pid"] == worker
    assert client.status().state == "ready"


@pytest.mark.parametrize(
    "asked", [["/no/such/program"], says("not JSON"), says("[]"), [sys.executable, "-c", "raise SystemExit(9)"], None]
)  # fmt: skip
def test_without_a_diagnosis_the_restart_goes_on_and_says_so(runs: Runs, asked: list[str] | None) -> None:
    client = runs.start(DYING, options=Options(restart=ONCE, before_restart=asked))
    assert until(client, "not-diagnosed").data["because"]
    assert until(client, "restarted").data["cause"] is None


def test_wedged_engine_is_dumped_and_restarted(runs: Runs) -> None:
    options = Options(
        restart=Restart(policy="on-failure", backoff_seconds=0.05), liveness=Alive(interval_seconds=0.2, patience_seconds=1.0)
    )
    flag = runs.root / "second"
    first = {"if": {"no_file": str(flag)}, "steps": [{"touch": str(flag)}, {"serve": {"mode": "hang"}}]}
    client = runs.start({"steps": [first, {"if": {"lacks": "x"}, "steps": [{"sleep": 0.1}]}, {"hang": True}]}, options=options)
    assert until(client, "wedged").data["processes"]
    assert until(client, "died").data["signal"] == "SIGABRT"
    assert "most recent call first" in Path(client.folder, "engine.log").read_text()


def test_busy_is_not_dead(runs: Runs) -> None:
    """Requests run and tokens advance slowly, /health hangs: alive."""
    options = Options(liveness=Alive(interval_seconds=0.2, patience_seconds=1.0))
    steps = [{"serve": {"running": 5}}, {"sleep": 0.5}, {"http": {"health": "hang"}}]
    steps += [s for n in range(8) for s in ({"http": {"generated": n}}, {"sleep": 0.4})]
    client = runs.start({"steps": [*steps, {"touch": str(runs.root / "done")}, {"hang": True}]}, options=options)
    wait_for((runs.root / "done").exists, seconds=20)
    assert not any(e.kind in ("wedged", "died") for e in client.past_events())


def test_log_flood_is_kept_and_rotated(runs: Runs) -> None:
    client = runs.start(
        {"steps": [{"log": "first"}, {"flood": 20_000_000}, {"log": "last"}, {"serve": {}}]},
        options=Options(log_max_bytes=4 << 20, log_keep=2),
    )
    until(client, "ready")
    folder = Path(client.folder)
    assert folder.joinpath("engine.log.start").read_bytes().startswith(b"first\n")
    assert (folder / "engine.log").read_bytes().endswith(b"last\n")
    assert {p.name for p in folder.glob("engine.log*")} == {"engine.log", "engine.log.start", "engine.log.1", "engine.log.2"}


def test_removed_run_folder_is_made_again(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    Path(client.folder, "run.json").write_text('{"kept": true}')
    time.sleep(2.5)  # the supervisor has looked at its folder
    runs.host.remove(client.folder)
    wait_for(lambda: Path(client.folder, "supervisor.json").exists(), seconds=15)
    assert client.status().answering
    assert json.loads(Path(client.folder, "run.json").read_text()) == {"kept": True}
    assert client.stop().state == "stopped"


def test_long_folder_names_and_unicode(runs: Runs) -> None:
    folder = runs.root / ("ein sehr langer Ordner mit Ümläuten " * 4) / ("y" * 90)
    client = runs.start("plain", folder=folder)
    until(client, "ready")
    assert client.status().answering
    assert client.stop().state == "stopped"


class Deaf:
    """A connection that a supervisor accepted just before it ended: it is closed unanswered."""

    def send(self, data: bytes) -> None:
        pass

    def receive(self, limit: int = 65536) -> bytes:
        return b""

    def close(self) -> None:
        pass


def test_a_reader_whom_the_ending_supervisor_did_not_answer_has_its_last_words(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    client = runs.start({"steps": [{"exit": 7}]})
    until(client, "ended")
    monkeypatch.setattr(client, "_connect", Deaf)
    found = list(client.events())
    assert [e.data["returncode"] for e in found if e.kind == "died"] == [7]
    assert [e.kind for e in client.events(found[-2].byte)] == ["ended"]


def test_second_stop_kills(runs: Runs) -> None:
    client = runs.start("deaf", stop_grace_seconds=30.0)
    until(client, "ready")
    supervisor = client.status().supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGTERM)
    until(client, "stopping")
    begun = time.monotonic()
    assert client.stop().state == "stopped"
    assert time.monotonic() - begun < 20


def test_hook_runs_outside_the_run(runs: Runs, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    hook = [
        sys.executable,
        "-c",
        f"import os; open({str(noted)!r}, 'a').write(os.environ['FIRSTLIGHT_EVENT'] + ' ' + str(os.environ.get('FIRSTLIGHT_RUN')) + '\\n')",
    ]
    client = runs.start("plain", options=Options(on_event=hook))
    until(client, "ready")
    wait_for(lambda: noted.exists() and "ready None" in noted.read_text())
    client.stop()


@pytest.mark.parametrize(("hook", "problem"), [(["/bin/sh", "-c", "exit 3"], "exit status 3"), (["/no/such"], "it cannot be started")])
def test_a_hook_that_fails_is_told(runs: Runs, hook: list[str], problem: str) -> None:
    client = runs.start("plain", options=Options(on_event=hook))
    assert until(client, "hook-failed").data == {"event": "ready", "problem": problem}


def test_hooks_that_hang_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "HOOKS_AT_ONCE", 1)
    found = children.Children("run")
    assert found.hook(["sleep", "600"], "ready", {}) is None
    assert found.hook(["sleep", "600"], "died", {}) == "1 of them still run"
    (pid,) = found._hooks
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_what_is_too_large_for_a_variable_is_told_without_it(tmp_path: Path) -> None:
    found, noted = children.Children("run"), tmp_path / "noted"
    assert found.hook(["/bin/sh", "-c", f"echo $FIRSTLIGHT_DATA > {noted}"], "ended", {"proof": "x" * 200_000}) is None
    (pid,) = found._hooks
    os.waitpid(pid, 0)
    assert noted.read_text() == '{"too_large": true}\n'


def test_damaged_records_do_not_hide_the_engine(runs: Runs) -> None:
    client = runs.start("deaf")
    until(client, "ready")
    status = client.status()
    assert status.engine is not None
    kill_unguarded(client)
    for name in ("supervisor.json", "engine.json", "supervise.json"):
        Path(client.folder, name).write_text("{ not json")
    found = find_processes(runs.host, client.folder)
    assert [p.pid for p in found.processes] == [status.engine.pid]
    assert stop_orphans(runs.host, client.folder)["clean"] is True


def test_a_held_run_ends_with_its_holder(runs: Runs) -> None:
    client = runs.start("ready", options=Options(held=True))
    holder = client.host.connect(str(client.status().socket))
    holder.send(b'{"op": "events", "from_byte": 0, "hold": true}\n')
    until(client, "ready")
    holder.close()
    assert until(client, "ended").data["clean"] is True
    assert client.status().reason == "stopped"


def test_a_held_run_waits_for_a_holder_that_was_cut_off(runs: Runs) -> None:
    client = runs.start("ready", options=Options(held=True, hold_grace_seconds=4.0))
    hold = b'{"op": "events", "from_byte": 0, "hold": true}\n'
    first = client.host.connect(str(client.status().socket))
    first.send(hold)
    until(client, "ready")
    first.close()
    again = client.host.connect(str(client.status().socket))
    again.send(hold)
    assert again.receive()
    time.sleep(5.0)
    assert client.status().state == "ready"
    again.close()
    assert until(client, "ended").data["clean"] is True


def test_an_engine_that_crashes_writes_no_core_dump(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    engine = client.status().engine
    assert engine is not None
    (limit,) = [line for line in Path(f"/proc/{engine.pid}/limits").read_text().splitlines() if line.startswith("Max core file size")]
    assert int(limit.split()[4]) <= 1


def test_memory_that_a_worker_shares_while_it_serves_is_known_before_it_dies(runs: Runs) -> None:
    worker = {"spawn": {"name": "Worker_TP0", "steps": [{"sleep": 2.5}, {"shm": 65536}, {"hang": True}]}}
    client = runs.start({"steps": [worker, {"serve": {}}]})
    until(client, "ready")
    record = Path(client.folder, "supervisor.json")
    (segment,) = wait_for(lambda: json.loads(record.read_text())["shared_memory"], seconds=6)
    (pid,) = [p.pid for p in find_processes(runs.host, client.folder).processes if p.proof != "engine" and "shm" in p.command]
    os.kill(pid, signal.SIGKILL)
    until(client, "ended")
    assert not Path(segment).exists()
