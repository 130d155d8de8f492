"""Whatever becomes of the supervisor, its engine is gone a few seconds later; whatever becomes of the guardian, nothing is."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launch_runs import Runs, until, wait_for

from firstlight.launch.client import Options, SupervisorClient
from firstlight.launch.ownership import find_processes

pytestmark = pytest.mark.timeout(120)
BELL = {"spawn": {"name": "Worker_TP1", "detach": True, "clean": True, "steps": [{"shm": 65536}, {"hang": "deaf"}]}}
LOADS: dict[str, Any] = {"steps": [BELL, {"log": "still loading"}, {"hang": "deaf"}]}


def record(client: SupervisorClient) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(client.folder, "supervisor.json").read_text())
    return found


def lives(ref: dict[str, int]) -> bool:
    try:
        fields = Path(f"/proc/{ref['pid']}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == ref["start_ticks"]


def loading(runs: Runs, options: Options | None = None) -> tuple[SupervisorClient, dict[str, Any]]:
    """An engine that listens to nothing while it loads, with a worker that has left session and environment."""
    client = runs.start(LOADS, options=options)
    wait_for(lambda: "still loading" in Path(client.folder, "engine.log").read_text())
    return client, wait_for(lambda: r if len((r := record(client))["members"]) == 2 and r["shared_memory"] else None)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_supervisor_leaves_nothing_and_no_command_is_needed(runs: Runs, blow: signal.Signals) -> None:
    client, before = loading(runs)
    os.kill(before["supervisor"]["pid"], blow)
    struck = time.monotonic()
    wait_for(lambda: not lives(before["guardian"]))
    assert time.monotonic() - struck < 15
    assert find_processes(runs.host, client.folder).processes == []
    assert not any(Path(path).exists() for path in before["shared_memory"])
    assert not Path(before["runtime"]).exists()
    died = until(client, "supervisor-died")
    assert (died.data["pid"], died.data["signal"]) == (before["supervisor"]["pid"], blow.name)
    assert until(client, "ended").data["clean"] is True
    status = client.status()
    assert (status.state, status.reason, status.answering) == ("failed", "supervisor-died", False)
    assert (client.exit() or {})["proof"]["clean"] is True


def test_killed_with_its_whole_group_and_its_folder_removed(runs: Runs) -> None:
    client, before = loading(runs)
    group = os.getpgid(before["supervisor"]["pid"])
    os.killpg(group, signal.SIGSTOP)  # or it makes its folder again
    shutil.rmtree(client.folder)
    os.killpg(group, signal.SIGKILL)
    wait_for(lambda: not lives(before["guardian"]))
    assert not any(lives({"pid": pid, "start_ticks": ticks}) for pid, ticks in before["members"])


def test_without_its_guardian_a_run_serves_on_and_ends_as_usual(runs: Runs) -> None:
    client = runs.start("ready")
    until(client, "ready")
    os.kill(record(client)["guardian"]["pid"], signal.SIGKILL)
    wait_for(lambda: not lives(record(client)["guardian"]))
    time.sleep(0.3)
    assert client.status().state == "ready"
    ended = client.stop()
    assert (ended.state, (ended.exit or {})["proof"]["clean"]) == ("stopped", True)


@pytest.mark.parametrize("end", ["down", "engine-dies"])
def test_it_does_not_outlive_a_run_that_ends_as_it_should(runs: Runs, end: str) -> None:
    client = runs.start("ready")
    until(client, "ready")
    before = record(client)
    client.stop() if end == "down" else os.kill(before["engine"]["pid"], signal.SIGKILL)
    until(client, "ended")
    wait_for(lambda: not lives(before["guardian"]), seconds=5)
    assert [e.kind for e in client.past_events()].count("ended") == 1
    assert "supervisor-died" not in {e.kind for e in client.past_events()}


def test_a_stopped_guardian_does_not_outlive_the_run(runs: Runs) -> None:
    client = runs.start("ready")
    until(client, "ready")
    before = record(client)
    os.kill(before["guardian"]["pid"], signal.SIGSTOP)
    assert (client.stop().exit or {})["proof"]["clean"] is True
    wait_for(lambda: not lives(before["guardian"]), seconds=5)


def test_a_stopped_guardian_of_a_killed_supervisor_is_ended_by_down(runs: Runs) -> None:
    client, before = loading(runs)
    os.kill(before["guardian"]["pid"], signal.SIGSTOP)
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: not lives(before["supervisor"]))
    assert client.stop(grace_seconds=0).state == "stopped"
    assert not any(lives(before[who]) for who in ("guardian", "engine"))


def test_an_engine_that_is_to_be_kept_is_not_touched(runs: Runs) -> None:
    client = runs.start("plain", options=Options(on_supervisor_death="keep"))
    until(client, "ready")
    before = record(client)
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: not lives(before["guardian"]))
    assert lives(before["engine"])
    assert "supervisor-died" not in {e.kind for e in client.past_events()}


def test_down_while_the_guardian_is_at_work_waits_for_its_proof(runs: Runs) -> None:
    client, before = loading(runs)
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    until(client, "supervisor-died")
    assert client.stop().reason == "supervisor-died"
    assert not lives(before["engine"])
    assert before["engine"]["pid"] in (client.exit() or {})["proof"]["ended"]


def test_a_stopped_supervisor_is_ended_by_down_and_not_by_its_guardian(runs: Runs) -> None:
    client, before = loading(runs)
    os.kill(before["supervisor"]["pid"], signal.SIGSTOP)
    assert client.stop(grace_seconds=0).state == "stopped"
    assert not lives(before["guardian"])
    assert "supervisor-died" not in {e.kind for e in client.past_events()}


def test_the_hook_is_told(runs: Runs, tmp_path: Path) -> None:
    said = tmp_path / "said"
    hook = ["/bin/sh", "-c", f'echo "$FIRSTLIGHT_EVENT" >> {said}']
    _, before = loading(runs, Options(on_event=hook))
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    assert wait_for(lambda: said.exists() and (t := said.read_text().split()) and "ended" in t and t) == ["supervisor-died", "ended"]


def test_a_line_that_was_cut_by_the_kill_hides_no_event(runs: Runs) -> None:
    client, before = loading(runs)
    os.kill(before["supervisor"]["pid"], signal.SIGSTOP)
    with Path(client.folder, "supervisor.jsonl").open("a") as file:
        file.write('{"time": 1.0, "kind": "cut')
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    assert until(client, "supervisor-died").data["signal"] == "SIGKILL"


def test_it_is_small_idle_and_has_a_name_of_its_own(runs: Runs) -> None:
    client = runs.start("ready")
    until(client, "ready")
    pid = record(client)["guardian"]["pid"]
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    time.sleep(1.5)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] == used
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    own = sum(int(rows[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    assert own < 5000, f"{own} kB are its own (Python {sys.version_info[:2]})"
    assert Path(f"/proc/{pid}/cmdline").read_text().startswith("firstlight-guardian of ")
    assert os.getsid(pid) != os.getsid(record(client)["supervisor"]["pid"])


def test_a_signal_to_everybody_is_one_request_to_stop(runs: Runs) -> None:
    client = runs.start("plain")
    until(client, "ready")
    before = record(client)
    for who in ("guardian", "supervisor"):
        os.kill(before[who]["pid"], signal.SIGTERM)
    assert until(client, "ended").data["state"] == "stopped"
    assert [e.kind for e in client.past_events()].count("stopping") == 1
    assert (client.exit() or {})["returncode"] == 0
