"""The state machine over an engine's log: bytes in, typed events out, a phase per worker and one for the whole."""

from typing import Any

from msgspec import Struct

from firstlight.catalog.milestones import RANK, Field, Milestone, load_milestones
from firstlight.catalog.rules import Gate, benign_rules
from firstlight.engines.lines import Line, parse
from firstlight.engines.splitting import Splitter
from firstlight.engines.stamps import seconds_of
from firstlight.watch.numbers import numbers_of, settings_of
from firstlight.watch.processes import PROCESSES_KEPT, Processes

_ENDINGS = frozenset({"ready", "serving", "failed", "stopping", "stopped"})
_IN_TRACEBACKS = (" ", "Traceback", "The above exception was", "During handling of the above")
_KEYS_KEPT = 2048
_TWINS_KEPT = 256  # of one text: as many ranks may say the same


class LogEvent(Struct, frozen=True, kw_only=True):
    """What a line meant.

    kind: `phase` (the whole moved on), `worker-phase`, `progress` (data: done, total, unit, what or mode), `figure` (data: typed fields),
    `ready`, `stopping`, `stopped`, `died`, `waiting` (a symptom, see stall: no sign of life), `benign` (data: code), `error` (data: text),
    `note` (data: text; of the log itself, see growing).
    phase: of the worker after the line. line: 1-based in the log. time: as given to `feed`.
    """

    kind: str
    time: float
    line: int
    phase: str | None = None
    worker: str | None = None
    data: dict[str, Any] = {}


class EngineLog:
    """Reads one engine's merged output. Memory is bounded: per worker a phase, per field its latest value.

    engine: `vllm`, `llamacpp`, `sglang` or `auto` (by the first milestone that one of them knows). stamped: events carry the times that
    the lines carry (a replay), not those of reading. uncaught_line: the last one that an interpreter or an argument parser ends with (a
    traceback that no logger printed, a usage error).
    """

    def __init__(self, engine: str = "auto", version: str | None = None, *, stamped: bool = False) -> None:
        self.engine = engine
        self.version = version
        self.phase = "spawned"
        self.phase_since: float | None = None
        self._processes = Processes()
        self.workers = self._processes.phases
        self.fields: dict[str, Field] = {}
        self.worker_fields: dict[str, dict[str, Field]] = {}
        self.phase_times: dict[str, float] = {}
        self.done: int | None = None
        self.total: int | None = None
        self.unit: str | None = None
        self.last_line_at: float | None = None
        self.lines = 0
        self.errors = 0
        self.uncaught_line: int | None = None
        self.benign: dict[str, int] = {}
        self.stamped = stamped
        self._structured = False
        self._alive = False
        self._names: dict[int, str] = {}
        self._heard = Twins()
        self._told = Twins()
        self._splitter = Splitter()
        self._benign = Gate(benign_rules())
        self._tables = [load_milestones(name) for name in ((engine,) if engine != "auto" else ("vllm", "llamacpp", "sglang"))]

    def feed(self, chunk: bytes, now: float) -> list[LogEvent]:
        """Events of every line that this chunk completes; the same bytes in any chunks give the same events."""
        events: list[LogEvent] = []
        pieces = self._splitter.feed(chunk)
        self._benign.look(self._splitter.block)
        self._alive = False
        for number, raw in pieces:
            self._raw(number, raw, now, events)
        if chunk and not self.stamped and (self._alive or self.last_line_at is None):
            self.last_line_at = now
            self.phase_since = now if self.phase_since is None else self.phase_since
        return events

    def take(self, line: Line, now: float) -> list[LogEvent]:
        """Events of one line that is already taken apart (a structured record). Its text, which comes as well, says nothing new."""
        if self._told.met(line):
            return []
        self._structured = True
        self._heard.add(line)
        events: list[LogEvent] = []
        self._benign.look(line.text.encode())
        self._alive = False
        self._line(line, now, events)
        if self._alive or self.last_line_at is None:
            self.last_line_at = now
        self.phase_since = now if self.phase_since is None else self.phase_since
        return events

    def close(self, now: float) -> list[LogEvent]:
        """Events of a last line without a line end."""
        events: list[LogEvent] = []
        pieces = self._splitter.close()
        self._benign.look(self._splitter.block)
        for number, raw in pieces:
            self._raw(number, raw, now, events)
        return events

    def _raw(self, number: int, raw: str, now: float, events: list[LogEvent]) -> None:
        for line in parse(number, raw):
            self.lines = line.number
            if self._structured and line.header:
                if self._heard.met(line):
                    continue
                self._told.add(line)
            self._line(line, self._own_time(line, now) if self.stamped else now, events)

    def _own_time(self, line: Line, now: float) -> float:
        """The line's stamp, else the last one seen, else the time of reading."""
        stamp = seconds_of(line.stamp) if line.stamp else None
        if stamp is not None:
            self.last_line_at = stamp
            self.phase_since = stamp if self.phase_since is None else self.phase_since
        return self.last_line_at if self.last_line_at is not None else now

    def _line(self, line: Line, now: float, events: list[LogEvent]) -> None:
        found = self._find(line.text)
        self._alive = self._alive or found is None or found[0].event != "waiting"
        if found is not None:
            self._milestone(line, *found, now, events)
        elif rule := self._benign.find(line.text):
            self.benign[rule.code] = self.benign.get(rule.code, 0) + 1
            events.append(self._event("benign", line, now, code=rule.code))
        elif line.level in ("ERROR", "CRITICAL") and line.text.strip() and not line.text.startswith(_IN_TRACEBACKS):
            self.errors += 1
            events.append(self._event("error", line, now, text=line.text[:500]))
        elif line.source and RANK[self.phase] < RANK["ready"] and (numbers := numbers_of(line.text)):
            events.append(self._event("figure", line, now, text=line.text[:200], **numbers))
        elif line.level is None and (line.text.startswith("Traceback (most recent") or ": error: " in line.text[:40]):
            self.uncaught_line = line.number

    def _find(self, text: str) -> tuple[Milestone, dict[str, Field]] | None:
        for table in self._tables:
            if found := table.find(text):
                if len(self._tables) > 1:
                    self.engine, self._tables = table.engine, [table]
                return found
        return None

    def _milestone(self, line: Line, milestone: Milestone, fields: dict[str, Field], now: float, events: list[LogEvent]) -> None:
        if milestone.event == "start":
            self._restart()
        self._move(line, milestone, now, events)
        if fields:
            self._remember(line, milestone, fields)
        if milestone.event == "progress":
            events.append(self._progress(line, milestone, fields, now))
        elif fields or milestone.event != "figure":
            kind = "figure" if milestone.event == "start" else milestone.event
            long = str(fields.get("args") or fields.get("config") or "")
            events.append(self._event(kind, line, now, **fields, **({"settings": settings_of(long)} if long else {})))

    def _restart(self) -> None:
        """A banner after an ending is a new start of the same service: phases begin again."""
        if self.phase in _ENDINGS:
            self.phase = "spawned"
            self._processes.clear()
            self.phase_times.clear()
            self.done = self.total = self.unit = None

    def _remember(self, line: Line, milestone: Milestone, fields: dict[str, Field]) -> None:
        if "engine_version" in fields:
            self.version = str(fields["engine_version"])
        if milestone.event != "progress":
            self.fields.update(fields)
            if line.worker and (line.worker in self.worker_fields or len(self.worker_fields) < PROCESSES_KEPT):
                self.worker_fields.setdefault(line.worker, {}).update(fields)

    def _progress(self, line: Line, milestone: Milestone, fields: dict[str, Field], now: float) -> LogEvent:
        self.done, self.total, self.unit = int(fields["done"]), int(fields["total"]), milestone.unit
        return self._event("progress", line, now, unit=milestone.unit, **fields)

    def _move(self, line: Line, milestone: Milestone, now: float, events: list[LogEvent]) -> None:
        phase = milestone.phase
        if phase is None:
            return
        name = line.worker or ""
        self._rename(line)
        if self._processes.put(name, phase) and name:
            events.append(self._event("worker-phase", line, now, name=phase))
        if milestone.ranks == "one":
            self._processes.lift(phase, name)
        whole = phase if phase in _ENDINGS else self._processes.reached()
        if RANK[whole] > RANK[self.phase] and self.phase != "failed":
            self.phase, self.phase_since = whole, now
            self.phase_times.setdefault(whole, now)
            self.done = self.total = self.unit = None
            events.append(self._event("phase", line, now, name=whole))

    def _rename(self, line: Line) -> None:
        """A worker that learned its rank prints another name from then on (`Worker pid=7`, then `Worker_TP0`): it is the same process."""
        if line.pid is None or line.worker is None:
            return
        before = self._names.get(line.pid)
        if before != line.worker and (before is not None or len(self._names) < PROCESSES_KEPT):
            self._names[line.pid] = line.worker
        if before in self.workers and before != line.worker and _is_early(before, line.worker):
            self._processes.rename(before, line.worker)

    def _event(self, kind: str, line: Line, now: float, **data: Any) -> LogEvent:
        return LogEvent(kind=kind, time=now, line=line.number, phase=self.workers.get(line.worker or ""), worker=line.worker, data=data)


class Twins:
    """Lines that came one way and may still come the other. The latest are kept; a line that carries no pid is anybody's."""

    def __init__(self) -> None:
        self._pids: dict[str, list[int | None]] = {}

    def add(self, line: Line) -> None:
        pids = self._pids.setdefault(line.text.strip(), [])
        pids.append(line.pid)
        del pids[:-_TWINS_KEPT]
        if len(self._pids) > _KEYS_KEPT:
            del self._pids[next(iter(self._pids))]

    def met(self, line: Line) -> bool:
        """Whether the other way brought this line already; it is met once."""
        text = line.text.strip()
        pids = self._pids.get(text)
        if not pids:
            return False
        pid = line.pid if line.pid in pids else pids[0] if line.pid is None else None
        if pid not in pids:
            return False
        pids.remove(pid)
        if not pids:
            del self._pids[text]
        return True


def _is_early(before: str, after: str) -> bool:
    """Whether `before` is a name that a process has until it knows its rank (another node's process may have the same pid)."""
    return before.split(" pid=")[0] in after or before.startswith("VllmWorker-")
