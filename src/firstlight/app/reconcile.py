"""What a run's record says against what is really there: a killed client or supervisor hides nothing."""

from typing import TYPE_CHECKING

from firstlight.app.store import RunFolder, RunStore, UnreadableRun
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.run import TERMINAL, Run, RunState

if TYPE_CHECKING:
    from firstlight.launch.client import SupervisorStatus

PROVEN = frozenset({RunState.READY, RunState.VERIFIED, RunState.SERVING})


def reconcile(folder: RunFolder) -> Run:
    """The run as it is now; its record is brought up to date where it is behind. Nothing is stopped or started."""
    busy = RunStore().claimed(folder.run.name)
    run = folder.run  # read after: who was at work until just now has written its last word
    if run.state in TERMINAL:
        return run
    try:
        state, reason = _look(folder, run, busy)
    except HostError as e:
        return _changed(run, run.state, e.message)
    if (state, reason) == (run.state, run.reason):
        return run
    now = folder.run
    return record(folder, run, state, reason) if now.updated == run.updated else now  # another firstlight's word is newer


def record(folder: RunFolder, run: Run, state: RunState, reason: str | None) -> Run:
    """The run in its new state, written down where that can be done: a full disk hides nothing and keeps nothing running."""
    try:
        return folder.update(state=state, reason=reason)
    except FirstlightError:
        return _changed(run, state, reason)


def _look(folder: RunFolder, run: Run, busy: bool) -> tuple[RunState, str | None]:
    from firstlight.launch.client import SupervisorClient
    from firstlight.probe.hosts import open_host

    try:
        status = SupervisorClient(open_host(run.host), folder.attempt_there).status()
    except FirstlightError as e:
        if e.code != "never-supervised":
            raise
        return (run.state, None) if busy else (RunState.FAILED, "interrupted before the engine was started")
    if status.answering:
        return _supervised(run, status.state, status.reason, busy)
    return _unsupervised(folder, run, status)


def _supervised(run: Run, state: str, reason: str | None, busy: bool) -> tuple[RunState, str | None]:
    match state:
        case "stopped":
            return RunState.STOPPED, reason
        case "failed":
            return RunState.FAILED, reason
        case "stopping":
            return RunState.STOPPING, reason
        case "restarting":
            return RunState.STARTING, "the engine is started again"
        case "ready":
            why = run.reason if run.state is RunState.READY else None
            return (run.state, why) if run.state in PROVEN or busy else (RunState.READY, "not verified")
        case _:
            return (run.state, None) if busy else (RunState.STARTING, None)


def _unsupervised(folder: RunFolder, run: Run, status: "SupervisorStatus") -> tuple[RunState, str | None]:
    """The supervisor is gone: over, or killed. Processes that outlived it are named."""
    from firstlight.launch.client import DAMAGED
    from firstlight.launch.ownership import find_processes
    from firstlight.probe.hosts import open_host

    if status.over and status.reason != DAMAGED:
        return RunState(status.state), status.reason or run.reason
    found = find_processes(open_host(run.host), folder.attempt_there)
    if found.supervised and status.reason == "supervisor-died":
        return RunState.STOPPING, "its supervisor was killed: the guardian ends what is left"
    if found.supervised:
        return run.state, "the supervisor does not answer"
    if found.processes:
        return run.state, f"orphaned: {len(found.processes)} processes live without a supervisor; firstlight down {run.name} ends them"
    return RunState.FAILED, DAMAGED if status.reason == DAMAGED else "its supervisor was killed"


def _changed(run: Run, state: RunState, reason: str | None) -> Run:
    import msgspec

    return msgspec.structs.replace(run, state=state, reason=reason)


def reconciled_runs(store: RunStore) -> tuple[list[Run], list[UnreadableRun]]:
    """Every run as it is now, newest first, and the folders that cannot be read."""
    runs, unreadable = store.scan()
    return [reconcile(folder) for folder, _ in runs], unreadable
