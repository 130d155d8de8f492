"""The OOM killer takes a worker: the engine ends in its own way, and the supervisor knows all the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from launch_runs import Runs, fake_spec, until

from firstlight.launch.client import SupervisorClient, start
from firstlight.launch.supervisor import oom


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup with 120 MiB, version 1 or 2, where the machine lets us make one."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = Path(base, f"firstlight-test-{os.getpid()}")
        try:
            path.mkdir()
            (path / limit).write_text(str(120 << 20))
        except OSError:
            if path.is_dir():
                path.rmdir()
            continue
        yield path
        path.rmdir()
        return
    pytest.skip("no memory cgroup may be made here")


def test_a_worker_that_the_oom_killer_took(memory_cgroup: Path, runs: Runs) -> None:
    worker = {"spawn": {"name": "EngineCore", "steps": [{"sleep": 2.5}, {"allocate": 400 << 20}, {"hang": True}]}}
    spec = fake_spec({"steps": [worker]})
    argv = ["/bin/sh", "-c", f'echo $$ > {memory_cgroup}/cgroup.procs; exec "$@"', "sh", *spec.argv]
    folder = runs.root / "oom"
    folder.mkdir()
    client: SupervisorClient = start(runs.host, folder=str(folder), spec=msgspec.structs.replace(spec, argv=argv))
    runs.clients.append(client)
    died = until(client, "died")
    until(client, "ended")
    assert (died.data["signal"], died.data["oom_killed"]) == (None, True)


def test_an_engine_that_ends_by_itself_was_not_taken(runs: Runs) -> None:
    client = runs.start({"steps": [{"sleep": 1.5}, {"exit": 3}]})
    assert until(client, "died").data["oom_killed"] is False


def test_the_counter_of_a_cgroup_or_the_nearest_one_above(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    found = oom._nearest(str(tmp_path), "/a/b", "memory.events")
    assert found == str(tmp_path / "a/memory.events")
    assert oom.read(found) == 3
    assert oom._nearest(str(tmp_path), "/c", "memory.events") is None
    assert oom.read(str(tmp_path / "absent")) is None
