"""Whose processes are these? Finds what a killed supervisor left, proves that it is ours, adopts it or ends it.

Nothing is touched on a name or a pid alone: the proof is the recorded start time, the run's cgroup, the engine's session, or the marker
FIRSTLIGHT_RUN in the process's environment (see `members` of the supervisor).
"""

import json
import posixpath
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.ports import Host
from firstlight.core.run import LaunchSpec, ProcessRef
from firstlight.launch.archive import supervisor_archive
from firstlight.launch.client import ISOLATED, LOG, REQUEST, Options, SupervisorClient, prepare, python_of


class OwnedProcess(Struct, frozen=True, kw_only=True):
    """proof: engine (pid and start time) | cgroup | session | marker | child. state: as in /proc (R, S, D, T, …)."""

    pid: int
    proof: str
    state: str
    command: str


class Ownership(Struct, frozen=True, kw_only=True):
    """What lives of a run. supervised: a supervisor holds the run's lock. orphaned: processes live and nobody supervises them."""

    run: str
    supervised: bool
    supervisor_state: str | None = None
    supervisor_pid: int | None = None
    recorded_state: str | None = None
    engine: dict[str, Any] | None = None
    processes: list[OwnedProcess] = []

    @property
    def orphaned(self) -> bool:
        return bool(self.processes) and not self.supervised


class MarkedProcess(Struct, frozen=True, kw_only=True):
    """A process that carries a run's marker, whatever became of the run's folder."""

    run: str
    pid: int
    start_ticks: int
    command: str


def find_processes(host: Host, folder: str) -> Ownership:
    """What lives of the run in `folder`, looked at now."""
    return msgspec.convert(SupervisorClient(host, folder).find(), Ownership)


def find_marked(host: Host, *, scratch: str) -> list[MarkedProcess]:
    """Every process of any run on the host. scratch: a folder where the tool may be put."""
    tool = posixpath.join(scratch, "supervisor.pyz")
    host.write(tool, supervisor_archive(), 0o600)
    done = host.run([python_of(host), *ISOLATED, tool, "find-all"], timeout=60)
    return msgspec.convert(json.loads(done.stdout), list[MarkedProcess]) if done.ok else []


def stop_orphans(host: Host, folder: str) -> dict[str, Any]:
    """Ends what lives of an unsupervised run, gracefully first. Returns the proof (`clean`, processes, port, shared memory)."""
    return SupervisorClient(host, folder).sweep()


def adopt(host: Host, folder: str) -> SupervisorClient:
    """A new supervisor for an engine that outlived its own. Its output cannot be read any more, its exit status not be known.

    Raises FirstlightError `nothing-to-adopt` where no engine of the run lives, `already-supervised` where it has a supervisor.
    """
    found = find_processes(host, folder)
    if found.engine is None and not found.supervised:
        raise FirstlightError("nothing-to-adopt", "no engine of this run lives", evidence=(f"folder: {folder}",))
    spec, options = _request_of(host, folder)
    argv = prepare(host, folder=folder, spec=spec, options=options, run=found.run, adopt=found.engine)
    pid = host.spawn(argv, log=posixpath.join(folder, LOG))
    client = SupervisorClient(host, folder)
    client.wait_for_start(pid)
    return client


def _request_of(host: Host, folder: str) -> tuple[LaunchSpec, Options]:
    try:
        request = json.loads(host.read(posixpath.join(folder, REQUEST)))
        return msgspec.convert(request["spec"], LaunchSpec), msgspec.convert(request["options"], Options)
    except (HostError, ValueError, KeyError, msgspec.ValidationError) as e:
        raise FirstlightError("nothing-to-adopt", "the run's request cannot be read", evidence=(str(e),)) from None


def process_ref(found: Ownership) -> ProcessRef | None:
    """The engine as the run's record keeps it."""
    return ProcessRef(pid=found.engine["pid"], start_ticks=found.engine["start_ticks"]) if found.engine else None
