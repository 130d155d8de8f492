"""How far a start came, as the log tells it: milestones, phases of each process, ready, stops, deaths."""

from msgspec import Struct

from firstlight.catalog.milestones import RANK, Field, Milestone, load_milestones
from firstlight.diagnose.processes import level_of
from firstlight.engines.lines import Line

ENGINES = ("vllm", "llamacpp", "sglang")
WORKERS_KEPT = 4096
MOVES_KEPT = 5000
TEXT_KEPT = 300
ENDED = frozenset({"failed", "stopping", "stopped"})


class Death(Struct, frozen=True, kw_only=True):
    """A line by which a process says that it, or one of its children, died. fields: process, exit_code where named."""

    line: int
    worker: str | None
    fields: dict[str, Field]
    text: str


class Course:
    """engine, version: as given, else as the log says. moves: (line, phase, process) of each step onward."""

    def __init__(self, engine: str | None, version: str | None) -> None:
        self.engine, self.version = engine, version
        self.fields: dict[str, Field] = {}
        self.starts = 0
        self._tables = [load_milestones(e) for e in ((engine,) if engine else ENGINES)]
        self._clear()

    def _clear(self) -> None:
        self.phases: dict[str | None, str] = {}
        self.phase = "spawned"
        self.moves: list[tuple[int, str, str | None]] = []
        self.ready_line: int | None = None
        self.stop_line: int | None = None
        self.answer_line: int | None = None
        self.signal: Death | None = None
        self.died: list[Death] = []

    def find(self, line: Line) -> tuple[Milestone, dict[str, Field]] | None:
        """The milestone that a line is, of the engine that was named or told of itself first, else of any."""
        for table in self._tables:
            if found := table.find(line.text):
                if len(self._tables) > 1:
                    self.engine, self._tables = table.engine, [table]
                return found
        return None

    def begin(self, *, again: bool) -> None:
        """A start's banner. again: it stands behind an ending, so that what was before belongs to an earlier attempt."""
        if again:
            self._clear()
        if not self.moves:
            self.starts += 1

    @property
    def has_ended(self) -> bool:
        return bool(self.died or self.stop_line or self.ready_line)

    def note(self, line: Line, milestone: Milestone, fields: dict[str, Field]) -> None:
        if "engine_version" in fields:
            self.version = str(fields["engine_version"])
        if milestone.event != "progress":
            self.fields.update(fields)
        if milestone.event != "progress" or fields.get("done") != 0:  # a bar that stands at nothing is printed at any time
            self._move(line, milestone.phase)
        if milestone.event == "ready" and self.ready_line is None:
            self.ready_line = line.number
        elif milestone.event in ("stopping", "stopped") and self.stop_line is None:
            self.stop_line = line.number
            if "signal" in fields:
                self.signal = Death(line=line.number, worker=line.worker, fields=fields, text=line.text[:TEXT_KEPT])
        elif milestone.event == "died":
            self.note_death(line.number, line.worker, line.text, fields)

    def note_death(self, line: int, worker: str | None, text: str, fields: dict[str, Field]) -> None:
        self.died.append(Death(line=line, worker=worker, fields=fields, text=text[:TEXT_KEPT]))

    def _move(self, line: Line, phase: str | None) -> None:
        if phase is None:
            return
        before = self.phases.get(line.worker)
        if before is None or RANK[phase] > RANK[before]:
            if phase not in ENDED and len(self.phases) < WORKERS_KEPT:
                self.phases[line.worker] = phase
            if len(self.moves) < MOVES_KEPT:
                self.moves.append((line.number, phase, line.worker))
        if phase not in ENDED and RANK[phase] > RANK.get(self.phase, 0):
            self.phase = phase

    def phase_at(self, line: int, worker: str | None) -> str:
        """A worker's own; the engine core and the front end print no milestones of what they wait for: theirs is the furthest of all."""
        if self.ready_line and line > self.ready_line:
            return "serving"
        own = self.phases.get(worker)
        return self.phase if own is None or level_of(worker) > 0 else own
