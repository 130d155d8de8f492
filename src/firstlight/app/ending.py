"""Ending a run: graceful, then not, then the proof that nothing is left."""

import os
import posixpath
import signal
import time
from contextlib import suppress
from typing import Any

from firstlight.app.reconcile import reconcile, record
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.run import TERMINAL, Run, RunState
from firstlight.launch.client import SupervisorClient
from firstlight.launch.ownership import find_processes
from firstlight.probe.hosts import open_host

SUPERVISOR_SECONDS = 5.0
LEAVING_SECONDS = 15.0
WORKER_SECONDS = 120.0  # an `up` that is told to end may have to end an engine first


def end(folder: RunFolder, *, kill: bool = False) -> Run:
    """Stops whatever lives of the run, supervised or orphaned, and who would go on to start it.

    Raises FirstlightError `not-clean` when something stays, `run-in-progress` where who is at work on it cannot be seen.
    """
    run = folder.run if _end_worker(folder, kill=kill) else reconcile(folder)
    client = SupervisorClient(open_host(run.host), folder.attempt_there)
    proof = _proof(client, kill) if _lives(client) else None
    if proof is not None:
        _await_worker(folder, run.attempt, kill=kill)
    if proof is not None and proof.get("clean") is False:
        raise FirstlightError(
            "not-clean", f"something of {run.name!r} is still there", evidence=tuple(describe(proof)), hint="look at it, and try again"
        )
    return record(folder, run, RunState.STOPPED, None) if run.state not in TERMINAL else run


def _end_worker(folder: RunFolder, *, kill: bool) -> bool:
    """An `up` or `rehearse` that has started no engine yet would do so afterwards: it is told to stop, and waited for.

    False: nobody is at work on the run, or its supervisor can be asked.
    """
    store, run = RunStore(), folder.run
    if not _works_on(store, folder, run):
        return False
    pid = store.claimant(run.name)
    if pid is None and store.claimed(run.name):
        said = f"another firstlight is working on {run.name!r}, and cannot be seen from here"
        raise FirstlightError("run-in-progress", said, hint="Ctrl-C there ends it")
    if pid is None or pid == os.getpid():
        return False
    _end_process(store, run.name, pid, kill=kill)
    _end_rehearsals(folder, run)
    return True


def _await_worker(folder: RunFolder, attempt: int, *, kill: bool) -> None:
    """Who is at work on the run sees its engine's end and leaves. One that heals begins the next attempt instead: it is told to stop."""
    store, run, until = RunStore(), folder.run, time.monotonic() + LEAVING_SECONDS
    while store.claimed(run.name) and next((f.path for f, _ in store.active(run.name)), folder.path) == folder.path:
        pid = store.claimant(run.name)
        if pid is None or pid == os.getpid():
            return
        if folder.run.attempt > attempt or time.monotonic() > until:
            _end_process(store, run.name, pid, kill=kill)
            return
        time.sleep(0.05)


def _end_process(store: RunStore, name: str, pid: int, *, kill: bool) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
    until = time.monotonic() + WORKER_SECONDS
    while store.claimed(name):
        if time.monotonic() > until:
            raise FirstlightError("not-clean", f"the firstlight that starts {name!r} does not end", evidence=(f"pid {pid}",))
        time.sleep(0.05)


def _works_on(store: RunStore, folder: RunFolder, run: Run) -> bool:
    """Whether somebody is at work on this very run, and nothing of it lives that could be asked to stop."""
    newest = next((f.path for f, _ in store.active(run.name)), None)
    return newest == folder.path and store.claimed(run.name) and not _lives(SupervisorClient(open_host(run.host), folder.attempt_there))


def _end_rehearsals(folder: RunFolder, run: Run) -> None:
    """They end with the process that wanted them; here that is seen to."""
    host = open_host(run.host)
    place = posixpath.join(run.host_folder or str(folder.path), "rehearsal")
    try:
        found = [i.path for i in host.list(place) if i.kind == "directory"] if host.stat(place) else []
    except HostError:
        found = []
    for path in found:
        client = SupervisorClient(host, path)
        if _lives(client):
            client.stop(grace_seconds=0)


def outlived(folder: RunFolder) -> bool:
    """Whether a run that its record calls over still has a supervisor or an engine: no end is written for its last attempt."""
    attempts = folder.attempts()
    if folder.run.host != "local" or not attempts or (attempts[-1] / "exit.json").exists():
        return False
    return _lives(SupervisorClient(open_host("local"), str(attempts[-1])))


def end_unreadable(folder: RunFolder, *, kill: bool = False) -> bool:
    """Ends what lives of a run whose record is damaged; whether there was anything. The record stays as it is.

    Raises FirstlightError `not-clean` when something stays.
    """
    clients = [SupervisorClient(open_host("local"), str(path)) for path in folder.attempts()]
    living = [c for c in clients if _lives(c)]
    for client in living:
        proof = _proof(client, kill)
        if proof.get("clean") is False:
            raise FirstlightError("not-clean", f"something of {folder.path.name} is still there", evidence=tuple(describe(proof)))
    return bool(living)


def _lives(client: SupervisorClient) -> bool:
    try:
        client.status()
    except FirstlightError as e:
        if e.code == "never-supervised":
            return False
        raise
    found = find_processes(client.host, client.folder)
    return found.supervised or bool(found.processes)


def _proof(client: SupervisorClient, kill: bool) -> dict[str, Any]:
    status = client.stop(grace_seconds=0 if kill else None)
    exit_record = client.exit() or status.exit or {}
    found = exit_record.get("proof")
    proof = found if isinstance(found, dict) else client.sweep()
    return proof if supervisor_ended(client) else {**proof, "clean": False, "supervisor": "does not end"}


def strangers_on_port(folder: RunFolder) -> str | None:
    """Who listens on the port that the run had, now that the run is over; a line for people. None: nobody was seen."""
    proof = (SupervisorClient(open_host(folder.run.host), folder.attempt_there).exit() or {}).get("proof")
    others = proof.get("port_of_others") if isinstance(proof, dict) else None
    if not isinstance(proof, dict) or not others:
        return None
    return f"port {proof.get('port')} is held by {'; '.join(map(str, others))}: no part of this run, and left alone"


def supervisor_ended(client: SupervisorClient, seconds: float = SUPERVISOR_SECONDS) -> bool:
    """The supervisor answers before it is gone itself: it is waited for."""
    deadline = time.monotonic() + seconds
    while find_processes(client.host, client.folder).supervised:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def describe(proof: dict[str, Any]) -> list[str]:
    """The proof as lines: what was looked at and what is still there."""
    return [f"{name}: {value}" for name, value in proof.items() if name != "clean" and value not in (None, [], {})]
