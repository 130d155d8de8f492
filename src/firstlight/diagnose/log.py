"""Reads a log once: units that matter, what the rules say of them, phases, endings, benign counts. Memory is bounded."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, structs

from firstlight.catalog.milestones import RANK, Field, Milestones, load_milestones, typed
from firstlight.catalog.rules import Gate, Rule, builtin_rules, version_within
from firstlight.catalog.texts import place_of_text
from firstlight.core.diagnosis import Benign
from firstlight.diagnose.place import place_of_frames, place_of_process, place_of_type
from firstlight.diagnose.remedies import value_of
from firstlight.diagnose.units import LAST, Collector, Unit, essence, is_repr, level_of, template, typed_message
from firstlight.engines.lines import Line, parse
from firstlight.engines.splitting import Splitter

ENGINES = ("vllm", "llamacpp", "sglang")
UNITS_KEPT = 400
WORKERS_KEPT = 4096
LINES_KEPT = 20
LOOKUPS = 40
VAGUE = -15  # rules of this priority and below name no part of the engine: of a cut traceback they say nothing
ENDED = frozenset({"failed", "stopping", "stopped"})
_QUIET = frozenset({"INFO", "DEBUG", "WARNING"})
_LOUD = frozenset({"ERROR", "CRITICAL"})
_ROUTINE = frozenset({"INFO", "DEBUG"})
ALIVE_LINES = 3  # routine lines of a process behind its error, from which on it is taken to have gone on
_ENDING = re.compile(r"(?i)shut|stop|terminat|kill|exit|abort|destroy|clean|clos|fail|error|dead|died|finished|disconnect")
_TROUBLE = re.compile(  # in lower case; no alternative begins with an assertion, so that most characters are passed over at once
    r"error|fail|fatal|cannot|can't|could ?n.t|could not|unable|kill|abort|denied|not found|no such|warn|exception|out of memory|oom"
    r"|no space|invalid|recognized|unsupported|not supported|in use|terminat|timed out|timeout|too (?:many|old|small)|died|refused"
    r"|unexpected|unknown|missing|exceed|assert|segfault|corrupt|mismatch|incompatible|already|no module|no available|xid|lost|fallen"
    r"|insufficient|unreachable|temporarily unavailable|must be|is larger than|divisible|n(?<!\wn)an\b"
    r"|not compatible|must match|illegal|core dumped|not loaded|without (?:ssl|curl)"
    r"|f(?<!\wf)ault\b|sig[a-z]{3,4} received|not implemented|r(?<!\wr)equires\b|crash|exited with|critical|memory: -|status|manifest"
)
_NATIVE = re.compile(
    r"(?:ggml|gguf|llama|clip|mtmd|common|sycl|vk|hip)\w*:? [^\n]*\b(?:error|fail(?:ed|ure)|fatal|abort|exception)\b"
    r"|(?:fatal|FATAL|terminate called|Native API failed|[Ee]xception|[Ee]rror)\b[^\n]*:"
    r"|[^\n]{0,80}(?:\| critical \||\bTT_(?:THROW|FATAL)\b)",
)
_FIRST_LINES = 200
_OF_REQUESTS = re.compile(
    r"(?:serving|hermes|\w*tool_parser|\w*reasoning_parser|abstract_\w*parser|protocol|chat_utils|preprocess|media)\w*\.py"
)
_MILD = ("Ignored ", "Ignoring ", "Skipping ", "Warning: ", "warning: ")  # what an unprefixed line says of itself
_CODE = re.compile(r'\s*(?:File "|raise\b|return\b|self\.|[\^~]+\s*$|[\w.]+ = |[\w.]+\()')
_ACCESS = " HTTP/1."
_CHATTER = ("loggers.py:", "logger.py:", "metrics.py:", "async_llm.py:")  # what a server says of every request and every ten seconds
_ANSWERED = re.compile(r'"(?:GET|POST) /\S* HTTP/1\.\d" \d{3}')
_V0_LOOP = re.compile(r'vllm/engine/multiprocessing/engine\.py", line \d+, in (?:run_engine_loop|start|run_mp_engine)\b')
_CORE_LOOP = re.compile(r'/v1/engine/core\.py", line \d+, in (?:run_engine_core|run_busy_loop|_process_engine_step|step\w*)\b')
_FRAME = re.compile(r'Traceback|\s*(?:File "|\^|~)|\s{4,}\S')


def is_of_request(source: str | None) -> bool:
    """Whether a logging line's file handles single requests: what fails there is answered to the client, and the server goes on."""
    return bool(source and _OF_REQUESTS.match(source))


class Match(Struct, frozen=True, kw_only=True):
    rule: Rule
    facts: dict[str, Field]


class Seen(Struct, kw_only=True):
    """A unit with its matches, the same message of other ranks merged into it. count: how often it was printed."""

    unit: Unit
    matches: list[Match]
    count: int = 1
    others: list[Unit] = []


class Death(Struct, frozen=True, kw_only=True):
    """A line by which a process says that it, or one of its children, died. fields: process, exit_code where named."""

    line: int
    worker: str | None
    fields: dict[str, Field]
    text: str


class LogReader:
    """Everything that deciding needs, collected in one pass."""

    def __init__(self, engine: str | None, version: str | None, rules: Sequence[Rule] | None = None) -> None:
        self.engine, self.version = engine, version
        self.rules = tuple(builtin_rules() if rules is None else rules)
        self.fields: dict[str, Field] = {}
        self.phases: dict[str | None, str] = {}
        self.phase = "spawned"
        self.moves: list[tuple[int, str, str | None]] = []
        self.seen: list[Seen] = []
        self.ready_line: int | None = None
        self.stop_line: int | None = None
        self.answer_line: int | None = None
        self.signal: Death | None = None
        self.died: list[Death] = []
        self.waits: list[int] = []
        self.starts = 0
        self.lines = 0
        self.lookups = 0
        self.frame_line: int | None = None
        self.frame_texts: list[str] = []
        self.last_lines: list[tuple[int, str, str | None]] = []
        self.benign: dict[str, tuple[int, list[int]]] = {}
        self.alive: dict[str | None, list[int]] = {}
        self.troubled = False
        self.loop_broke = False
        self._indent: int | None = None
        self._held: list[tuple[int, str]] = []
        self._index: dict[tuple[str, str], Seen] = {}
        self._splitter, self._collector = Splitter(), Collector()
        self._tables = [load_milestones(e) for e in ((engine,) if engine else ENGINES)]
        self._missing = {id(p): p for r in self.rules for p in (*r.with_log, *r.unless_log)}
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

    def _answers_are_ready(self) -> None:
        """An access log: who answers requests is up, also where the paste begins later than `ready`; not where its engine had died.

        Where nothing of the start is in the paste, it was ready before the first line: what failed there failed while serving.
        """
        at = self.answer_line
        if at is None or self.ready_line is not None or any(d.line < at for d in self.died):
            return
        if any(s.unit.kind == "exception" and s.unit.line < at and level_of(s.unit.worker) != 2 for s in self.seen):
            return
        self.ready_line = at if any(phase not in ENDED for _, phase, _ in self.moves) else 0
        for seen in self.seen:
            seen.unit.phase = "serving" if seen.unit.line > self.ready_line else seen.unit.phase

    def _take_back_ready(self) -> None:
        """A server that says it is up before it binds its port was not ready when the binding fails."""
        for seen in self.seen:
            if any(m.rule.unready for m in seen.matches):
                self.ready_line, seen.unit.phase = None, "api-start"

    def _pieces(self, pieces: list[tuple[int, str]], *, last: bool = False) -> None:
        block = self._splitter.block if not self._held else b"\n".join(raw.encode() for _, raw in [*self._held, *pieces])
        for gate in (self._benign, self._informing, self._on_plain):
            gate.look(block)
        self._look_for_context(block)
        if self._indent is None:
            pieces = self._held = [*self._held, *pieces]
            first = [raw for _, raw in pieces[:_FIRST_LINES] if raw.strip()]
            if len(first) < 2 and len(pieces) < _FIRST_LINES and not last:
                return
            self._indent, self._held = common_indent(first), []
        for number, raw in pieces:
            if self._indent and raw[: self._indent].isspace():
                raw = raw[self._indent :]
            for line in parse(number, raw):
                self._line(line)

    def _look_for_context(self, block: bytes) -> None:
        """Which texts that a rule wants (or wants not) anywhere in the log are there: looked for in whole blocks."""
        likely = [p for p in self._missing.values() if p.may_match_in(block)]
        if likely:
            text = block.decode("utf-8", "replace")
            for p in likely:
                if p.regex.search(text):
                    del self._missing[id(p)]

    def _line(self, line: Line) -> None:
        self.lines = line.number
        text = line.text
        if line.level == "INFO" and _ACCESS in text and _ANSWERED.search(text):
            self.answer_line = line.number if self.answer_line is None else self.answer_line
            return
        if (
            line.level == "INFO"
            and line.source is not None
            and line.source.startswith(_CHATTER)
            and self.phases.get(line.worker) == "serving"
        ):
            return
        quiet = (line.level in _QUIET or (line.level is None and text.startswith(_MILD))) and not text.startswith("Traceback")
        if (
            self.troubled
            and self.ready_line is None
            and line.level in _ROUTINE
            and len(self.alive) < WORKERS_KEPT
            and not _ENDING.search(text)
        ):
            self.alive[line.worker] = [*self.alive.get(line.worker, ())[-(ALIVE_LINES - 1) :], line.number]
        if self._milestone(line) or quiet:
            self._quiet(line)
            return
        loud = line.level in _LOUD and _FRAME.match(text) and not is_of_request(line.source)
        if text.startswith(("Traceback", '  File "')) if line.level is None else loud:
            self.frame_line = line.number
            self.loop_broke = self.loop_broke or bool(_CORE_LOOP.search(text))
            self.frame_texts = [*self.frame_texts[-5:], text]
        self.troubled = self.troubled or line.level in _LOUD or text.startswith("Traceback")
        for unit in self._collector.feed(line):
            self._unit(unit)
        if text.strip() and not _FRAME.match(text):
            self.last_lines = [*self.last_lines[-(LINES_KEPT - 1) :], (line.number, text[:300], line.worker)]

    def _milestone(self, line: Line) -> bool:
        for table in self._tables:
            if found := table.find(line.text):
                break
        else:
            return False
        milestone, fields = found
        self._settle(table)
        if milestone.event == "start":
            self._start(line)
        if "engine_version" in fields:
            self.version = str(fields["engine_version"])
        if milestone.event != "progress":
            self.fields.update(fields)
        self._move(line, milestone.phase)
        if milestone.event == "ready" and self.ready_line is None:
            self.ready_line = line.number
        elif milestone.event in ("stopping", "stopped") and self.stop_line is None:
            self.stop_line = line.number
            if "signal" in fields:
                self.signal = Death(line=line.number, worker=line.worker, fields=fields, text=line.text[:300])
        elif milestone.event == "died":
            self.died.append(Death(line=line.number, worker=line.worker, fields=fields, text=line.text[:300]))
        elif milestone.event == "waiting":
            self.waits = [*self.waits[:50], line.number]
        return milestone.event != "died"

    def _settle(self, table: Milestones) -> None:
        if len(self._tables) > 1:
            self.engine, self._tables = table.engine, [table]

    def _start(self, line: Line) -> None:
        """A banner behind an ending: the service was started again; what was before belongs to an earlier attempt."""
        if self.died or self.stop_line or self.ready_line or any(s.unit.kind == "exception" for s in self.seen):
            self.seen, self._index, self.moves, self.died, self.waits = [], {}, [], [], []
            self.ready_line = self.stop_line = self.answer_line = self.frame_line = self.signal = None
            self.phases, self.phase = {}, "spawned"
        if not self.moves:
            self.starts += 1

    def _move(self, line: Line, phase: str | None) -> None:
        if phase is None:
            return
        before = self.phases.get(line.worker)
        if before is None or RANK[phase] > RANK[before]:
            if phase not in ENDED and len(self.phases) < WORKERS_KEPT:
                self.phases[line.worker] = phase
            if len(self.moves) < 5000:
                self.moves.append((line.number, phase, line.worker))
        if phase not in ENDED and RANK[phase] > RANK.get(self.phase, 0):
            self.phase = phase

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
        if unit.kind == "line" and (self._count_benign(unit.text, unit.line) or self._says_nothing(unit)):
            return
        unit.phase = "serving" if self.ready_line and unit.line > self.ready_line else self._phase_of(unit.worker)
        key = (template(unit.head), unit.type or "")
        if known := self._index.get(key):
            known.count += 1
            if unit.worker != known.unit.worker and len(known.others) < 128:
                unit.frames = []
                known.others.append(unit)
            return
        self._type_what_v0_said(unit)
        self._find_place(unit)
        self._note_loop_end(unit)
        matches = self._matches(unit)
        if unit.torn:
            matches = [m for m in matches if m.rule.priority > VAGUE]
            if not matches:
                return
        if not matches and unit.kind == "line" and unit.logged not in _LOUD and not _NATIVE.match(unit.text):
            return
        if len(self.seen) < UNITS_KEPT or (matches and len(self.seen) < 2 * UNITS_KEPT):
            self._index[key] = seen = Seen(unit=unit, matches=matches, others=[])
            self.seen.append(seen)

    def _phase_of(self, worker: str | None) -> str:
        """A worker's own; the engine core and the front end print no milestones of what they wait for: theirs is the furthest of all."""
        own = self.phases.get(worker)
        return self.phase if own is None or level_of(worker) > 0 else own

    def _says_nothing(self, unit: Unit) -> bool:
        """Most lines that no logger printed: no word of trouble, nothing that a rule looks for."""
        text = unit.text
        if unit.logged is not None or _TROUBLE.search(text.lower()):
            return False
        broken = text.count("\ufffd") * 4 > len(text)
        return (broken or self._on_plain.find(text) is None) and not _NATIVE.match(text)

    def _find_place(self, unit: Unit) -> None:
        """Where the exception was raised: by its frames, else by its message, which is looked up in the engine's texts a few times only."""
        if unit.kind != "exception":
            return
        unit.place = place_of_frames(unit.frames) or self._place_of_text(unit.text) or place_of_type(unit.text) or place_of_process(unit)

    def _place_of_text(self, text: str) -> str | None:
        if self.lookups >= LOOKUPS or self.engine not in (None, "vllm"):
            return None
        self.lookups += 1
        return place_of_text("vllm", text)

    def _type_what_v0_said(self, unit: Unit) -> None:
        """V0's engine process prints what ended it, without the exception's type, in front of the traceback that it belongs to."""
        if unit.logged not in _LOUD or not (unit.source or "").startswith("engine.py:"):
            return
        if unit.kind == "exception" and self._said is not None and not self._said.chain:
            self._said.chain, self._said.order = unit.chain, LAST
        elif unit.kind == "line" and self._said is None:
            self._said = unit
            if is_repr(unit.text):
                self.died.append(Death(line=unit.line, worker="EngineCore", fields={}, text=unit.head[:300]))
                unit.worker = unit.worker or "EngineCore"
            unit.kind, unit.text = "exception", typed_message(unit.text)
            unit.type = unit.text.split(":", 1)[0]

    def _note_loop_end(self, unit: Unit) -> None:
        """V0's engine process says no more than the traceback of its loop when it dies."""
        if unit.logged in _LOUD and any(_V0_LOOP.search(frame) for frame in unit.frames):
            self.died.append(Death(line=unit.line, worker=unit.worker, fields={}, text=unit.head[:300]))

    def _matches(self, unit: Unit) -> list[Match]:
        """What the rules say of a unit, and of the error that it only carries on; a wrapper that quotes one is read for it."""
        found = self._matches_of(unit)
        carried = essence(unit.text)
        if carried is None:
            return found
        inner = self._matches_of(structs.replace(unit, text=carried, place=self._place_of_text(carried)))
        return [m for m in found if m.rule.role != "wrapper" and not m.rule.places] + [m for m in inner if m.rule.role != "wrapper"]

    def _matches_of(self, unit: Unit) -> list[Match]:
        found: list[Match] = []
        plain = unit.kind == "line" and unit.logged is None and not _TROUBLE.search(unit.text.lower())
        for rule in self.rules:
            if rule.role == "benign" or (plain and rule.role == "cause" and not rule.info):
                continue
            if (facts := matched(rule, unit)) is not None:
                found.append(Match(rule=rule, facts=facts))
        return found

    def holds(self, rule: Rule) -> bool:
        """Whether the log as a whole allows this rule (asked at the end, when everything was read)."""
        if self.engine and rule.engines and self.engine not in rule.engines:
            return False
        if not version_within(self.version, rule.versions):
            return False
        return not any(id(p) in self._missing for p in rule.with_log) and all(id(p) in self._missing for p in rule.unless_log)

    def benign_list(self) -> list[Benign]:
        return [Benign(code=code, count=count, lines=lines) for code, (count, lines) in sorted(self.benign.items())]


def common_indent(lines: Sequence[str]) -> int:
    """Spaces in front of every line: a log that was pasted as a block. 0 where that may be a piece of a traceback."""
    if not lines or any(_CODE.match(line) for line in lines[:1]):
        return 0
    return min(len(line) - len(line.lstrip(" ")) for line in lines)


def matched(rule: Rule, unit: Unit) -> dict[str, Any] | None:
    """The facts of a rule's match on a unit (named groups, typed), None where it does not match."""
    if unit.logged in _QUIET and not rule.info:
        return None
    hit = next((m for p in rule.match if (m := p.search(unit.text))), None)
    if hit is None and "\n" in unit.text and (unit.carried or rule.priority >= 0):
        joined = " ".join(unit.text.split())
        hit = next((m for p in rule.match if (m := p.search(joined))), None)
    if hit is None or any(p.search(unit.text) for p in rule.unless):
        return None
    if rule.places and not any(p.search(unit.place or "") for p in rule.places):
        return None
    if rule.frames or rule.unless_frames:
        frames = "\n".join(unit.frames)
        if (rule.frames and not any(p.search(frames) for p in rule.frames)) or any(p.search(frames) for p in rule.unless_frames):
            return None
    facts = {**rule.facts, **{k: typed(k, v) for k, v in hit.groupdict().items() if v is not None}}
    return facts if rule.when is None or _holds(rule.when, facts) else None


def _holds(condition: str, facts: dict[str, Any]) -> bool:
    try:
        return bool(value_of(condition, facts))
    except (KeyError, ValueError):
        return False


def read(log: bytes | Iterable[bytes], engine: str | None, version: str | None, rules: Sequence[Rule] | None = None) -> LogReader:
    reader = LogReader(engine, version, rules)
    for chunk in (log,) if isinstance(log, bytes) else log:
        reader.feed(chunk)
    reader.close()
    return reader
