"""What counts of each unit in a log: the one rule, its role, whether the engine went on after it, and how sure one may be of it."""

from msgspec import Struct

from firstlight.catalog.milestones import RANK
from firstlight.catalog.rules import Rule
from firstlight.diagnose.course import ENDED
from firstlight.diagnose.log import VAGUE, LogReader, Seen
from firstlight.diagnose.matching import Match
from firstlight.diagnose.messages import says_ended

_ROLE_ORDER = {"cause": 0, "consequence": 1, "symptom": 2, "hint": 3, "wrapper": 4}
CONTESTED = 0.65  # confidence at most where the place speaks of something else
SURE = 0.7  # confidence from which on a verdict is not called a guess
_ENDS = frozenset({"process-crashed", "process-killed"})
_FOR_ANYTHING = frozenset(  # exceptions whose messages do not say what they are about
    {"JSONDecodeError", "UnicodeDecodeError", "FileNotFoundError", "NotADirectoryError", "EOFError", "TimeoutError", "ConnectionError"}
    | {"ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "StopIteration"}
)
GENERAL = -10  # rules of this priority and below know a place, not a message


class Judged(Struct, frozen=True, kw_only=True):
    """A unit with the one match that counts. role: the match's, or `unknown`. handled: the engine went on after it."""

    seen: Seen
    match: Match | None
    role: str
    handled: bool

    @property
    def rule(self) -> Rule | None:
        return self.match.rule if self.match else None

    @property
    def line(self) -> int:
        return self.seen.unit.line


def judge(reader: LogReader) -> list[Judged]:
    return [_judged(seen, reader) for seen in sorted(reader.seen, key=lambda s: s.unit.line)]


def _judged(seen: Seen, reader: LogReader) -> Judged:
    match = _best(seen, reader)
    role = match.rule.role if match else "unknown"
    return Judged(seen=seen, match=match, role=role, handled=_handled(seen, match, reader))


def _best(seen: Seen, reader: LogReader) -> Match | None:
    phase = seen.unit.phase
    fitting = [m for m in seen.matches if reader.holds(m.rule) and (not m.rule.only_phases or phase in m.rule.only_phases)]
    return min(fitting, key=lambda m: (-m.rule.priority, _ROLE_ORDER[m.rule.role], -_narrowness(m.rule)), default=None)


def _narrowness(rule: Rule) -> int:
    return sum(map(bool, (rule.frames, rule.places, rule.with_log, rule.unless, rule.unless_log, rule.only_phases, rule.versions)))


def _handled(seen: Seen, match: Match | None, reader: LogReader) -> bool:
    """Whether the start went on: the same process reached a later phase, or the engine as a whole did. Of a process that is said to
    have crashed only a server that got ready went on: the lines behind it, where none is named, are of others.
    """
    unit = seen.unit
    if reader.course.ready_line and unit.line < reader.course.ready_line:
        return True
    if says_ended(unit.text):
        return False
    if match is not None and match.rule.code in _ENDS and unit.kind == "line" and unit.worker is None:
        return False
    for line, phase, worker in reader.course.moves:
        if line > unit.last_line and phase not in ENDED and (worker == unit.worker or RANK[phase] >= RANK["kv-allocation"]):
            return True
    return False


def is_general(j: Judged) -> bool:
    """Whether only the place or kind of an exception is known: it counts as one that no rule knows."""
    return j.rule is not None and j.rule.priority <= GENERAL and j.seen.unit.kind == "exception"


def is_known(j: Judged) -> bool:
    return j.role == "cause" and not is_general(j)


def is_contested(j: Judged) -> bool:
    """Whether an exception that is raised for anything, known by its message alone, came from a place that the rules put elsewhere."""
    if j.rule is None or j.seen.unit.type not in _FOR_ANYTHING or j.rule.frames or j.rule.places or not j.seen.unit.frames:
        return False
    placed = [m.rule for m in j.seen.matches if m.rule.places and m.rule.priority > VAGUE]
    best = max(placed, key=lambda r: r.priority, default=None)
    return best is not None and best.code != j.rule.code


def said_with(j: Judged) -> float:
    """The confidence with which its rule may be said here: contested, or of something that the start went on after, it is less."""
    confidence = j.rule.confidence if j.rule else 0.0
    confidence = min(confidence, CONTESTED) if is_contested(j) else confidence
    return min(confidence, SURE) if passed_over(j) else confidence


def passed_over(j: Judged) -> bool:
    """Whether the start went on after what a rule knows as a cause: it may be why it failed in the end, where nothing else is."""
    return j.handled and j.role == "cause"
