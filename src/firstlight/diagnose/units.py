"""From lines to units: tracebacks put together per worker, chains kept, every rank's copy found again."""

import re

from msgspec import Struct

from firstlight.diagnose.messages import raising, typed_message
from firstlight.diagnose.processes import process_of
from firstlight.engines.lines import Line

FRAMES_KEPT = 80
FRAME_CHARS = 400
STREAMS_KEPT = 2048
_SIDE = "\0beside"
LAST = 1000  # in a chain: behind everything that was raised
MESSAGE_LINES = 40
MESSAGE_CHARS = 8000

_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Group|OutOfResources|Fault|Resources|NotFound|Timeout|Empty|Full|Failed|Refused|Failure)"
    r"|[A-Z]\w*Error_\w*|Exception)(?:\([\w.]+\))?)(?:: ?(?P<message>.*))?$",
    re.DOTALL,
)
_IN_TRACEBACK = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\([\w.]+\))?(?:: ?(?P<message>.*))?$", re.DOTALL)
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_GROUP = re.compile(r"^[ |+-]*\|? ?")
FRAME = re.compile(r'\s{0,8}File "[^"]+", line \d+(?:, in \S|,$|$)')
_IMPORTING = re.compile(r"from \S+ import|import \S|\)$|[\w.]+(?: as \w+)?,$")
_WINDOWS = re.compile(r'File "[^"]+"')  # its path is written with / like everybody's
_FIELD = re.compile(  # indented, and no traceback's code: `Reason:       OOMKilled` of a description, a record of llama.cpp
    r"[A-Z][A-Za-z ]{1,30}: {2,}\S|\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |(?:ggml|llama|gguf|clip|common)_\w+: "
    r"|Found GPU\d+ |PyTorch no longer supports|(?:rt|acl|[Hh]ccl)\w+ execute failed"
)
_PROMPT = re.compile(r"(?:\([\w.-]+\) )?\S{0,60}[$#>%]\s*$|```|Process \S+:$")  # what ends a traceback that a paste cuts
_OTHERS = ("Process ", "[rank", "INFO:", "ERROR:", "nanobind:", "warnings.warn(", "```")  # lines that are no more of a message
_WARNED = re.compile(r"\S+:\d+: \w*Warning: |\[[WEIF]\d{3,4} \d\d:\d\d:")
_IN_METHOD = re.compile(r"Exception in worker \S+ while processing method \w+: (?P<message>\S.*?),? Traceback \(most recent call last\)")
_REFUSED = re.compile(r"error: argument -\S+: \d+ validation errors? for \w+$")  # what is wrong stands in the lines behind it
_COUNTED = re.compile(r"\d validation errors? for \w+\s*$")


class Unit(Struct, kw_only=True):
    """One thing that went wrong, as printed by one process.

    kind: `exception` or `line`. text: `Type: message` with the message's further lines. frames: the traceback's lines, oldest first.
    chain: units of one `raise from` or `during handling` chain share it; order: place in the chain, 0 is the first raised.
    logged: its level where it came through the logger (an INFO or WARNING traceback was handled by the engine).
    carried: its message went on in lines without the process's prefix. place: `path:function` that raised it, where that is known.
    torn: the log ends in its frames; what was raised is not in it, or only as the line of code that raised it.
    inverted: its frames stand below it.
    """

    kind: str
    line: int
    text: str
    worker: str | None = None
    type: str | None = None
    frames: list[str] = []
    chain: int = 0
    order: int = 0
    logged: str | None = None
    source: str | None = None
    phase: str | None = None
    last_line: int = 0
    carried: bool = False
    place: str | None = None
    torn: bool = False
    inverted: bool = False

    @property
    def head(self) -> str:
        """The unit's first line."""
        return self.text.split("\n", 1)[0]


def is_half_told(unit: Unit) -> bool:
    """Whether the last frame of a torn traceback is none that tells where it failed: cut itself, or one of an import on its way deeper."""
    frames = [text for frame in unit.frames if (text := frame.strip(" ^~"))]
    where = next((frame for frame in reversed(frames) if frame.startswith("File ")), "")
    on_its_way = frames[-1] == where or bool(_IMPORTING.match(frames[-1]))
    return not FRAME.match(where) or (where.endswith("in <module>") and on_its_way)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" \t"))


class _Stream:
    """What one process is in the middle of printing."""

    __slots__ = ("chain", "flat", "frames", "headed", "indent", "last", "linked", "open", "order", "outer", "source", "unit")

    def __init__(self) -> None:
        self.open = False
        self.indent = 0
        self.outer = 0
        self.flat = False
        self.headed = False
        self.frames: list[str] = []
        self.last: Line | None = None
        self.unit: Unit | None = None
        self.source: str | None = None
        self.linked = False
        self.chain = 0
        self.order = 0


class Collector:
    """Feeds on lines; finished units come out in the order in which they were printed."""

    def __init__(self) -> None:
        self._streams: dict[str | None, _Stream] = {}
        self._chains = 0
        self._latest: _Stream | None = None
        self._newest = 0
        self.step = 1  # from a line's number to the next one's

    def feed(self, line: Line) -> list[Unit]:
        stream = self._stream_that_waits(line) or self._streams.get(line.worker)
        stream = self._beside(stream, line) if stream is not None and stream.headed and not line.header else stream
        if stream is None:
            stream, forgotten = _Stream(), self._forget()
            self._streams[line.worker] = stream
            return [*forgotten, *self._read(stream, line)]
        return self._read(stream, line)

    def _beside(self, stream: _Stream, line: Line) -> _Stream:
        """A logger's traceback is still open when the same process prints past it, without a header: that is another stream."""
        side = self._streams.get(f"{line.worker}{_SIDE}")
        if side is not None and side.open:
            return side
        if not stream.open or line.text[:1] in (" ", "\t", "") or _EXCEPTION.match(line.text):
            return stream
        return self._streams.setdefault(f"{line.worker}{_SIDE}", _Stream())

    def _read(self, stream: _Stream, line: Line) -> list[Unit]:
        text = line.text
        if "|" in text[:12] and text.lstrip()[:1] in ("|", "+"):
            text = _GROUP.sub("", text, count=1)
        if "Traceback (most recent call last)" in text:
            done = self._closed(stream)
            self._begin(stream, line)
            return [*done, *(self._said_of_method(stream, line, text) or self._said_before(line, text))]
        if stream.indent and text[: stream.indent].isspace():
            text = text[stream.indent :]
        if stream.open:
            return self._inside(stream, line, text)
        return self._after(stream, line, text)

    def _stream_that_waits(self, line: Line) -> _Stream | None:
        """A line without any prefix right behind an exception of a named process: its message goes on there, where it has none yet."""
        latest = self._latest
        if latest is None or latest.unit is None or line.worker is not None or line.header or not line.text.strip():
            return None
        unit = latest.unit
        empty = unit.text.rstrip().endswith((":", ",")) or bool(_COUNTED.search(unit.text))
        indented = line.text[:1] == " " and not FRAME.match(line.text) and (unit.logged is None or line.text.startswith(" " * 16))
        return latest if line.number == unit.last_line + self.step and (empty or indented or unit.carried) else None

    def close(self) -> list[Unit]:
        """Units still open at the end of the log, in printed order."""
        units = [u for s in self._streams.values() for u in self._torn(s) + self._closed(s)]
        return sorted(units, key=lambda u: u.line)

    def _torn(self, stream: _Stream) -> list[Unit]:
        """A traceback that the log's end cut before its exception: where it happened is known, what is not."""
        if not stream.open or stream.last is None or stream.last.number < self._newest or not any(FRAME.match(f) for f in stream.frames):
            return []
        said = raising(stream.frames[-1]) or "Exception"
        unit = self._unit(stream, stream.last, said, said.split(":", 1)[0].split(".")[-1])
        unit.torn = True
        return [unit]

    def _forget(self) -> list[Unit]:
        """Names of processes come and go (Ray): where there are many, those in the middle of nothing are forgotten, and of the others
        the older half says what it has."""
        if len(self._streams) < STREAMS_KEPT:
            return []
        busy = [(name, s) for name, s in self._streams.items() if s.open or s.unit is not None]
        older = busy[: len(busy) - STREAMS_KEPT // 2] if len(busy) > STREAMS_KEPT // 2 else []
        self._streams = dict(busy[len(older) :])
        return [unit for _, s in older for unit in self._closed(s)]

    def _begin(self, stream: _Stream, line: Line) -> None:
        stream.open, stream.flat, stream.headed, stream.frames, stream.source = True, False, False, [], line.source
        stream.indent = len(line.text) - len(line.text.lstrip(" "))
        stream.outer = 0
        if stream.linked:
            stream.order += 1
        else:
            self._chains += 1
            stream.chain, stream.order = self._chains, 0
        stream.linked = False

    def _said_of_method(self, stream: _Stream, line: Line, text: str) -> list[Unit]:
        """V0's workers print what a call raised, without its type, in the line in which the traceback begins."""
        m = _IN_METHOD.search(text)
        if m is None:
            return []
        said = typed_message(m["message"])
        unit = self._unit(stream, line, said, said.split(":", 1)[0])
        unit.frames, unit.order = [], LAST
        return [unit]

    def _said_before(self, line: Line, text: str) -> list[Unit]:
        """What stands in front of a traceback in its line, where that is a sentence of its own (`…, Traceback …:`)."""
        before = text.partition("Traceback (most recent call last)")[0].strip()
        return [self._plain(line, before.rstrip(" ,"))] if before.endswith(",") else []

    def _torn_open(self, stream: _Stream, line: Line, text: str) -> list[Unit]:
        """A frame without the beginning of its traceback: the paste starts in the middle."""
        self._begin(stream, line)
        stream.indent = 0
        return self._inside(stream, line, text)

    def _inside(self, stream: _Stream, line: Line, text: str) -> list[Unit]:
        stripped, indent = text.lstrip(" "), _indent(text)
        if "\\" in text and stripped.startswith('File "'):
            text = _WINDOWS.sub(lambda m: m[0].replace("\\", "/"), text, count=1)
        if stripped.startswith('File "') and not stream.frames:
            stream.outer = indent  # a frame's own indentation: code is deeper, what was raised is not
        if stream.frames and indent <= stream.outer and _EXCEPTION.match(stripped):
            text = stripped
        stream.last, stream.headed = line, line.header
        if text[:1] in (" ", "\t") or not text.strip():
            if len(stream.frames) >= FRAMES_KEPT:
                del stream.frames[1]
            stream.frames.append(text.strip()[:FRAME_CHARS])
            return []
        if line.header and line.source != stream.source:
            stream.open = False
            return self._after(stream, line, text)
        if text.startswith('File "'):
            stream.flat = True
        if stream.flat and not _EXCEPTION.match(text):
            stream.frames.append(text.strip()[:FRAME_CHARS])
            return []
        m = _IN_TRACEBACK.match(text)
        if m is None and not stream.frames:
            return []
        if m is None and _PROMPT.match(text):
            done, stream.open = self._torn(stream), False
            return done
        stream.open, stream.outer = False, indent
        stream.unit = self._unit(stream, line, text, m["type"].split(".")[-1] if m else None)
        self._latest = stream
        return []

    def _after(self, stream: _Stream, line: Line, text: str) -> list[Unit]:
        """Behind an exception: more of its message, a link to the next traceback, or something else."""
        stripped = text.strip()
        if stripped.startswith((_CAUSE, _CONTEXT)):
            stream.linked = True
            return self._closed(stream)
        unit = stream.unit
        belongs = unit is not None and self._continues(stream, unit, line, stripped)
        if belongs and unit is not None and (unit.inverted or not unit.frames) and self._below(unit, line, text):
            return []
        if belongs and unit is not None and not (stripped and _indent(text) <= stream.outer and _EXCEPTION.match(stripped)):
            self._extend(unit, line, text)
            return []
        done = self._closed(stream)
        if m := _EXCEPTION.match(stripped):
            if not belongs:
                self._chains += 1
                stream.chain, stream.order, stream.frames = self._chains, 0, []
            else:
                stream.order += 1
            stream.source = line.source
            stream.unit = self._unit(stream, line, stripped, m["type"].split("(")[0].split(".")[-1])
            self._latest = stream
            return done
        if stripped:
            stream.linked = False
        if FRAME.match(text):
            return [*done, *self._torn_open(stream, line, text)]
        if (text.startswith("    ") and not (line.header and text.startswith("      "))) or stripped.startswith(("raise ", "^^^^")):
            return done + ([self._plain(line, stripped)] if _FIELD.match(stripped) else [])
        plain = self._plain(line, stripped) if stripped else None
        if plain is not None and not line.header and _REFUSED.search(stripped):
            stream.unit = plain
            return done
        return done + ([plain] if plain is not None else [])

    def _continues(self, stream: _Stream, unit: Unit, line: Line, stripped: str) -> bool:
        if _WARNED.match(stripped):
            return False
        if line.worker is None and unit.worker is not None and self._latest is stream and not line.header:
            unit.carried = True
            return unit.text.count("\n") < MESSAGE_LINES
        if unit.text.count("\n") >= MESSAGE_LINES or stripped.startswith(_OTHERS):
            return False
        if unit.logged is None:
            return not line.header
        return line.header and line.source == unit.source and line.level == unit.logged

    def _below(self, unit: Unit, line: Line, text: str) -> bool:
        """Takes a frame, or its code, that somebody put below what was raised."""
        frame = FRAME.match(text)
        if not (frame or (unit.inverted and len(unit.frames) < FRAMES_KEPT and FRAME.match(unit.frames[-1]))):
            return False
        unit.frames.append(text.strip()[:FRAME_CHARS])
        unit.inverted, unit.last_line = True, line.number
        return True

    def _extend(self, unit: Unit, line: Line, text: str) -> None:
        unit.last_line = line.number
        if text.strip() and len(unit.text) < MESSAGE_CHARS:
            unit.text += " " + text.strip()[:2000] if unit.text.endswith(":") and "\n" not in unit.text else "\n" + text.rstrip()[:2000]

    def _unit(self, stream: _Stream, line: Line, text: str, type_: str | None) -> Unit:
        self._newest = line.number
        return Unit(
            kind="exception",
            line=line.number,
            last_line=line.number,
            text=text.rstrip()[:MESSAGE_CHARS],
            worker=line.worker or process_of(stream.frames),
            type=type_,
            frames=stream.frames,
            chain=stream.chain,
            order=stream.order,
            logged=line.level,
            source=line.source,
        )

    def _plain(self, line: Line, text: str) -> Unit:
        return Unit(
            kind="line",
            line=line.number,
            last_line=line.number,
            text=text[:MESSAGE_CHARS],
            worker=line.worker,
            logged=line.level,
            source=line.source,
        )

    def _closed(self, stream: _Stream) -> list[Unit]:
        unit, stream.unit = stream.unit, None
        stream.open = False
        return [unit] if unit is not None else []
