"""Reads a log once: what went wrong, what the rules say of it, how far the start came, what was harmless. Memory is bounded."""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from firstlight.catalog.rules import Block, Gate, Rule, builtin_rules
from firstlight.core.diagnosis import Benign
from firstlight.diagnose.course import ENDED, WORKERS_KEPT, Course, Death
from firstlight.diagnose.fitting import Scene
from firstlight.diagnose.matching import Match, Matcher
from firstlight.diagnose.messages import is_repr, joined, says_ended, typed_message
from firstlight.diagnose.noise import (
    LOUD,
    ROUTINE,
    common_indent,
    goes_onward,
    is_answer,
    is_at_work,
    is_broken,
    is_chatter,
    is_double_spaced,
    is_frame,
    is_marked_error,
    is_native,
    is_of_request,
    is_quiet,
    is_refusal,
    speaks_of_end,
    speaks_of_trouble,
    without_chatter,
)
from firstlight.diagnose.place import phase_of_frames
from firstlight.diagnose.processes import level_of
from firstlight.diagnose.showing import template
from firstlight.diagnose.units import LAST, Collector, Unit, is_half_told
from firstlight.engines.lines import Line, parse
from firstlight.engines.splitting import Splitter

UNITS_KEPT = 400
LINES_KEPT = 20
SPARED_KEPT = 3
VAGUE = -15  # rules of this priority and below name no part of the engine: of a cut traceback they say nothing
FIRST_LINES = 200  # by which a common indentation is found
ALIVE_LINES = 3  # routine lines of a process behind its error, from which on it is taken to have gone on
_V0_LOOP = re.compile(r'vllm/engine/multiprocessing/engine\.py", line \d+, in (?:run_engine_loop|start|run_mp_engine)\b')
_CORE_LOOP = re.compile(r'/v1/engine/core\.py", line \d+, in (?:run_engine_core|run_busy_loop|_process_engine_step|step\w*)\b')
_OUTPUT = re.compile(
    r"(?i)(?:full |whole |captured )?(?:std(?:err|out)|(?:server |engine )?(?:output|logs?))\s*:\s*$"
)  # a heading above what was printed before


class Seen(Struct, kw_only=True):
    """A unit with its matches, the same message of other ranks merged into it. count: how often it was printed, until: where last."""

    unit: Unit
    matches: list[Match]
    count: int = 1
    others: list[Unit] = []
    until: int = 0


class LogReader:
    """Everything that deciding needs, collected in one pass."""

    def __init__(self, engine: str | None, version: str | None, rules: Sequence[Rule] | None = None) -> None:
        self.rules = tuple(builtin_rules() if rules is None else rules)
        self.only_rules = rules is not None
        self.matcher = Matcher(self.rules)
        self.course = Course(engine, version)
        self._engine_given = engine
        self.seen: list[Seen] = []
        self.murmurs: list[Unit] = []
        self.lines = 0
        self.frame_line: int | None = None
        self.frame_texts: list[str] = []
        self.last_lines: list[tuple[int, str, str | None]] = []
        self.benign: dict[str, tuple[int, list[int]]] = {}
        self.spared: list[Unit] = []
        self.alive: dict[str | None, list[int]] = {}
        self.troubled = False
        self.loop_broke = False
        self.onward_line = 0
        self.work_line: int | None = None  # where a server first says that it works on requests
        self.began = 0  # the line at which the start begins that the verdict is of
        self.earlier: Death | None = None  # what an earlier start in this log died of, by its first word on it
        self.refused_request = False  # a request was answered with 500
        self.step = 1  # from a line's number to the next one's that holds something
        self._indent: int | None = None
        self._held: list[tuple[int, str]] = []
        self._index: dict[tuple[str, str], Seen] = {}
        self._splitter, self._collector = Splitter(), Collector()
        self._informing = Gate(r for r in self.rules if r.info and r.role != "benign")
        self._benign = Gate(r for r in self.rules if r.role == "benign")
        self._on_plain = Gate(r for r in self.rules if r.role != "benign" and (r.role != "cause" or r.info))
        self._said: Unit | None = None

    def feed(self, chunk: bytes) -> None:
        self._pieces(self._splitter.feed(chunk))

    def close(self) -> None:
        self._pieces(self._splitter.close(), last=True)
        for unit in self._collector.close():
            self._unit(unit)
        if self._said is not None and not self._said.chain and not any(s.unit is self._said and s.matches for s in self.seen):
            self._said.kind = "line"
        self._answers_are_ready()
        self._take_back_ready()
        for unit in self.spared:
            hints = [m for m in self.matcher.matches(unit, self.course.engine) if m.rule.role == "hint"]
            if hints:
                self.seen.append(Seen(unit=unit, matches=hints, until=unit.line))

    def _answers_are_ready(self) -> None:
        """An access log: who answers requests is up, also where the paste begins later than `ready`; not where its engine had died.

        Where nothing of the start is in the paste, it was ready before the first line: what failed there failed while serving.
        """
        course = self.course
        at = course.answer_line
        if at is None or course.ready_line is not None or any(d.line < at for d in course.died):
            return
        if any(s.unit.kind == "exception" and s.unit.line < at and level_of(s.unit.worker) != 2 for s in self.seen):
            return
        course.ready_line = at if any(phase not in ENDED for _, phase, _ in course.moves) else 0
        for seen in self.seen:
            seen.unit.phase = "serving" if seen.unit.line > course.ready_line else seen.unit.phase

    def _take_back_ready(self) -> None:
        """A server that says it is up before it binds its port was not ready when the binding fails."""
        for seen in self.seen:
            if any(m.rule.unready for m in seen.matches):
                self.course.ready_line, seen.unit.phase = None, "api-start"

    def _pieces(self, pieces: list[tuple[int, str]], *, last: bool = False) -> None:
        held = self._splitter.block if not self._held else b"\n".join(raw.encode() for _, raw in [*self._held, *pieces])
        block = Block(without_chatter(held))
        for gate in (self._benign, self._informing, self._on_plain):
            gate.look(block)
        self.matcher.look(block)
        if self._indent is None:
            pieces = self._held = [*self._held, *pieces]
            first = [raw for _, raw in pieces[:FIRST_LINES] if raw.strip()]
            if len(first) < 2 and len(pieces) < FIRST_LINES and not last:
                return
            self._indent, self._held = common_indent(first), []
            self.step = self._collector.step = 2 if is_double_spaced([number for number, raw in pieces[:FIRST_LINES] if raw.strip()]) else 1
        for number, raw in pieces:
            if self.step == 2 and not raw.strip():
                continue
            if self._indent and raw[: self._indent].isspace():
                raw = raw[self._indent :]
            for line in parse(number, raw):
                self._line(line)

    def _line(self, line: Line) -> None:
        self.lines = line.number
        if line.level == "INFO":
            if is_answer(line):
                self.course.answer_line = line.number if self.course.answer_line is None else self.course.answer_line
                self.refused_request = self.refused_request or is_refusal(line)
                return
            if is_chatter(line) and self.course.phases.get(line.worker) == "serving":
                return
        if self.work_line is None and is_at_work(line):
            self.work_line = line.number
        if self.troubled and line.level in ROUTINE:
            self._note_life(line)
        if self._milestone(line) or is_quiet(line):
            self._quiet(line)
            return
        self._note_trouble(line)
        for unit in self._collector.feed(line):
            self._unit(unit)
        if line.text.strip() and not is_frame(line.text):
            self.last_lines = [*self.last_lines[-(LINES_KEPT - 1) :], (line.number, line.text[:300], line.worker)]

    def _note_life(self, line: Line) -> None:
        """An everyday line behind trouble: its process goes on."""
        if self.course.ready_line is None and len(self.alive) < WORKERS_KEPT and not speaks_of_end(line.text):
            self.alive[line.worker] = [*self.alive.get(line.worker, ())[-(ALIVE_LINES - 1) :], line.number]

    def _note_trouble(self, line: Line) -> None:
        text = line.text
        if line.level is None and goes_onward(text):
            self.onward_line = line.number
        self.troubled = self.troubled or line.level in LOUD or text.startswith("Traceback")
        loud = line.level in LOUD and is_frame(text) and not is_of_request(line.source)
        if text.startswith(("Traceback", '  File "')) if line.level is None else loud:
            self.frame_line = line.number
            self.loop_broke = self.loop_broke or bool(_CORE_LOOP.search(text))
            self.frame_texts = [*self.frame_texts[-5:], text]

    def _milestone(self, line: Line) -> bool:
        """Whether a line is a milestone, and no death (of which the rules may know more)."""
        found = self.course.find(line)
        if found is None:
            return False
        milestone, fields = found
        if milestone.event == "start":
            self._start(line.number)
        self.course.note(line, milestone, fields)
        return milestone.event != "died"

    def _start(self, at: int) -> None:
        again = (self.course.has_ended or any(s.unit.kind == "exception" for s in self.seen)) and not self._quotes()
        if again:
            stop = self.course.stop_line
            self.earlier = next((d for d in self.course.died if stop is None or d.line < stop), None)
            self.began = at
            self.seen, self._index, self.murmurs, self.spared, self.frame_line = [], {}, [], [], None
            self.work_line = None
        self.course.begin(again=again)

    def _quotes(self) -> bool:
        """Whether a program that tells of an end goes on with what the server had printed until then (`Stderr:`)."""
        return self.course.starts == 0 and any(_OUTPUT.match(text) for _, text, _ in self.last_lines)

    def _quiet(self, line: Line) -> None:
        """A line below ERROR counts only for the rules that say so; a benign one is counted."""
        if self._count_benign(line.text, line.number):
            return
        if self._informing.find(line.text):
            self._unit(
                Unit(kind="line", line=line.number, last_line=line.number, text=line.text[:2000], worker=line.worker, logged=line.level)
            )

    def _count_benign(self, text: str, number: int) -> bool:
        rule = self._benign.find(text)
        if rule is None:
            return False
        count, lines = self.benign.get(rule.code, (0, []))
        self.benign[rule.code] = (count + 1, [*lines, number] if len(lines) < LINES_KEPT else lines)
        return True

    def _unit(self, unit: Unit) -> None:
        if unit.kind == "exception" and not unit.torn and self.frame_line is not None and unit.last_line >= self.frame_line:
            self.frame_line = None
        unit.text = joined(unit.text)
        if unit.kind == "line" and (self._spares(unit) or self._says_nothing(unit)):
            return
        unit.phase = phase_of_frames(unit.frames) or self.course.phase_at(unit.line, unit.worker)
        key = (template(unit.head), unit.type or "")
        if known := self._index.get(key):
            known.count, known.until = known.count + 1, unit.last_line
            if unit.worker != known.unit.worker and len(known.others) < 128:
                unit.frames = []
                known.others.append(unit)
            return
        self._type_what_v0_said(unit)
        self.matcher.find_place(unit, self.course.engine)
        self._note_loop_end(unit)
        if says_ended(unit.text):
            self.course.note_death(unit.line, unit.worker, unit.head, {})
        matches = self.matcher.matches(unit, self.course.engine)
        if unit.torn:
            matches = [m for m in matches if m.rule.priority > VAGUE and not (m.rule.priority < 0 and is_half_told(unit))]
            if not matches:
                return
        if not matches and unit.kind == "line" and unit.logged not in LOUD and not is_native(unit.text):
            if len(self.murmurs) < LINES_KEPT:
                self.murmurs.append(unit)
            return
        if len(self.seen) < UNITS_KEPT or (matches and len(self.seen) < 2 * UNITS_KEPT):
            self._index[key] = seen = Seen(unit=unit, matches=matches, others=[], until=unit.last_line)
            self.seen.append(seen)

    def _spares(self, unit: Unit) -> bool:
        """Whether a line is harmless mostly; the last that were logged as errors are kept: one may be all that tells of a failure."""
        if not self._count_benign(unit.text, unit.line):
            return False
        if unit.logged in LOUD or is_marked_error(unit.text):
            unit.phase = self.course.phase_at(unit.line, unit.worker)
            self.spared = [*self.spared[-(SPARED_KEPT - 1) :], unit]
        return True

    def _says_nothing(self, unit: Unit) -> bool:
        """Most lines that no logger printed: no word of trouble, nothing that a rule looks for."""
        text = unit.text
        if unit.logged is not None or speaks_of_trouble(text):
            return False
        return (is_broken(text) or self._on_plain.find(text) is None) and not is_native(text)

    def _type_what_v0_said(self, unit: Unit) -> None:
        """V0's engine process prints what ended it, without the exception's type, in front of the traceback that it belongs to."""
        if unit.logged not in LOUD or not (unit.source or "").startswith("engine.py:"):
            return
        if unit.kind == "exception" and self._said is not None and not self._said.chain:
            self._said.chain, self._said.order = unit.chain, LAST
        elif unit.kind == "line" and self._said is None:
            self._said = unit
            if is_repr(unit.text):
                self.course.note_death(unit.line, "EngineCore", unit.head, {})
                unit.worker = unit.worker or "EngineCore"
            unit.kind, unit.text = "exception", typed_message(unit.text)
            unit.type = unit.text.split(":", 1)[0]

    def _note_loop_end(self, unit: Unit) -> None:
        """V0's engine process says no more than the traceback of its loop when it dies."""
        if unit.logged in LOUD and any(_V0_LOOP.search(frame) for frame in unit.frames):
            self.course.note_death(unit.line, unit.worker, unit.head, {})

    def holds(self, rule: Rule) -> bool:
        """Whether the log as a whole allows this rule (asked at the end, when everything was read)."""
        return self.matcher.holds(rule, self.engine, self.course.version)

    @property
    def engine(self) -> str | None:
        """As given, else as the program names itself, else as its milestones, else as single words show."""
        spotter = self.matcher.spotter
        return self._engine_given or spotter.said_engine or self.course.engine or spotter.engine

    @property
    def platform(self) -> str | None:
        return self.matcher.spotter.platform

    def scene(self, unit: Unit | None = None) -> Scene:
        """What the log is of, and the failure: what remedies ask."""
        return Scene(
            engine=self.engine,
            version=self.course.version,
            platform=self.platform,
            phase=unit.phase if unit else self.course.phase,
            text=unit.text if unit else "",
            frames="\n".join(unit.frames) if unit else "",
            has=self.matcher.has,
        )

    def benign_list(self, without: Sequence[int] = ()) -> list[Benign]:
        """What was harmless; without: lines that turned out to be evidence."""
        found = []
        for code, (count, lines) in sorted(self.benign.items()):
            kept = [line for line in lines if line not in without]
            if left := count - len(lines) + len(kept):
                found.append(Benign(code=code, count=left, lines=kept))
        return found


def read(log: bytes | Iterable[bytes], engine: str | None, version: str | None, rules: Sequence[Rule] | None = None) -> LogReader:
    reader = LogReader(engine, version, rules)
    for chunk in (log,) if isinstance(log, bytes) else log:
        reader.feed(chunk)
    reader.close()
    return reader
