"""In which phase each process of an engine is; the slowest of a kind is known without a walk over all of them. Pure."""

from collections.abc import Iterator

from firstlight.catalog.milestones import PHASES, RANK

PROCESSES_KEPT = 4096
_OVER = RANK["ready"]


class _Replica:
    """The workers of one data-parallel replica. lifted: how far a rank's line has taken all of them; behind: who came after that."""

    __slots__ = ("behind", "lifted", "members")

    def __init__(self) -> None:
        self.members: list[str] = []
        self.behind: list[str] = []
        self.lifted = 0


class Processes:
    """Phases by process name. Names beyond PROCESSES_KEPT are nobody's engine: they are not kept."""

    def __init__(self) -> None:
        self.phases: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._counts: dict[str, list[int]] = {kind: [0] * len(PHASES) for kind in ("worker", "core", "other")}
        self._replicas: dict[str | None, _Replica] = {}

    def put(self, name: str, phase: str) -> bool:
        """Whether the process is one that is kept, and moved on."""
        before = self.phases.get(name)
        if before is None:
            if len(self.phases) >= PROCESSES_KEPT:
                return False
            self._join(name)
        elif RANK[phase] <= RANK[before]:
            return False
        self._count(name, before, phase)
        self.phases[name] = phase
        return True

    def _join(self, name: str) -> None:
        kind = self._kinds[name] = kind_of(name)
        if kind == "worker":
            replica = self._replicas.setdefault(replica_of(name), _Replica())
            replica.members.append(name)
            replica.behind.append(name)

    def _count(self, name: str, before: str | None, after: str | None) -> None:
        counts = self._counts[self._kinds[name]]
        if before is not None:
            counts[RANK[before]] -= 1
        if after is not None:
            counts[RANK[after]] += 1

    def rename(self, before: str, after: str) -> None:
        """The same process under another name; one that is known under both keeps what the later name has."""
        phase = self.phases.pop(before)
        self._count(before, phase, None)
        del self._kinds[before]
        if after not in self.phases:
            self.put(after, phase)

    def lift(self, phase: str, name: str) -> None:
        """A line that one rank prints for all: the silent ranks of its replica are there as well."""
        replica, rank = self._replicas.get(replica_of(name)), RANK[phase]
        if replica is None:
            return
        for other in replica.members if rank > replica.lifted else replica.behind:
            if other in self.phases:
                self.put(other, phase)
        if rank >= replica.lifted:
            replica.lifted, replica.behind = rank, []

    def reached(self) -> str:
        """The phase of the whole before it is ready: the slowest worker's, unless all engine cores are past it (a barrier)."""
        slowest = max(next(self._starting("worker"), 0), next(self._starting("core"), 0))
        return PHASES[max(slowest, *self._starting("other"), 0)]

    def _starting(self, kind: str) -> Iterator[int]:
        """Ranks of the phases before ready in which processes of a kind are, the lowest first."""
        return (rank for rank, count in enumerate(self._counts[kind][:_OVER]) if count)

    def clear(self) -> None:
        self.phases.clear()
        self._kinds.clear()
        self._replicas.clear()
        for counts in self._counts.values():
            counts[:] = [0] * len(PHASES)


def kind_of(name: str) -> str:
    if is_worker(name):
        return "worker"
    return "core" if name.startswith("EngineCore") else "other"


def is_worker(name: str) -> bool:
    """Whether a process name is one of several ranks (Worker_TP0, VllmWorker rank=1, RayWorkerWrapper pid=7, TP3)."""
    return "Worker" in name or name.startswith(("TP", "DP", "PP", "EP", "rank"))


def replica_of(name: str) -> str | None:
    """The data-parallel replica that a process name carries: `DP1` of Worker_DP1_TP0."""
    return next((part for part in name.split("_") if part.startswith("DP") and part[2:].isdecimal()), None)
