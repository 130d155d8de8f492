"""`up demo --host ssh://` from its first look to the last word while connections break: nothing is lost, nothing is left."""

import json
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import Firstlight
from far_machine import HOME_THERE, HOST, Far, up_there

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("way_in")]
CUTS = 20


class Cutter(threading.Thread):
    """Breaks every connection at random moments, from the first on. at: the stage in which each cut fell."""

    def __init__(self, far: Far, events: Any, seed: int) -> None:
        super().__init__(daemon=True)
        self.far, self.events, self.chance = far, events, random.Random(seed)
        self.at, self.over = list[str](), threading.Event()

    def run(self) -> None:
        while len(self.at) < CUTS and not self.over.wait(self.chance.uniform(0.1, 1.2)):
            if self.far.cut():
                self.at.append(next((e["stage"] for e in reversed(self.events())), "before"))


def events_of(home: Path) -> list[dict[str, Any]]:
    folders = sorted(home.glob("state/firstlight/runs/*/events.jsonl"))
    lines = folders[-1].read_text().splitlines() if folders else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.llamacpp
@pytest.mark.parametrize("seed", [2])
def test_up_is_cut_twenty_times_at_random_from_its_first_moment(
    far: Far, firstlight: Firstlight, demo_gguf: Path, own_home: Path, seed: int
) -> None:
    """Looking, copying, starting, watching, proving: the demo is copied there and serves, as if nothing had happened."""
    models = own_home / "cache" / "firstlight" / "models" / "demo"
    models.mkdir(parents=True)
    shutil.copy(demo_gguf, models / demo_gguf.name)
    there = f"{HOME_THERE}/.cache/firstlight/models"
    far.inside("rm", "-rf", there)
    cutter = Cutter(far, lambda: events_of(own_home), seed)
    process = firstlight.start(*up_there("demo"))
    cutter.start()
    try:
        out, err = process.communicate(timeout=600)
    finally:
        cutter.over.set()
        cutter.join()
    assert process.returncode == 0, err
    assert len(cutter.at) == CUTS, (cutter.at, err)
    early = [s for s in cutter.at if s in ("before", "run", "inspect", "probe", "preflight", "plan", "fetch")]
    assert len(early) >= 3, cutter.at
    run = firstlight.runs()[0]
    assert run["state"] in ("serving", "verified"), run
    events = events_of(own_home)
    assert [e["seq"] for e in events] == list(range(len(events)))
    supervisor = far.machine.path(f"{run['host_folder']}/attempts/1/supervisor.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in supervisor]
    assert kinds.count("engine-started") == 1, "one engine, one supervisor, however often the start was asked for"
    assert "ended" not in kinds
    assert sum(row.count("supervisor.pyz") for row in far.of_user()) == 1, far.of_user()
    (copied,) = far.inside("find", there, "-type", "f").splitlines()
    assert far.machine.path(copied).read_bytes() == demo_gguf.read_bytes()
    assert out
    assert firstlight("down", "far").returncode == 0
    assert far.of_user() == []


@pytest.mark.parametrize("tool", ["rsync", "sftp", "neither"])
def test_a_copy_goes_on_from_its_byte_and_is_compared(far: Far, firstlight: Firstlight, tmp_path: Path, tool: str) -> None:
    """Cut six times, with what each tool has left there; a part that another hand has damaged is sent anew."""
    source = tmp_path / f"{tool} weights ü.gguf"
    source.write_bytes(os.urandom(160 << 20))
    hidden = {"rsync": [], "sftp": ["/usr/bin/rsync"], "neither": ["/usr/bin/rsync"]}[tool]
    for path in hidden:
        far.inside("mv", path, f"{path}.away")
    if tool == "neither":
        far.inside("sed", "-i", "s/^Subsystem/#Subsystem/", "/etc/farsshd/sshd_config")
        far.cut()
    try:
        with far.cutting(6, every=0.35) as cuts:
            done = firstlight("fetch", str(source), "--host", HOST, "--yes", "-o", "json", seconds=600)
    finally:
        for path in hidden:
            far.inside("mv", f"{path}.away", path)
        far.inside("sed", "-i", "s/^#Subsystem/Subsystem/", "/etc/farsshd/sshd_config")
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(cuts) >= 3
    there = json.loads(done.stdout)["path"]
    assert far.machine.path(there).read_bytes() == source.read_bytes()
    assert far.inside("find", str(Path(there).parent), "-name", "*.part*", "-o", "-name", ".firstlight-partial") == ""
