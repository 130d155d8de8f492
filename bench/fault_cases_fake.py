"""Faults on the fake engine: fast, so every phase and every trick of the environment is here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fault_kit import (
    HOST,
    Case,
    Kit,
    Result,
    Skip,
    engine_pid,
    event,
    guardian_pid,
    log_has,
    memory_limit,
    named,
    post,
    strike,
    supervisor_pid,
    until,
    wait,
    with_changes,
)

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.plan import JsonPatch, OverlaySpec
from firstlight.launch.caches import with_caches
from firstlight.launch.client import Alive, Options, Restart, SupervisorClient, SupervisorStatus
from firstlight.launch.overlay import lay_overlay
from firstlight.launch.ownership import adopt, find_marked, find_processes
from firstlight.launch.supervisor import procfs

CASES: list[Case] = []
LIVENESS = Alive(interval_seconds=0.3, patience_seconds=1.5)
RESTART = Restart(policy="on-failure", max_restarts=2, backoff_seconds=0.1)


def case(fault: str, engine: str = "fake") -> Any:
    def add(run: Any) -> Any:
        CASES.append(Case(fault, engine, run))
        return run

    return add


def died(client: SupervisorClient, since: float) -> Result:
    found = until(client, "died", after=since - 0.01)
    ended = until(client, "ended", after=since - 0.01)
    data = found.data
    how = data.get("signal") or f"exit {data.get('returncode')}"
    return Result(found.time - since, f"reported as {data['reason']} ({how}), swept, clean={ended.data['clean']}")


def unsupervised(client: SupervisorClient, since: float, *, timeout: float = 20.0) -> Result:
    """The supervisor is dead: its guardian says so and ends what is left, nobody asks it to."""
    died = until(client, "supervisor-died", after=since - 0.01, seconds=timeout)
    ended = until(client, "ended", after=since - 0.01, seconds=timeout)
    assert not client.status().answering, "the supervisor still answers"
    left = find_processes(HOST, client.folder).processes
    assert not left, f"still there: {left}"
    proof = ended.data["proof"]
    return Result(
        died.time - since,
        f"told by its guardian; {len(proof['ended'])} processes gone after {ended.time - since:.1f} s, clean={proof['clean']}",
    )


def unseen(client: SupervisorClient, since: float, *, grace: float) -> tuple[float, SupervisorStatus]:
    """The supervisor is stopped: seconds until that is seen, and how `down` left it."""
    assert not client.status().answering
    return time.time() - since, client.stop(grace_seconds=grace)


def unguarded(client: SupervisorClient) -> float:
    """Supervisor and guardian killed at once; returns when."""
    guardian, boss = guardian_pid(client), supervisor_pid(client)
    since = strike(guardian)
    strike(boss)
    wait(lambda: not find_processes(HOST, client.folder).supervised)
    return since


def swept(client: SupervisorClient, since: float) -> tuple[float, dict[str, Any]]:
    """Nobody watches over the engine: seconds until that is seen, and the proof of the next command, which ends what is left."""
    wait(lambda: find_processes(HOST, client.folder).orphaned)
    return time.time() - since, client.sweep()


# engine processes


@case("SIGKILL of the engine while it loads")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("slow"))
    wait(lambda: log_has(client, "still loading"))
    return died(client, strike(engine_pid(client)))


@case("SIGKILL of the engine while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    return died(client, strike(engine_pid(client)))


@case("SIGSEGV of the engine while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    return died(client, strike(engine_pid(client), "SIGSEGV"))


@case("SIGSTOP of the engine while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    since = strike(engine_pid(client), "SIGSTOP")
    paused = until(client, "paused")
    ended = client.stop()
    return Result(paused.time - since, f"reported as paused, not as dead; down ended it, clean={ended.exit['proof']['clean']}")


@case("SIGKILL of the engine core while it loads")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("slow"))
    wait(lambda: log_has(client, "still loading"))
    return died(client, strike(named(client, "--role EngineCore")))


@case("SIGKILL of the engine core while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    return died(client, strike(named(client, "--role EngineCore")))


@case("SIGSEGV of the engine core while it loads")
def _(kit: Kit) -> Result:
    since = time.time()
    client = kit.start(kit.fake("segfault-loading"))
    result = died(client, since)
    return Result(None, f"{result.outcome}, {time.time() - since:.1f} s after the start")


@case("SIGKILL of a worker while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    return died(client, strike(named(client, "--role Worker_TP0")))


@case("SIGKILL of a worker that left session and environment")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    return died(client, strike(named(client, "--role Worker_TP1")))


@case("engine killed while workers, one of them deaf and detached, hold shared memory")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    return died(client, strike(engine_pid(client)))


@case("engine ignores SIGTERM")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf", stop_grace_seconds=1.0)))
    ended = client.stop()
    return Result(None, f"killed after its grace, clean={ended.exit['proof']['clean']}")


@case("50 zombie children")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake({"steps": [{"zombies": 50}, {"serve": {}}]})))
    ended = client.stop()
    return Result(None, f"ended, clean={ended.exit['proof']['clean']}")


@case("OOM killer (memory cgroup) while it loads")
def _(kit: Kit) -> Result:
    with memory_limit(120) as procs:
        spec = kit.fake({"steps": [{"log": "loading"}, {"allocate": 400 << 20}, {"serve": {}}]})
        client = kit.start(with_changes(spec, argv=["/bin/sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *spec.argv]))
        since = time.time()
        found = until(client, "died")
        until(client, "ended")
        return Result(None, f"SIGKILL reported as oom_killed={found.data['oom_killed']} {found.time - since:.1f} s after the start")


# what the engine does


@case("engine never gets ready")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("never-ready"))
    wait(lambda: log_has(client, "Starting to load"))
    time.sleep(1)
    assert client.status().state == "starting"
    return Result(None, f"stays starting, down ended it, clean={client.stop().exit['proof']['clean']}")


@case("log silence: not a line, never ready")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("silent"))
    time.sleep(1)
    status = client.status()
    assert (status.state, status.log["bytes"]) == ("starting", 0)
    return Result(None, f"stays starting with 0 bytes of log, down ended it, clean={client.stop().exit['proof']['clean']}")


@case("engine dies right after ready")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake({"steps": [{"serve": {}}, {"sleep": 0.6}, {"touch": str(kit.root / "now")}, {"exit": 1}]}))
    until(client, "ready")
    wait((kit.root / "now").exists)
    return died(client, (kit.root / "now").stat().st_mtime)


@case("engine dies right after ready, again and again: crash loop")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake({"steps": [{"serve": {}}, {"sleep": 0.6}, {"exit": 1}]}), options=Options(restart=RESTART))
    until(client, "ended")
    kinds = [e.kind for e in client.past_events()]
    return Result(None, f"{kinds.count('restarting')} restarts with back-off, then stopped as {client.status().reason}")


@case("engine answers every request with 500")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("error-500"), options=Options(liveness=LIVENESS))
    since = until(client, "ready").time
    found = until(client, "wedged")
    return Result(found.time - since, f"not alive: status {found.data['status']}")


@case("engine answers garbage")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("garbage"), options=Options(liveness=LIVENESS))
    since = until(client, "ready").time
    found = until(client, "wedged")
    return Result(found.time - since, f"not alive: {found.data['problem']}")


@case("engine hangs on the first request")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("hang-first"), options=Options(liveness=LIVENESS, restart=RESTART))
    since = until(client, "ready").time
    found = until(client, "wedged")
    until(client, "restarted")
    dumped = log_has(client, "most recent call first")
    return Result(found.time - since, f"wedged after {LIVENESS.patience_seconds:g} s of patience, stacks dumped={dumped}, restarted")


@case("engine is busy for long: no false alarm")
def _(kit: Kit) -> Result:
    steps: list[dict[str, Any]] = [{"serve": {"running": 3}}]
    steps += [s for n in range(1, 12) for s in ({"http": {"generated": n, "health": "hang" if n > 2 else 200}}, {"sleep": 0.4})]
    client = kit.start(kit.fake({"steps": [*steps, {"touch": str(kit.root / "done")}, {"hang": True}]}), options=Options(liveness=LIVENESS))
    wait((kit.root / "done").exists)
    assert event(client, "wedged") is None
    return Result(None, "stays ready while tokens advance, although /health hangs")


@case("log flood of 100 MB")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("flood"))
    ready = until(client, "ready")
    size = (Path(client.folder) / "engine.log").stat().st_size
    assert size > 100_000_000
    assert log_has(client, "flood ends")
    return Result(None, f"{size / 1e6:.0f} MB kept, ready after {ready.data['seconds']:.1f} s")


# the supervisor


@case("SIGKILL of the supervisor while the engine loads")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake("slow"))
    wait(lambda: log_has(client, "still loading"))
    return unsupervised(client, strike(supervisor_pid(client)))


@case("SIGKILL of the supervisor while the engine serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    return unsupervised(client, strike(supervisor_pid(client)))


@case("SIGSEGV of the supervisor while the engine serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    return unsupervised(client, strike(supervisor_pid(client), "SIGSEGV"))


@case("SIGSTOP of the supervisor")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("ready")))
    since = strike(supervisor_pid(client), "SIGSTOP")
    assert not client.status().answering
    noticed = time.time() - since
    state = find_processes(HOST, client.folder).supervisor_state
    client.stop(grace_seconds=1)
    return Result(noticed, f"does not answer (5 s limit), its state is {state}; down killed it and swept the engine")


@case("SIGKILL of the supervisor, and the engine ignores SIGTERM")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    return unsupervised(client, strike(supervisor_pid(client)))


@case("SIGKILL of supervisor and guardian, and the engine ignores SIGTERM")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    noticed, proof = swept(client, unguarded(client))
    return Result(noticed, f"the next command finds it by its records, ended {len(proof['ended'])} process, clean={proof['clean']}")


@case("SIGKILL of the guardian")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    strike(guardian_pid(client))
    time.sleep(1.0)
    assert client.status().state == "ready"
    return Result(None, f"serves on; down ended it, clean={client.stop().exit['proof']['clean']}")


@case("SIGSTOP of the guardian, then SIGKILL of the supervisor")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    guardian = guardian_pid(client)
    strike(guardian, "SIGSTOP")
    noticed, proof = swept(client, strike(supervisor_pid(client)))
    wait(lambda: not os.path.exists(f"/proc/{guardian}"))
    return Result(noticed, f"the next command ends what is left, clean={proof['clean']}")


@case("SIGKILL of the supervisor's whole process group")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    since = time.time()
    os.killpg(os.getpgid(supervisor_pid(client)), signal.SIGKILL)
    return unsupervised(client, since)


@case("run folder removed and the supervisor killed at once")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    guardian, kept = guardian_pid(client), Path(client.folder, "supervise.json").read_bytes()
    boss = supervisor_pid(client)
    strike(boss, "SIGSTOP")  # or it makes its folder again
    shutil.rmtree(client.folder)
    since = strike(boss)
    wait(lambda: procfs.process(guardian) is None, seconds=20, what="the guardian's end")
    gone = time.time() - since
    left = [p for p, t in kit.members if procfs.same(p, t)]
    Path(client.folder).mkdir(exist_ok=True)
    Path(client.folder, "supervise.json").write_bytes(kept)
    client.sweep()
    return Result(None, f"its guardian ended everything within {gone:.1f} s without a record to read; {len(left)} left")


@case("SIGKILL of the supervisor while it waits to start a dead engine again")
def _(kit: Kit) -> Result:
    patient = Restart(policy="on-failure", max_restarts=2, backoff_seconds=30.0)
    client = kit.ready(kit.start(kit.fake("workers"), options=Options(restart=patient)))
    strike(engine_pid(client))
    until(client, "restarting")
    return unsupervised(client, strike(supervisor_pid(client)))


@case("SIGKILL of the supervisor while it ends a deaf engine")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf", stop_grace_seconds=30.0)))
    boss = supervisor_pid(client)
    asked = threading.Thread(target=client.stop)
    asked.start()
    until(client, "stopping")
    result = unsupervised(client, strike(boss))
    asked.join(60)
    assert not asked.is_alive(), "down still waits"
    return result


@case("disk full for the run folder, then SIGKILL of the supervisor")
def _(kit: Kit) -> Result:
    disk = kit.small_disk(2)
    client = kit.ready(kit.start(kit.fake("deaf"), folder=disk / "run"))
    boss = supervisor_pid(client)
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"\0" * 4096):
            pass
    since = strike(boss)
    wait(lambda: not find_processes(HOST, client.folder).supervised and client.status().over, what="the run's end on record")
    left = find_processes(HOST, client.folder).processes
    gone = time.time() - since
    assert not left, f"still there: {left}"
    return Result(
        None,
        f"its guardian ended it, and its last record is written from the room kept for it: {client.status().reason} after {gone:.1f} s",
    )


@case("SIGKILL of the supervisor of an engine that is to be kept")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain"), options=Options(on_supervisor_death="keep")))
    since = strike(supervisor_pid(client))
    wait(lambda: find_processes(HOST, client.folder).orphaned)
    noticed = time.time() - since
    again = adopt(HOST, client.folder)
    wait(lambda: again.status().state == "ready")
    return Result(noticed, "adopted by a new supervisor, serves on")


@case("SIGKILL of supervisor and engine at once, detached workers stay")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    engine, since = engine_pid(client), strike(supervisor_pid(client))
    os.kill(engine, signal.SIGKILL)
    return unsupervised(client, since)


@case("SIGKILL of supervisor, guardian and engine at once, detached workers stay")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("workers")))
    engine, since = engine_pid(client), unguarded(client)
    os.kill(engine, signal.SIGKILL)
    noticed, proof = swept(client, since)
    return Result(noticed, f"{len(proof['ended'])} orphans found by cgroup, session and records, ended, clean={proof['clean']}")


@case("SIGKILL of `firstlight launch` while the engine loads")
def _(kit: Kit) -> Result:
    spec = kit.fake("slow")
    kit.ports.add(spec.port)
    env = {**os.environ, "XDG_STATE_HOME": str(kit.root / "state")}
    argv = [sys.executable, "-m", "firstlight.app.main", "launch", "--port", str(spec.port), "--name", "cut", "--", *spec.argv]
    runner = "import sys; from firstlight.app.main import main; sys.argv[0] = 'firstlight'; sys.exit(main())"
    argv = [sys.executable, "-c", runner, *argv[3:]]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        folder = wait(lambda: next(kit.root.glob("state/firstlight/runs/*/attempts/1/supervisor.json"), None))
        client = SupervisorClient(HOST, str(folder.parent))
        kit.clients.append(client)
        wait(lambda: log_has(client, "still loading"))
        command.kill()
    shown = subprocess.run([sys.executable, "-c", runner, "get", "runs"], env=env, capture_output=True, text=True, check=True).stdout
    assert "cut" in shown
    subprocess.run([sys.executable, "-c", runner, "down", "cut"], env=env, capture_output=True, check=True)
    return Result(None, "`get runs` shows the run, `down` stopped it")


# two at once, strangers


@case("two firstlights start the same run at once")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    since = time.time()
    try:
        kit.start(kit.fake("plain"), folder=Path(client.folder))
    except FirstlightError as e:
        assert client.status().state == "ready"
        return Result(time.time() - since, f"the second is refused: {e.code}; the first serves on")
    raise AssertionError("the second was not refused")


@case("two runs want the same port")
def _(kit: Kit) -> Result:
    first = kit.ready(kit.start(kit.fake("plain")))
    since = time.time()
    second = kit.start(kit.fake("plain", port=first.status().port))
    found = until(second, "failed")
    kit.ports.discard(first.status().port)
    assert first.status().state == "ready"
    first.stop()
    return Result(found.time - since, f"the second fails before it starts: {found.data['reason']}, naming the holder")


@case("port stolen between check and bind")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake({"steps": [{"sleep": 3}, {"serve": {}}]}))
    until(client, "engine-started")
    thief = [sys.executable, kit.fake("plain").argv[1], "plain", "--port", str(client.status().port)]
    with subprocess.Popen(thief, stdout=subprocess.DEVNULL) as stranger:
        try:
            since = wait(lambda: time.time() if procfs.listening_inodes(client.status().port) else None)
            stolen = until(client, "port-stolen")
            until(client, "ended")
            assert event(client, "ready") is None
            assert stranger.poll() is None
        finally:
            stranger.kill()
    return Result(stolen.time - since, "a stranger's 200 is not taken for readiness; the stranger is named and not touched")


@case("record names a pid that now belongs to somebody else")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    client.stop()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as innocent:
        try:
            for name in ("supervisor.json", "engine.json"):
                path = Path(client.folder, name)
                record = json.loads(path.read_text())
                ref = {"pid": innocent.pid, "start_ticks": 1, "boot_id": procfs.boot_id()}
                record.update(state="ready", engine=ref, pid=innocent.pid, start_ticks=1, members=[[innocent.pid, 1]])
                path.write_text(json.dumps(record))
            proof = client.sweep()
            assert innocent.poll() is None, "an innocent process was ended"
        finally:
            innocent.kill()
    return Result(None, f"not proven ours by its start time, left alone; ended {proof['ended']}")


@case("record of another boot")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    client.stop()
    path = Path(client.folder, "supervisor.json")
    me = procfs.process(os.getpid())
    assert me is not None
    ref = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": "another"}
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "state": "ready", "engine": ref}))
    Path(client.folder, "engine.json").unlink()
    assert find_processes(HOST, client.folder).processes == []
    ended = client.sweep()["ended"]
    path.write_text(before)
    return Result(None, f"names no process of this boot; ended {ended}")


# disks and files


@case("disk full for the log while it serves")
def _(kit: Kit) -> Result:
    disk = kit.small_disk(4)
    script = {
        "steps": [
            {"serve": {}},
            {"sleep": 2},
            {"touch": str(kit.root / "now")},
            {"flood": 8_000_000},
            {"log": "after the flood"},
            {"hang": True},
        ]
    }
    client = kit.ready(kit.start(kit.fake(script), folder=disk / "run"))
    wait((kit.root / "now").exists)
    since = (kit.root / "now").stat().st_mtime
    lost = wait(lambda: client.status().log["lost_bytes"])
    noticed = time.time() - since
    status = client.status()
    assert status.state == "ready"
    assert post(status.port, {"model": "fake", "prompt": "x"})[0] == 200
    (disk / "run" / "engine.log").unlink()  # somebody makes room
    outcome = f"serves on, {lost} bytes of log lost and counted ({status.log['problem']})"
    return Result(noticed, outcome)


@case("disk full for the run folder at the start")
def _(kit: Kit) -> Result:
    disk = kit.small_disk(1)
    (disk / "ballast").write_bytes(b"x" * ((1 << 20) - 8192))
    since = time.time()
    try:
        kit.start(kit.fake("plain"), folder=disk / "run")
    except FirstlightError as e:
        return Result(time.time() - since, f"refused before anything starts: {e.code}")
    raise AssertionError("it started on a full disk")


@case("disk full for the overlay")
def _(kit: Kit) -> Result:
    disk, model = kit.small_disk(1), _folder(kit)
    (disk / "ballast").write_bytes(b"x" * ((1 << 20) - 4096))
    before = sorted(os.listdir(disk))
    since = time.time()
    try:
        lay_overlay(HOST, Checkpoint(ref="m", format="safetensors", path=str(model)), _patch(), root=str(disk / "overlays"))
    except FirstlightError as e:
        left = [str(p) for p in (disk / "overlays").rglob("*")] if (disk / "overlays").exists() else []
        assert not left, left
        assert before[0] in os.listdir(disk)
        return Result(time.time() - since, f"{e.code} with the place named, nothing half built is left")
    raise AssertionError("an overlay was laid on a full disk")


@case("disk full for the compile cache")
def _(kit: Kit) -> Result:
    from firstlight.core.machine import EngineInstall, Machine

    disk = kit.small_disk(1)
    (disk / "ballast").write_bytes(b"x" * (1 << 20))
    spec = with_caches(kit.fake("plain"), EngineInstall(engine="vllm"), Machine(hostname="h"), host=HOST, root=str(disk))
    client = kit.ready(kit.start(spec))
    return Result(None, f"starts all the same, with the engine's own cache place; state {client.status().state}")


@case("read-only model folder")
def _(kit: Kit) -> Result:
    model = _folder(kit)
    kit.watch(model)
    disk = kit.small_disk(1)
    subprocess.run(["mount", "--bind", str(model), str(disk)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
    try:
        overlay = lay_overlay(HOST, Checkpoint(ref="m", format="safetensors", path=str(disk)), _patch(), root=str(kit.root / "overlays"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    return Result(None, f"overlaid with {len(overlay.files)} files, the folder untouched")


@case("overlay damaged between two starts")
def _(kit: Kit) -> Result:
    model = _folder(kit)
    kit.watch(model)
    overlay = lay_overlay(HOST, Checkpoint(ref="m", format="safetensors", path=str(model)), _patch(), root=str(kit.root / "overlays"))
    Path(overlay.path, "config.json").write_text("{}")
    Path(overlay.path, "model.safetensors").unlink()
    again = lay_overlay(HOST, Checkpoint(ref="m", format="safetensors", path=str(model)), _patch(), root=str(kit.root / "overlays"))
    assert Path(again.path, "model.safetensors").read_bytes() == b"w" * 1000
    return Result(None, "found by hash and size, rebuilt at the same path")


def _folder(kit: Kit) -> Path:
    folder = kit.root / "tiny model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "x", "kv": 1}')
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    return folder


def _patch() -> OverlaySpec:
    return OverlaySpec(patches=[JsonPatch(file="config.json", path=["kv"], remove=True)], because="fault matrix")


def _shard(kit: Kit) -> Path:
    shard = kit.root / "shard.safetensors"
    shard.write_bytes(b"w" * (20 << 20))
    return shard


def _loading(kit: Kit, shard: Path) -> SupervisorClient:
    read = {"read": str(shard), "size": 20 << 20, "seconds": 0.1}
    client = kit.start(kit.fake({"steps": [{"log": "reading"}, read, {"read": str(shard), "size": 20 << 20}, {"serve": {}}]}))
    wait(lambda: log_has(client, "reading"))
    time.sleep(0.3)
    return client


@case("shard cut while it is read")
def _(kit: Kit) -> Result:
    shard = _shard(kit)
    client = _loading(kit, shard)
    os.truncate(shard, 5 << 20)
    since = until(client, "died").time
    assert log_has(client, "incomplete shard")
    return Result(None, died(client, since).outcome + "; the log names the shard")


@case("shard deleted while it is read")
def _(kit: Kit) -> Result:
    shard = _shard(kit)
    client = _loading(kit, shard)
    shard.unlink()
    since = until(client, "died").time
    assert log_has(client, "FileNotFoundError")
    return Result(None, died(client, since).outcome + "; the log names the shard")


@case("shard swapped for a shorter one while it is read")
def _(kit: Kit) -> Result:
    shard = _shard(kit)
    client = _loading(kit, shard)
    other = shard.with_suffix(".new")
    other.write_bytes(b"z" * 1000)
    os.replace(other, shard)
    since = until(client, "died").time
    assert log_has(client, "incomplete shard")
    return Result(None, died(client, since).outcome + "; the log names the shard")


@case("model folder vanishes before it is read")
def _(kit: Kit) -> Result:
    client = kit.start(kit.fake({"steps": [{"sleep": 0.5}, {"read": "/no/such/model/shard.safetensors"}, {"serve": {}}]}))
    since = until(client, "died").time
    return died(client, since)


# the run folder


@case("run folder removed while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    Path(client.folder, "run.json").write_text('{"name": "kept"}')
    time.sleep(6)
    since = time.time()
    shutil.rmtree(client.folder)
    wait(lambda: Path(client.folder, "supervisor.json").exists() and client.status().answering)
    assert "kept" in Path(client.folder, "run.json").read_text()
    return Result(time.time() - since, "made again by the supervisor with records and socket; the engine never stopped")


@case("records in the run folder overwritten with garbage while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    for name in ("supervisor.json", "engine.json", "supervise.json"):
        Path(client.folder, name).write_text("\0garbage")
    ended = client.stop()
    return Result(None, f"the socket still answers; down ended it, state {ended.state}")


@case("records overwritten with garbage and the supervisor killed")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    pid = supervisor_pid(client)
    for name in ("supervisor.json", "engine.json", "supervise.json"):
        Path(client.folder, name).write_text("\0garbage")
    return unsupervised(client, strike(pid))


@case("records overwritten with garbage, supervisor and guardian killed")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("deaf")))
    since = unguarded(client)
    for name in ("supervisor.json", "engine.json", "supervise.json"):
        Path(client.folder, name).write_text("\0garbage")
    wait(lambda: find_processes(HOST, client.folder).processes)
    noticed = time.time() - since
    marked = {m.pid for m in find_marked(HOST, scratch=str(kit.root))}
    proof = client.sweep()
    assert set(proof["ended"]) <= marked
    return Result(noticed, f"found by the marker in its environment, ended, clean={proof['clean']}")


@case("socket removed while it serves")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain")))
    since = time.time()
    Path(client.folder, "supervisor.sock").unlink()
    wait(lambda: client.status().answering)
    return Result(time.time() - since, "opened again by the supervisor")


@case("secret file gone between plan and start")
def _(kit: Kit) -> Result:
    since = time.time()
    client = kit.start(kit.fake("plain", secret_files={"VLLM_API_KEY": str(kit.root / "gone")}))
    found = until(client, "failed")
    return Result(found.time - since, f"fails before it starts: {found.data['reason']}")


@case("engine's program gone between plan and start")
def _(kit: Kit) -> Result:
    since = time.time()
    client = kit.start(with_changes(kit.fake("plain"), argv=["/no/such/python", "serve"]))
    found = until(client, "failed")
    return Result(found.time - since, f"fails at once: {found.data['reason']}")


@case("the user's event command hangs")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.fake("plain"), options=Options(on_event=["/bin/sh", "-c", "sleep 5"])))
    begun = time.monotonic()
    ended = client.stop()
    return Result(None, f"down took {time.monotonic() - begun:.1f} s all the same, state {ended.state}")


@case("clock jumps back an hour and forward a day while it loads")
def _(kit: Kit) -> Result:
    library = _clock_library(kit)
    offset = kit.root / "offset"
    offset.write_text("0")
    spec = kit.fake({"steps": [{"sleep": 3}, {"serve": {}}, {"hang": True}]})
    os.environ.update(LD_PRELOAD=str(library), FAKE_CLOCK_OFFSET=str(offset))
    try:
        client = kit.start(spec)
    finally:
        os.environ.pop("LD_PRELOAD")
        os.environ.pop("FAKE_CLOCK_OFFSET")
    time.sleep(0.5)
    offset.write_text("-3600")
    time.sleep(0.5)
    offset.write_text("86400")
    ready = until(client, "ready")
    jumped = ready.time - time.time() > 80_000
    begun = time.monotonic()
    os.kill(engine_pid(client), signal.SIGKILL)
    until(client, "died")
    noticed = time.monotonic() - begun
    return Result(noticed, f"ready after {ready.data['seconds']:.1f} s by the monotonic clock; the supervisor's clock had jumped: {jumped}")


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long offset(void) {
  const char *path = getenv("FAKE_CLOCK_OFFSET");
  char text[32] = {0};
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return 0;
  if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
  close(file);
  return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *out) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, out);
  if (id == CLOCK_REALTIME) out->tv_sec += offset();
  return result;
}
"""


def _clock_library(kit: Kit) -> Path:
    if shutil.which("cc") is None:
        raise Skip("no C compiler to shift a process's clock with")
    source, library = kit.root / "clock.c", kit.root / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library
