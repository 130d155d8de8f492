"""A host that is a set of recorded texts (tests/facts), for tests that need a whole Machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firstlight.core.errors import HostError
from firstlight.core.machine import Machine
from firstlight.core.ports import Completed
from firstlight.probe.facts import cuda, network, nvidia, processes, storage, system, tools, topology
from firstlight.probe.machine import probe_machine

FACTS = Path(__file__).parent
_STATIC = (
    *system.SYSTEM_FACTS,
    *nvidia.NVIDIA_FACTS,
    cuda.CUDA,
    topology.TOPOLOGY,
    topology.P2P_ALLOWED,
    network.PORTS,
    tools.TOOLS_FACT,
    storage.MOUNTS,
)
_BY_ARGV = {f.argv: f.name for f in _STATIC}
_BY_SCRIPT = {f.argv[2]: f.name for f in (processes.processes([]), storage.space([]))}


class RecordedHost:
    """cases: fact name -> case folder. Everything else is an absent command."""

    name, is_local = "recorded", False

    def __init__(self, cases: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._cases, self._variables = cases, variables

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        name = _BY_ARGV.get(tuple(argv)) or _BY_SCRIPT.get(argv[2] if len(argv) > 2 else "", "")
        if name not in self._cases:
            raise HostError("command-not-found", "not recorded")
        return Completed(returncode=0, stdout=(FACTS / name / self._cases[name] / "stdout").read_bytes(), stderr=b"")

    def stat(self, path: str) -> None:
        """No file is there."""

    def environ(self) -> Mapping[str, str]:
        return self._variables


def recorded_machine(cases: Mapping[str, str], variables: Mapping[str, str] | None = None) -> Machine:
    return probe_machine(RecordedHost(cases, variables or {}))  # type: ignore[arg-type]
