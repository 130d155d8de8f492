"""`up --host ssh://` against a real sshd on a machine with its own files, processes, network and user: what is there is only there."""

import asyncio
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import Firstlight, wait_for
from far_machine import HOME_THERE, HOST, USER, Far, up_there

from firstlight.app.copying import copy_model, plan_copy
from firstlight.core.errors import FirstlightError
from firstlight.probe.ssh import SshHost

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("way_in")]  # a busy machine may be ten times slower
CUTS = 20
PAUSE = 1.5


def the_run(firstlight: Firstlight) -> dict[str, Any]:
    return firstlight.runs()[0]


@pytest.mark.llamacpp
def test_every_verb_works_on_a_run_of_another_user_elsewhere(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    started = firstlight(*up_there(gguf_there), seconds=600)
    assert started.returncode == 0, started.stderr
    assert "ssh -N -L " in started.stdout
    run = the_run(firstlight)
    assert run["host"] == HOST
    assert run["host_folder"].startswith(f"{HOME_THERE}/.local/state/firstlight/runs/")
    assert not Path(run["host_folder"]).exists(), "its folder is there, not here"
    assert any("supervisor.pyz" in row for row in far.of_user())
    assert firstlight("verify", "far", seconds=180).returncode == 0
    assert "all slots are idle" in firstlight("logs", "far").stdout
    assert run["id"] in firstlight("describe", "far").stdout
    assert firstlight("attach", "far").returncode == 0
    assert "ready" in firstlight("watch", "far").stderr
    assert firstlight("diagnose", "far").returncode == 0
    again = firstlight(*up_there(gguf_there), seconds=600)
    assert again.returncode == 0, again.stderr
    assert firstlight("restart", "far", seconds=180).returncode == 0
    assert firstlight("down", "far").returncode == 0
    assert firstlight.runs()[0]["state"] == "stopped"
    assert far.of_user() == []


@pytest.mark.llamacpp
def test_twenty_cuts_lose_no_event_no_byte_and_leave_no_orphan(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    """`up` works through them, and so do `attach`, `watch` and `logs -f` beside it."""
    cuts, over = 0, threading.Event()

    def cutter() -> None:
        nonlocal cuts
        while not over.wait(PAUSE) and cuts < CUTS:
            cuts += far.cut() > 0

    process = firstlight.start(*up_there(gguf_there))
    try:
        run = wait_for(
            lambda: next((r for r in firstlight.runs() if r["state"] not in ("planned", "failed") and r["supervisor"]), None), 120
        )
        beside = {verb: firstlight.start(*verb.split()) for verb in ("logs far -f", "attach far", "watch far -o jsonl")}
        thread = threading.Thread(target=cutter, daemon=True)
        thread.start()
        out, err = process.communicate(timeout=600)
        thread.join(CUTS * PAUSE + 10)
    finally:
        over.set()
    assert process.returncode == 0, err
    assert cuts == CUTS
    there = far.machine.path(f"{run['host_folder']}/attempts/1/supervisor.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in there]
    assert kinds.count("engine-started") == 1
    assert "ended" not in kinds
    events = [json.loads(line) for line in (Path(run["folder"]) / "events.jsonl").read_text().splitlines()]
    assert [e["seq"] for e in events] == list(range(len(events)))
    assert sum(e["kind"] == "ready" and "port" in e["data"] for e in events) == 1, "the supervisor's word, once"
    assert firstlight("down", "far").returncode == 0
    assert far.of_user() == []
    lines = far.machine.path(f"{run['host_folder']}/attempts/1/engine.log").read_text()
    said = {verb: p.communicate(timeout=60) for verb, p in beside.items()}
    assert {verb: p.returncode for verb, p in beside.items()} == dict.fromkeys(beside, 0), said
    assert said["logs far -f"][0] == lines, "every byte once"
    watched = [json.loads(line) for line in said["watch far -o jsonl"][0].splitlines()]
    phases = [e["data"]["name"] for e in watched if e["kind"] == "phase"]
    assert "ready" in phases
    assert len(phases) == len(set(phases)), "no line was read twice"
    assert out


def test_a_host_that_is_away_says_nothing_of_its_run(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    """Neither is the run called failed, nor does `down` say that it is over."""
    assert firstlight(*up_there(gguf_there), seconds=600).returncode == 0
    far.machine.run("mv", far.sshd, f"{far.sshd}.away")
    far.cut()
    try:
        (shown,) = firstlight.runs()
        assert shown["state"] in ("serving", "verified")
        assert "unreachable" in shown["reason"] or "ssh" in shown["reason"] or "lost" in shown["reason"], shown["reason"]
        refused = firstlight("down", "far")
        assert refused.returncode != 0
        assert "host-unreachable" in refused.stderr
        assert firstlight("logs", "far").returncode != 0
    finally:
        far.machine.run("mv", f"{far.sshd}.away", far.sshd)
    assert any("supervisor.pyz" in row for row in far.of_user()), "it served all the while"
    assert firstlight("down", "far").returncode == 0
    assert far.of_user() == []


@pytest.mark.llamacpp
def test_a_model_that_only_this_machine_has_is_copied_and_no_disk_is_overfilled(
    far: Far, firstlight: Firstlight, demo_gguf: Path, tmp_path: Path
) -> None:
    here = tmp_path / "only here" / "smöl one.gguf"
    here.parent.mkdir()
    shutil.copy(demo_gguf, here)
    planned = firstlight("plan", str(here), "--host", HOST, "--engine", "llamacpp")
    assert planned.returncode == 0, planned.stderr
    assert far.of_user() == []
    assert not far.machine.path(f"{HOME_THERE}/.cache/firstlight/models").exists(), "looking copies nothing"
    cache = f"{HOME_THERE}/.cache"
    far.inside("runuser", "-u", USER, "--", "mkdir", "-p", cache)
    far.inside("mount", "-t", "tmpfs", "-o", f"size=120m,uid={far.uid}", "tmpfs", cache)
    try:
        refused = firstlight(*up_there(str(here)), seconds=600)
    finally:
        far.inside("umount", "-l", cache)
    assert refused.returncode == 4, refused.stderr
    assert "no-space" in refused.stderr
    started = firstlight(*up_there(str(here)), seconds=600)
    assert started.returncode == 0, started.stderr
    there = json.loads((Path(firstlight.runs()[0]["folder"]) / "checkpoint.json").read_text())["path"]
    assert there.startswith(f"{HOME_THERE}/.cache/firstlight/models/")
    assert there.endswith("/smöl one.gguf")
    assert far.machine.path(there).read_bytes() == demo_gguf.read_bytes()
    assert firstlight("down", "far").returncode == 0


def test_a_plan_for_another_host_is_applied_there_and_fetch_can_bring_the_model(
    far: Far, firstlight: Firstlight, demo_gguf: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "brought"
    folder.mkdir()
    shutil.copy(demo_gguf, folder / "x.gguf")
    fetched = firstlight("fetch", str(folder / "x.gguf"), "--host", HOST, "--yes", "-o", "json")
    assert fetched.returncode == 0, fetched.stderr
    there = json.loads(fetched.stdout)["path"]
    assert there.startswith(HOME_THERE)
    assert far.machine.path(there).stat().st_size == demo_gguf.stat().st_size
    plan = str(tmp_path / "plan.json")
    planned = firstlight("plan", there, "--host", HOST, "--engine", "llamacpp", "--save", plan)
    assert planned.returncode == 0, planned.stderr
    document = json.loads(Path(plan).read_text())
    assert document["intent"]["host"] == HOST
    assert document["checkpoint"]["path"] == there


def copied(folder: Path) -> str:
    host = SshHost(HOST)
    return asyncio.run(copy_model(host, plan_copy(str(folder), host), lambda done, total: None))


@pytest.mark.parametrize("tool", ["rsync", "sftp"])
def test_folders_are_copied_with_what_their_links_lead_to(far: Far, tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not on this machine")
    blobs, folder = tmp_path / "blobs", tmp_path / f"-a model: {tool} ü"
    (folder / "sub folder").mkdir(parents=True)
    blobs.mkdir()
    (blobs / "b1").write_bytes(b"weights")
    (folder / 'model "one".safetensors').symlink_to(blobs / "b1")
    (folder / "sub folder" / "config.json").write_text("{}")
    (folder / "sub folder" / "round").symlink_to(folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "big").write_bytes(b"x")
    if tool == "sftp":
        far.machine.run("mv", "/usr/bin/rsync", "/usr/bin/rsync.away")
    try:
        there = copied(folder)
        (blobs / "b1").write_bytes(b"others!")
        another = copied(folder)
    finally:
        far.machine.run("mv", "/usr/bin/rsync.away", "/usr/bin/rsync")
    assert there != another, "other content has another place"
    assert there.startswith(f"{HOME_THERE}/.cache/firstlight/models/")
    assert there.endswith(f"/{folder.name}")
    files = sorted(far.inside("find", there, "-type", "f", "-printf", "%P\\n").splitlines())
    assert files == ['model "one".safetensors', "sub folder/config.json"]
    assert far.machine.path(f'{there}/model "one".safetensors').read_bytes() == b"weights"
    assert far.machine.path(f'{another}/model "one".safetensors').read_bytes() == b"others!"


def test_a_copy_goes_on_through_cuts(far: Far, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    for i in range(24):
        (folder / f"shard-{i}.safetensors").write_bytes(os.urandom(8 << 20))
    seen: list[int] = []
    host = SshHost(HOST)
    copy = plan_copy(str(folder), host)
    with far.cutting(3, every=0.3) as cuts:
        there = asyncio.run(copy_model(host, copy, lambda done, total: seen.append(done)))
    assert cuts
    assert seen[-1] == copy.total == 24 * (8 << 20)
    assert all((far.machine.path(there) / p.name).read_bytes() == p.read_bytes() for p in folder.iterdir())


def test_a_disk_without_room_is_refused_before_a_byte_moves(far: Far, tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(1 << 43)  # a hole: 8 TiB by its size
    with pytest.raises(FirstlightError) as refused:
        copied(folder)
    assert (refused.value.code, refused.value.exit_code) == ("no-space", 4)
    assert any(e.startswith("available ") for e in refused.value.evidence)


@pytest.mark.llamacpp
def test_a_key_is_shipped_into_a_file_of_its_owner_alone(far: Far, firstlight: Firstlight, gguf_there: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("canary-5dd01")
    key.chmod(0o600)
    started = firstlight(*up_there(gguf_there, "--api-key-file", str(key)), seconds=600)
    assert started.returncode == 0, started.stderr
    found = far.machine.run("grep", "-rla", "canary-5dd01", HOME_THERE, "/tmp/firstlight-" + far.inside("id", "-u", USER).strip()).stdout
    (path,) = found.splitlines()
    assert far.inside("stat", "-c", "%a %U", path).split() == ["600", USER]
    assert "canary-5dd01" not in far.inside("ps", "-eo", "args")
    assert firstlight("down", "far").returncode == 0


def test_a_host_without_python_can_be_probed_and_says_what_is_missing(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    hidden = [p for p in far.inside("sh", "-c", "ls /usr/bin/python3* /usr/local/bin/python3* 2>/dev/null || true").split() if p]
    for path in hidden:
        far.inside("mv", path, f"{path}.away")
    try:
        probed = firstlight("probe", "--host", HOST)
        assert probed.returncode == 0, probed.stderr
        refused = firstlight(*up_there(gguf_there))
        assert refused.returncode != 0
        assert "python" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        for path in hidden:
            far.inside("mv", f"{path}.away", path)
