"""Records that somebody edited: no stranger is killed, nothing of others removed, and `down` still works."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from launch_runs import Runs, until

from firstlight.launch.client import SupervisorClient
from firstlight.launch.supervisor import leftover, trust
from firstlight.launch.supervisor.engine import runtime_path
from firstlight.probe.local import LocalHost

ODD: list[Any] = [None, -1, 2**70, 1.5, "", "x", True, [], [1], [["a", "b"]], {}, {"pid": "x"}, {"pid": -1, "start_ticks": 1}]
FIELDS = {
    "supervisor.json": [
        "run",
        "state",
        "supervisor",
        "guardian",
        "engine",
        "cgroup",
        "members",
        "shared_memory",
        "runtime",
        "socket",
        "gpu_memory",
    ],
    "engine.json": ["pid", "start_ticks", "cgroup"],
    "supervise.json": ["run", "spec", "options"],
    "exit.json": ["proof", "reason"],
}


@pytest.fixture
def ended(runs: Runs) -> SupervisorClient:
    client = runs.start("plain")
    until(client, "ready")
    client.stop()
    return client


def edit(client: SupervisorClient, name: str, **changes: Any) -> None:
    path = Path(client.folder, name)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_any_value_in_any_field_is_survived(tmp_path: Path, host: LocalHost, name: str, field: str) -> None:
    for at, value in enumerate(ODD):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        for record in FIELDS:
            (folder / record).write_text("{}")
        (folder / name).write_text(json.dumps({field: value}))
        client = SupervisorClient(host, str(folder))
        assert leftover.find(str(folder))["processes"] == []
        client.status()
        client.exit()
        assert leftover.sweep_now(str(folder), grace=0)["clean"] is True


def test_what_it_names_is_not_removed(ended: SupervisorClient, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "firstlight-of-mine").mkdir(parents=True)
    (precious / "file").write_text("kept")
    boss = json.loads(Path(ended.folder, "supervisor.json").read_text())["supervisor"]
    segments = [f"/dev/shm/..{precious}/file", str(precious / "file"), f"/dev/shm/../{precious}/file"]
    edit(ended, "supervisor.json", runtime=str(precious), cgroup=str(precious / "firstlight-of-mine" / ".."), shared_memory=segments)
    assert boss["boot_id"], "the record is of this boot"
    ended.sweep()
    assert (precious / "file").read_text() == "kept"


def test_a_stranger_is_not_ours_by_a_cgroup_or_a_pid(ended: SupervisorClient) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        try:
            for cgroup in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/proc/self/root/sys/fs/cgroup/firstlight-x/.."):
                edit(ended, "supervisor.json", state="ready", cgroup=cgroup, members=[[stranger.pid, 1]], engine={"pid": stranger.pid})
                edit(ended, "engine.json", cgroup=cgroup, pid=stranger.pid, start_ticks=None)
                assert ended.sweep()["ended"] == []
            time.sleep(0.1)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_the_runtime_folder_of_another_temporary_place_is_known_by_its_name(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    name = os.path.basename(runtime_path(folder))
    elsewhere = f"/var/tmp/firstlight-{os.getuid()}/{name}"
    assert trust.runtime(elsewhere, folder) == elsewhere
    for wrong in (f"/var/tmp/firstlight-{os.getuid()}/0123456789", f"/home/{name}", f"{elsewhere}/..", 3, None):
        assert trust.runtime(wrong, folder) == runtime_path(folder)
