"""What a failure that no rule knows is like: the words of its message, its frames and the lines beside it, weighed against known ones."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from firstlight.catalog.words import load_words
from firstlight.diagnose.decide import NEXT_TO, Decision
from firstlight.diagnose.log import LogReader
from firstlight.diagnose.messages import essence, says_ended
from firstlight.diagnose.noise import speaks_of_error
from firstlight.diagnose.place import only_hands_on
from firstlight.diagnose.units import Unit

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_PIECE = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{3,}(?![a-z])")
_PATH = re.compile(r"(?:~|\.{0,3})/(?:[\w.@+=-]+/)*(?P<name>[\w.@+=-]*)")
_FRAME = re.compile(r'File "(?P<path>[^"\s]+)", line \d+(?:, in (?P<function>\S+))?')
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "the and for with this that from not but are was has have you can see above root cause error runtimeerror self file line return"
        " raise engine core worker pid info warning most recent call last traceback python3 dist packages site lib local usr opt vllm none"
        " true false int",
    )
)
_MESSAGE_CHARS = 600
_FRAMES_READ = 12
_FOLDERS = 3
_TOLD = frozenset({"cause", "unknown", "symptom", "hint"})  # what is no wrapper and no consequence
_HANDS_ON = re.compile(  # what a process says of another, and of itself without a reason
    r"(?:Proc|Core|[Ww]orker|[Ee]ngine|[Ss]cheduler|child)\w*\b[^\n]{0,40}\b(?:failed to (?:start|initialize)|initialization failed"
    r"|encountered|hit an exception|died|dead|exited|failed\.?$)"
    r"|^Dumping |stack trace|root cause|sigquit|exiting due to|process disappeared|^Unexpected error"
)
_MOST = 4
_NEAR = 0.1
_FEWEST = 3  # own words without which nothing is named
_KNOWN = 0.5  # share of the message's own words that must have been learned at all: what is told in other words is about something else
_SPEAKING = 2  # words of the message itself that must speak for the code
_OF_PYTHON = frozenset({"list", "index", "out", "range", "object", "attribute", "nonetype", "none", "type", "subscriptable", "iterable"})


def told(decision: Decision, reader: LogReader) -> list[Unit]:
    """What tells of the failure: the first exception, its chain and the lines next to it; without one, the first lines of trouble."""
    first = decision.first
    if first is None:
        units = [j.seen.unit for j in decision.judged if j.role in _TOLD and not j.handled and (j.rule is None or j.rule.fatal)]
        return (_telling(units) or _telling([u for u in reader.murmurs if speaks_of_error(u.text)]))[:_MOST]
    chain = first.seen.unit.chain
    near = [
        j
        for j in decision.judged
        if j.role in _TOLD and (abs(j.line - first.line) <= NEXT_TO * reader.step or (chain and j.seen.unit.chain == chain))
    ]
    return _telling([j.seen.unit for j in near if j.role != "hint"])


def _telling(units: Sequence[Unit]) -> list[Unit]:
    return [u for u in units if essence(u.text) is not None or not (_HANDS_ON.search(u.head) or says_ended(u.head))]


def words_of(units: Iterable[Unit]) -> frozenset[str]:
    """The words of what went wrong: of messages and lines as they are and in pieces, of types, files, folders and functions with a mark."""
    found: set[str] = set()
    for unit in units:
        found.update(_words((essence(unit.text) or unit.text)[:_MESSAGE_CHARS]))
        found.update(_marks(unit))
    return frozenset(found)


def _words(text: str) -> Iterator[str]:
    for word in _WORD.findall(_PATH.sub(lambda m: m["name"], text)):
        if word.lower() not in _COMMON:
            yield word.lower()
        pieces = _PIECE.findall(word)
        if len(pieces) > 1:
            yield from (piece.lower() for piece in pieces if piece.lower() not in _COMMON)


def _marks(unit: Unit) -> Iterator[str]:
    """`t:` an exception's type, `f:` files and functions, `d:` folders of the innermost frames, `p:` the place that raised it."""
    if unit.type:
        yield f"t:{unit.type}"
    if unit.place:
        yield f"p:{unit.place}"
    for frame in unit.frames[-_FRAMES_READ:]:
        m = _FRAME.search(frame)
        if m is None:
            yield from _words(frame)
            continue
        *folders, file = m["path"].split("/")
        yield f"f:{file}"
        yield from (f"d:{folder}" for folder in folders[-_FOLDERS:] if folder)
        if m["function"]:
            yield f"f:{m['function']}"


def _own_words(units: Sequence[Unit]) -> set[str]:
    """Those that are not of every failure: without the exception's type, Python's own messages and the loops that only hand calls on."""
    own = [structs.replace(u, frames=_own_frames(u.frames), place=None, type=None) for u in units]
    return set(words_of(own)) - {word for u in units for word in _words(u.type or "")} - _OF_PYTHON


def _own_frames(frames: Sequence[str]) -> list[str]:
    found, hands_on = [], False
    for frame in frames:
        m = _FRAME.search(frame)
        hands_on = only_hands_on(m["path"]) if m is not None else hands_on
        if not hands_on:
            found.append(frame)
    return found


def near_by_words(units: Sequence[Unit], reader: LogReader) -> list[str]:
    """Codes that have some share of these words and of whose failures the message itself speaks, the nearest first. Never a verdict."""
    if reader.only_rules or len(_own_words(units)) < _FEWEST:
        return []
    message = _own_words([structs.replace(u, frames=[]) for u in units])
    words = load_words()
    known = words.known(message)
    if len(known) < _KNOWN * len(message):
        return []
    return [code for code, share in words.shares(words_of(units)) if share >= _NEAR and len(words.telling(known, code)) >= _SPEAKING]
