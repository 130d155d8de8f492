"""Which of the units in a log is the first cause: by time and causality, over all workers, or that it is not visible."""

import re

from msgspec import Struct

from firstlight.diagnose.course import ENDED
from firstlight.diagnose.judging import Judged, is_general, is_known, judge, passed_over, said_with
from firstlight.diagnose.log import ALIVE_LINES, LogReader
from firstlight.diagnose.messages import essence
from firstlight.diagnose.noise import is_of_request
from firstlight.diagnose.processes import level_of
from firstlight.diagnose.units import Unit

_LOUD = frozenset({None, "ERROR", "CRITICAL"})
_ENDED_BY = re.compile(r"(?:\S+: line \d+: +\d+ )?(?:Killed|Terminated|Aborted|Segmentation fault|Bus error)\b.*")
_ABORTED = re.compile(
    r"GGML_ASSERT\(|\bGGML_ABORT\b|\.(?:m|mm|c|cc|cpp|cu|cuh|h):\d+: (?:(?:fatal|CUDA|ROCm|HIP|MUSA) error|GGML_ASSERT)"
    r"|^terminate called|\(core dumped\)"
)
NEXT_TO = 3  # lines
RECORD_LINES = 200  # of one record at most: a message and its traceback
EXPLAINING = 0.85  # confidence from which on a message proves its title


class Decision(Struct, frozen=True, kw_only=True):
    """first: what the failure is put down to (None: nothing in the text); others: what else was seen, in printed order; hint: a warning
    that explains a failure of which nothing else tells; consequence: the first one of something that is not in the text; judged:
    all that was seen.
    """

    outcome: str
    first: Judged | None
    others: list[Judged]
    judged: list[Judged]
    hint: Judged | None = None
    consequence: Judged | None = None


def decide(reader: LogReader, exit_status: int | None) -> Decision:
    judged = judge(reader)
    live = [j for j in judged if not j.handled and _before_stop(j, reader)]
    deadly = [j for j in live if _deadly(j, reader)]
    late = [j for j in judged if not j.handled and j not in live] if reader.course.died and not deadly else []
    deadly = deadly or [j for j in late if _deadly(j, reader)]
    if exit_status is None and _survived(deadly, judged, reader):
        deadly = []
    deadly += _told_by_wrapper(deadly, live)
    outcome = _outcome(reader, deadly, exit_status)
    if outcome not in ("failed", "serving-failed"):
        waiting = _waiting(reader, live) if outcome == "incomplete" else None
        return Decision(outcome=outcome, first=waiting, others=_noted(judged, None), judged=judged)
    first = _first(deadly, reader)
    hint, consequence = _hint(judged, reader), _consequence(live)
    return Decision(
        outcome=outcome, first=first, others=_noted(judged, first), judged=judged, hint=hint, consequence=None if first else consequence
    )


def _before_stop(j: Judged, reader: LogReader) -> bool:
    """Errors of a server that is being stopped are the stop's noise; a start that fails stops its processes first and prints then."""
    return reader.course.ready_line is None or reader.course.stop_line is None or j.line < reader.course.stop_line


def _deadly(j: Judged, reader: LogReader) -> bool:
    """Whether this unit can end a start (or, once ready, a server)."""
    unit = j.seen.unit
    if j.role == "hint" or (is_of_request(unit.source) and j.role != "wrapper" and essence(unit.text) is None):
        return False
    if j.rule is not None and j.role != "symptom" and not is_general(j):
        loud = unit.logged in _LOUD or j.rule.info
        return (
            j.rule.fatal
            and loud
            and (reader.course.ready_line is None or level_of(unit.worker) < 2 or bool(reader.course.died) or _ends(j, reader))
        )
    if unit.kind != "exception" or unit.logged not in _LOUD or (_in_thread(unit) and not reader.course.died):
        return False
    return reader.course.ready_line is None or (level_of(unit.worker) < 2 and bool(_deaths_after(reader, reader.course.ready_line)))


def _ends(j: Judged, reader: LogReader) -> bool:
    """Whether this is said of a server that ended: by its front end, by the shell that had started it, or, where the engine is one
    process, by what that prints as it aborts.
    """
    return j.role == "wrapper" or _aborted(j.seen.unit, reader) or _of_shell(j)


def _aborted(unit: Unit, reader: LogReader) -> bool:
    """Whether llama.cpp aborts with this, or with what stands right beside it: the reason and the place are lines of their own."""
    if reader.engine != "llamacpp" or unit.worker is not None:
        return False
    beside = (s.unit for s in reader.seen if s.unit is unit or abs(s.unit.line - unit.line) <= NEXT_TO * reader.step)
    return any(_ABORTED.search(u.text) for u in beside)


def _survived(deadly: list[Judged], judged: list[Judged], reader: LogReader) -> bool:
    """Whether every error is followed by the same process's everyday lines, and nothing says that anything ended."""
    if reader.course.died or _torn(reader) or any(j.role in ("wrapper", "consequence") for j in judged):
        return False
    return bool(deadly) and all(_goes_on(j.seen.unit, reader) for j in deadly)


def _told_by_wrapper(deadly: list[Judged], live: list[Judged]) -> list[Judged]:
    """Of a server of whose end only a wrapper tells (`EngineDeadError`): the exceptions of engine and workers before it."""
    ends = [j.line for j in deadly if j.role == "wrapper"]
    if not ends or any(j.role in ("cause", "unknown") for j in deadly):
        return []
    return [j for j in live if j not in deadly and j.line < max(ends) and _may_end(j)]


def _may_end(j: Judged) -> bool:
    unit = j.seen.unit
    own = unit.kind == "exception" and unit.logged in _LOUD and level_of(unit.worker) < 2
    return own and j.role in ("cause", "unknown") and not _in_thread(unit) and not is_of_request(unit.source)


def _goes_on(unit: Unit, reader: LogReader) -> bool:
    lines = reader.alive.get(unit.worker, ())
    return len(lines) >= ALIVE_LINES and lines[-ALIVE_LINES] > unit.last_line


def _in_thread(unit: Unit) -> bool:
    """An exception that ended a side thread: the process goes on."""
    return any("in _bootstrap_inner" in frame for frame in unit.frames)


def _deaths_after(reader: LogReader, line: int) -> list[int]:
    return [d.line for d in reader.course.died if d.line > line]


_STOPPED_BY_US = frozenset({0, -2, -15, 130, 143})


def _outcome(reader: LogReader, deadly: list[Judged], exit_status: int | None) -> str:
    deaths = _deaths_after(reader, reader.course.ready_line or 0)
    died = [d for d in deaths if reader.course.stop_line is None or d < reader.course.stop_line]
    bad_exit = exit_status is not None and exit_status not in _STOPPED_BY_US
    if reader.course.ready_line is None:
        ended = exit_status is not None and reader.course.stop_line is None
        return "failed" if deadly or deaths or bad_exit or ended or _torn(reader) else "incomplete"
    failed = died or bad_exit or any(j.role in ("cause", "wrapper") for j in deadly) or (_torn(reader) and reader.loop_broke)
    return "serving-failed" if failed else "ready"


def _torn(reader: LogReader) -> bool:
    """Whether the log holds frames of an error's traceback, with or without its exception, and no progress after them."""
    line = reader.frame_line
    return line is not None and not any(at > line and phase not in ENDED for at, phase, _ in reader.course.moves)


def _waiting(reader: LogReader, live: list[Judged]) -> Judged | None:
    """An unfinished log that ends in waiting: the symptom, where there is one that says enough, or where the text begins and ends in
    it. An excerpt without any of the start that ends in a warning: what that explains; of a start that is under way nobody knows yet.
    """
    symptoms = [j for j in live if j.role == "symptom" and j.rule is not None]
    wait = next((j for j in symptoms if said_with(j) >= 0.5 or _all_of_it(j, reader)), None)
    last = (j for j in live if j.role == "hint" and reader.lines - j.seen.until <= NEXT_TO and j.seen.unit not in reader.spared)
    return wait or (None if reader.course.moves else next(last, None))


def _all_of_it(j: Judged, reader: LogReader) -> bool:
    """Whether the text begins and ends in this, and repeats it."""
    return j.line <= reader.step and j.seen.until > reader.lines - reader.step and j.seen.until > j.line


def _first(deadly: list[Judged], reader: LogReader) -> Judged | None:
    """The earliest chain with a cause or an unknown exception decides; wrappers and consequences never do."""
    roots = [j for j in deadly if j.role == "cause" or (j.role == "unknown" and j.seen.unit.kind == "exception")]
    roots = [j for j in roots if not _outlived(j, roots, reader)]
    if not roots:
        return None
    start = min(roots, key=lambda j: j.line)
    chain = [j for j in roots if j is start or (start.seen.unit.chain and j.seen.unit.chain == start.seen.unit.chain)]
    known = [j for j in chain if is_known(j)]
    if known:
        best = max(known, key=lambda j: (j.rule.priority if j.rule else 0, -j.seen.unit.order))
        return _deeper(best, roots, NEXT_TO * reader.step) if best.rule and best.rule.yields else best
    lower = [j for j in roots if level_of(j.seen.unit.worker) < level_of(start.seen.unit.worker)]
    return (
        next((j for j in lower if is_known(j)), None)
        or _beside(start, roots, NEXT_TO * reader.step)
        or _placed(lower)
        or _placed(chain)
        or start
    )


def _outlived(j: Judged, roots: list[Judged], reader: LogReader) -> bool:
    """Whether a line of an error was nothing in the end: its program told that it went on, and failed of something else later."""
    onward = reader.onward_line
    return j.seen.unit.kind == "line" and j.line < onward and any(o.line > onward for o in roots)


def _beside(start: Judged, roots: list[Judged], near: int) -> Judged | None:
    """A line right behind an exception that no rule knows, which a rule does: the rest of its message, or what its library printed."""
    after = [j for j in roots if j.seen.unit.kind == "line" and 0 < j.line - start.line <= near and is_known(j) and not _of_shell(j)]
    return min(after, key=lambda j: j.line, default=None)


def _of_shell(j: Judged) -> bool:
    """`Killed`: a shell's word on how its program ended, which says nothing of why where the program spoke before."""
    return bool(_ENDED_BY.fullmatch(j.seen.unit.text.strip()))


def _hint(judged: list[Judged], reader: LogReader) -> Judged | None:
    """Of an engine that failed without a word: a warning that explains it, or an error that it seemed to go on after; of a server that
    had been ready only what came after that.
    """
    ready = reader.course.ready_line
    if ready is not None and not reader.course.died:
        return None
    late = [j for j in judged if ready is None or j.line > ready]
    return max((j for j in late if j.role == "hint" or (passed_over(j) and _explains(j))), key=said_with, default=None)


def _explains(j: Judged) -> bool:
    """Whether such a line says by itself what is wrong: its message proves it."""
    rule = j.rule
    own = rule is not None and rule.fatal and not rule.yields and rule.priority >= 0 and rule.confidence >= EXPLAINING
    return own and j.seen.unit.kind == "line" and not is_of_request(j.seen.unit.source)


def _consequence(live: list[Judged]) -> Judged | None:
    """The earliest sign of something that is not in the text: a peer that is gone, a call that was not answered."""
    return next((j for j in live if j.role == "consequence"), None)


def _placed(judged: list[Judged]) -> Judged | None:
    """Of those of which only the place is known, the one whose place says most; of equal ones the first raised."""
    placed = [j for j in judged if j.rule is not None]
    return max(placed, key=lambda j: (j.rule.priority if j.rule else 0, -j.seen.unit.order, -j.line), default=None)


def _deeper(best: Judged, roots: list[Judged], near: int) -> Judged:
    """Where only another failure may show: a cause of a worker or the engine core, or of the lines next to it, that stands for itself;
    where that was a kind only, also one next to it whose message a rule knows.
    """
    causes = [j for j in roots if j.role == "cause" and j.rule]
    own = [j for j in causes if j.rule and not j.rule.yields and _near(j, best, near)] or [j for j in causes if _next_to(j, best, near)]
    return min(own, key=lambda j: j.line, default=best)


def _near(j: Judged, best: Judged, near: int) -> bool:
    return level_of(j.seen.unit.worker) < 2 or _next_to(j, best, near) or _of_record(j, best)


def _of_record(j: Judged, best: Judged) -> bool:
    """Whether a line and the exception after it are one record of the log: a message, and the traceback that it was logged with."""
    line, raised = best.seen.unit, j.seen.unit
    same = line.source is not None and (line.source, line.logged, line.worker) == (raised.source, raised.logged, raised.worker)
    return same and line.kind == "line" and raised.kind == "exception" and 0 < raised.line - line.line <= RECORD_LINES


def _next_to(j: Judged, best: Judged, near: int) -> bool:
    """Whether a message that a rule knows stands right behind one of which only the kind is known, or in the same record of the log."""
    weak = best.rule is not None and j.rule is not None and best.rule.priority < 0 <= j.rule.priority
    record = best.seen.unit.logged is not None and j.seen.unit.source == best.seen.unit.source
    reach = near * NEXT_TO if record else near
    return weak and j.seen.unit.worker == best.seen.unit.worker and 0 <= j.line - best.line <= reach


def _noted(judged: list[Judged], first: Judged | None) -> list[Judged]:
    """What a rule knows besides the first cause; a wait that ended by itself is nothing."""
    kept = [j for j in judged if j is not first and j.rule is not None and j.role != "hint"]
    return [j for j in kept if not (j.role == "symptom" and j.handled)]
