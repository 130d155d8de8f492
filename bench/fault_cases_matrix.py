"""Every signal, every process, every phase, on the fake engine: supervisor, API server, engine core, a worker, a detached worker."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fault_cases_fake import died, unseen, unsupervised
from fault_kit import Case, Kit, Result, engine_pid, log_has, named, strike, supervisor_pid, until, wait

from firstlight.launch.client import SupervisorClient

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
SEEN_SECONDS = 4.5  # members that lived for three seconds are named when they end

WORKERS: list[dict[str, Any]] = [
    {"spawn": {"name": "Worker_TP0", "steps": [{"shm": 65536}, {"hang": True}]}},
    {"spawn": {"name": "Worker_TP1", "detach": True, "clean": True, "steps": [{"shm": 65536}, {"hang": "deaf"}]}},
]
CORE = {"spawn": {"name": "EngineCore", "abandon_children": True, "steps": [*WORKERS, {"sleep": 0.2}, {"touch": "$TMPDIR/core-ready"}]}}
LOADING: list[dict[str, Any]] = [CORE, {"wait_file": "$TMPDIR/core-ready"}, {"log": "still loading"}]
SCRIPTS: dict[str, dict[str, Any]] = {
    "imports": {"steps": [{"log": "still importing"}, {"sleep": 60}]},
    "loads": {"steps": [*LOADING, {"sleep": 60}]},
    "serves": {"steps": [*LOADING, {"serve": {}}]},
}


def begin(kit: Kit, phase: str) -> SupervisorClient:
    """A run that has come to the phase, its processes known to its supervisor."""
    client = kit.start(kit.fake(SCRIPTS[phase]))
    if phase == "serves":
        until(client, "ready")
    else:
        wait(lambda: log_has(client, "still importing" if phase == "imports" else "still loading"))
    if phase != "imports":
        time.sleep(SEEN_SECONDS)
    kit.note(client)
    return client


def supervisor(signal: str, phase: str, kit: Kit) -> Result:
    client = begin(kit, phase)
    since = strike(supervisor_pid(client), signal)
    if signal != "SIGSTOP":
        return unsupervised(client, since)
    noticed, _ = unseen(client, since, grace=1)
    return Result(noticed, "seen to be stopped; down killed it and swept the engine")


def api_server(signal: str, phase: str, kit: Kit) -> Result:
    client = begin(kit, phase)
    since = strike(engine_pid(client), signal)
    if signal != "SIGSTOP":
        return died(client, since)
    found = until(client, "paused", after=since)
    ended = client.stop(grace_seconds=1)
    return Result(found.time - since, f"reported as paused; down ended it, clean={ended.exit['proof']['clean']}")


def member(role: str, signal: str, phase: str, kit: Kit) -> Result:
    client = begin(kit, phase)
    pid = named(client, f"--role {role}")
    since = strike(pid, signal)
    kind = "member-paused" if signal == "SIGSTOP" else "member-exited"
    found = wait(lambda: next((e for e in client.past_events() if e.kind == kind and e.data["pid"] == pid), None), what=kind)
    if signal == "SIGSTOP":
        ended = client.stop(grace_seconds=1)
        return Result(
            found.time - since, f"reported as paused, looked at every 1 to 5 s; down ended it, clean={ended.exit['proof']['clean']}"
        )
    return Result(found.time - since, f"named at once; the engine: {died(client, since).outcome}")


CASES = [
    *(Case(f"matrix: {s} of the supervisor while the engine {p}", "fake", partial(supervisor, s, p)) for s in SIGNALS for p in SCRIPTS),
    *(Case(f"matrix: {s} of the API server while it {p}", "fake", partial(api_server, s, p)) for s in SIGNALS for p in SCRIPTS),
    *(
        Case(f"matrix: {s} of {what} while the engine {p}", "fake", partial(member, role, s, p))
        for role, what in (("EngineCore", "the engine core"), ("Worker_TP0", "a worker"), ("Worker_TP1", "a detached worker"))
        for s in SIGNALS
        for p in ("loads", "serves")
    ),
]
