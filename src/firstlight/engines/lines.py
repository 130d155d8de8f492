"""What an engine's output line is: transport prefixes peeled, then worker, level, source and text. Pure; used by watch and diagnose."""

import calendar
import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, structs

LINE_LIMIT = 65536
REDRAWN = 4  # bars of one line with the same percentage
_BAR_ENDS = ("it/s]", "s/it]")


class Line(Struct, frozen=True, gc=False):
    """One printed line. number: 1-based by newline in the log as given (carriage returns do not count).

    worker: the process as the engine names it, with its pid where the name alone is shared by several. header: the line carried a
    logging header (level and source), so it starts a record; without one it may continue the previous record of its worker.
    """

    number: int
    text: str
    worker: str | None = None
    pid: int | None = None
    level: str | None = None
    stamp: str | None = None
    source: str | None = None
    header: bool = False


class Splitter:
    """Bytes in any chunks -> the same numbered pieces. A line over LINE_LIMIT bytes keeps its beginning; memory is constant.

    block: the bytes behind the pieces that were given last, for a look ahead over all of them.
    """

    def __init__(self) -> None:
        self.block = b""
        self._tail = b""
        self._number = 1
        self._dropping = False
        self._bars = _Bars()

    def feed(self, chunk: bytes) -> list[tuple[int, str]]:
        """Complete pieces (ended by newline or carriage return) with their line numbers; empty ones are left out."""
        if self._dropping:
            chunk = self._skip_rest(chunk)
        data = self._tail + chunk if self._tail else chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._keep(data[cut:])
        self.block = _shortened(data[:cut])
        return self._pieces(self.block) if cut else []

    def close(self) -> list[tuple[int, str]]:
        """What is left without a line end."""
        rest, self._tail = self._tail, b""
        self.block = rest
        return [*(self._pieces(rest) if rest else []), *self._bars.flush()]

    def _skip_rest(self, chunk: bytes) -> bytes:
        ends = [i for i in (chunk.find(b"\n"), chunk.find(b"\r")) if i >= 0]
        if not ends:
            return b""
        self._dropping = False
        return chunk[min(ends) :]

    def _keep(self, rest: bytes) -> None:
        if len(rest) > LINE_LIMIT:
            rest = rest[:LINE_LIMIT]
            self._dropping = True
        self._tail = rest

    def _pieces(self, block: bytes) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        number = self._number
        lines = block.decode("utf-8", "replace").split("\n")
        for line in lines:
            if "\r" in line:
                for piece in line.split("\r"):
                    if piece:
                        found += self._bars.take(number, piece)
            elif line:
                found += self._bars.take(number, line)
            number += 1
        self._number += len(lines) - 1
        return found


class _Bars:
    """Progress bars are drawn again and again in one line: of those with the same percentage the first few are given, and the last."""

    def __init__(self) -> None:
        self._drawn: tuple[int, str] | None = None
        self._times = 0
        self._held: tuple[int, str] | None = None

    def take(self, number: int, piece: str) -> list[tuple[int, str]]:
        """The pieces that are to be read now, in their order."""
        if not piece.endswith(_BAR_ENDS):
            found = [*self.flush(), (number, piece)] if self._drawn else [(number, piece)]
            self._drawn = None
            return found
        drawn = (number, piece.partition("%")[0])
        if drawn != self._drawn:
            found = [*self.flush(), (number, piece)]
            self._drawn, self._times = drawn, 1
            return found
        self._times += 1
        if self._times <= REDRAWN:
            return [(number, piece)]
        self._held = (number, piece)
        return []

    def flush(self) -> list[tuple[int, str]]:
        held, self._held = self._held, None
        return [held] if held else []


def _shortened(block: bytes) -> bytes:
    """The block with every overlong line cut to LINE_LIMIT bytes."""
    if len(block) <= LINE_LIMIT:
        return block
    lines = block.replace(b"\r", b"\r\x00").split(b"\n") if b"\r" in block else block.split(b"\n")
    if b"\r" not in block:
        return block if max(map(len, lines)) <= LINE_LIMIT else b"\n".join(line[:LINE_LIMIT] for line in lines)
    return b"\n".join(b"\r".join(p[:LINE_LIMIT] for p in line.split(b"\r")) for line in block.split(b"\n"))


_ANSI_NAMED = re.compile(r"(?:ESC|\^\[|␛|(?<=\))|^)\[\d{1,2}(?:;\d{1,2})*m")
_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,2})*m")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_LEVELS = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_NAMED = re.compile(
    r"\((?P<name>[A-Za-z_][^()=]*(?:\([^()]*(?:\([^()]*\))?\))?)?(?P<rank> rank=\d+)?,? ?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?"
)
_UNNUMBERED = re.compile(r"\((?P<name>(?:APIServer|EngineCore|Worker)\w*)\) ")
_HEADER = re.compile(
    rf"(?P<level>{_LEVELS})[: ]\s*(?:(?P<stamp>(?:\d{{4}}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\s+|(?:\.{{3}}|…|\d\d-\d\d)\s+)?"
    r"\[?(?P<source>[\w./<>-]+\.(?:py|pyx|cc|cpp)(?::\d+)?)\]\s?"
)
_BARE = re.compile(
    rf"(?P<level>{_LEVELS}):\s+"
    r"|(?P<word>ERROR|CRITICAL) (?=Traceback \(|  File \"|    |(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b|EngineCore |WorkerProc )"
)
_PYTHON = re.compile(
    rf"(?P<stamp>\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\s+(?:-\s+)?(?:(?P<level>{_LEVELS})\s+)"
    r"(?:(?:\d+ )?\[?(?P<source>[\w.]+\.py:\d+)(?:\]\s?|\s+--\s+)|-\s+)?"
)
_LLAMA = re.compile(
    r"(?:(?P<stamp>\d+\.\d\d\.\d\d\d\.\d\d\d) (?P<level>[DIWE]) "
    r"|(?P<bare>[WE]) (?=(?:ggml|llama|clip|gguf|common|alloc|graph|srv|cmn) ?\w*))"
    r"(?:(?:srv|cmn|slot|que|res|main|cli) +)?"
)
_SOURCE = re.compile(r"\[(?P<source>[\w./-]+\.py:\d+)\] ?")
_TORCH = re.compile(r"\[(?P<level>[DIWEF])\d{4} (?P<stamp>\d\d:\d\d:\d\d)(?:\.\d+)? (?:\d+ )?(?P<source>[\w.-]+:\d+)\] ?(?:\[c10d\] )?")
_SGLANG = re.compile(r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)(?P<ranks>(?: (?:DP|TP|PP|EP|ATTN_\w+?)\d+)*)\] ")
_RANK = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]:\s?")
_SHELL = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] \[[^\]\s]+\]: ")
_UNIT = r"[\w.-]+ [\w.@/:-]+(?:\[\d+\])?: "  # host and process of syslog and journald
_BEFORE_ENGINE = r"(?=\((?:APIServer|EngineCore|Worker|Vllm|Ray)|[A-Z]{4,8}:? )"
_IN_BRACKETS = (
    re.compile(r"\[(?:pod|container)/[^\]\s]+\] "),
    re.compile(rf"\[ *\d+\.\d{{6}}\] {_UNIT}"),
    re.compile(r"\[\d+,\d+\]<std(?:out|err)>:\s?"),
    re.compile(r"\[[\w.-]{1,40} std(?:out|err)\] "),
    re.compile(r"\[\d{2,6}\] (?=\d+\.\d\d\.\d\d\d\.\d\d\d [DIWE] )"),
    re.compile(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\] "),
    re.compile(rf"\[\d\d:\d\d:\d\d(?:[.,]\d+)?\] {_BEFORE_ENGINE}"),
)
_SERVICE = re.compile(r"(?:\d+\|)?[A-Za-z0-9][\w.-]*(?:@[\w.-]+)? +\| (?! {4,}\|)")
_IN_DIGITS = (
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?(?:[\w.-]+ [\w.@-]+\[\d+\]: )?"),
    re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBG '[^']+' std(?:out|err) output:\s?"),
    re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (?:\| ?|(?=\((?:APIServer|EngineCore|Worker|Vllm|Ray)|[A-Z]{4,8} \d\d-\d\d ))"),
    re.compile(r"\d{1,4}: "),
    re.compile(rf"\d{{10}}\.\d{{6}} {_UNIT}"),
    re.compile(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\.\d{5} "),
    re.compile(rf"\d\d:\d\d:\d\d(?:[.,]\d+)? {_BEFORE_ENGINE}"),
    _SERVICE,
)
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_CALENDAR_WORDS = frozenset([*_MONTHS.split("|"), "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
_IN_LETTERS = (
    re.compile(rf"(?:{_MONTHS}) [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:{_UNIT}|{_BEFORE_ENGINE})"),
    re.compile(rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [A-Z+-][\w+-]* {_UNIT}"),
    _SERVICE,
)
_IN_PARENTHESES = (re.compile(r"\((?:autoscaler \+[\dhms]+|raylet|gcs_server)(?:, ip=[\w.:]+)?\) "),)
_IN_AT = (re.compile(r"@[0-9a-f]{24} "),)
_STARTS = frozenset("[(@")
_GLUED = re.compile(
    rf"(?<=.)(?=(?:\((?:APIServer|EngineCore|Worker|VllmWorker)[^()]{{0,40}} pid=\d+\) )?{_LEVELS} "
    r"\d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+\.py)"
    r"|(?<=it/s\])(?=\S)|(?<=s/it\])(?=\S)"
    r"|(?<=[^ )])(?=\((?:APIServer|EngineCore|Worker|VllmWorker)[^()]{0,40} pid=\d+\) )"
)
_REPEATED = re.compile(r" \[repeated (\d+)x across (?:cluster|all nodes)[^\]]*\]$")
_INDENTED = re.compile(rf" +(?=\((?:APIServer|EngineCore|Worker|VllmWorker|RayWorker)[^()]{{0,40}} ?pid=\d+|{_LEVELS} \d\d-\d\d )")
_SHARED_NAMES = frozenset({"VllmWorkerProcess", "RayWorkerWrapper", "RayWorkerProc", "Worker", "VllmWorker", "ServeReplica", "pid"})


_PLAIN = re.compile(
    r"(?:\(((?:APIServer|EngineCore|Worker_)\w*) pid=(\d+)\) )?"
    r"(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) \[([\w.]+\.py:\d+)\] ?"
    r"|(INFO|WARNING|ERROR): +)"
)
_CUT = re.compile(r"(?:APIServer|EngineCore|VllmWorker|RayWorker|Worker)[\w ]{0,40}pid=\d+(?:, ip=[\w.:]+)?\) ")
_SECOND = re.compile(r"pid=\d+\) |(?:it/s|s/it)\]\S|(?:INFO|ERROR|WARNING) \d\d-")
_UNLED = re.compile(r"\(((?:APIServer|EngineCore|Worker_)\w*) pid=(\d+)\) (?=[ABGHJ-VX-Za-z ])")


def parse(number: int, raw: str) -> list[Line]:
    """The line or lines in one printed piece: two processes that wrote without a newline between them are taken apart."""
    if line := _plain(number, raw, 0):
        return line
    whole = raw
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    elif line := _unled(number, raw):
        return line
    elif raw.find("[", 0, 48) >= 0 and _COLOUR.search(raw, 0, 48):
        raw = _ANSI_NAMED.sub("", raw)
    if raw.startswith("> "):
        raw = raw[2:]
    if "pid=" in raw[:48] and _CUT.match(raw):
        raw = f"({raw}"
    if raw.startswith("{") and (lines := _unwrapped(raw)):
        return [line for text in lines for line in parse(number, text)]
    if raw[:1] == " " and (m := _INDENTED.match(raw)):
        raw = raw[m.end() :]
    at = _carried(raw)
    if (at or raw is not whole) and (line := _plain(number, raw, at)):
        return line
    if at and raw.startswith("{", at) and (lines := _unwrapped(raw[at:])):
        return [line for text in lines for line in parse(number, text)]
    return _apart(number, raw) if _SECOND.search(raw, 8) else [_one(number, raw)]


def _plain(number: int, raw: str, at: int) -> list[Line] | None:
    """The common line of today's vLLM, read with one pattern from `at` on; None for every other."""
    m = _PLAIN.match(raw, at)
    if m is None:
        return None
    text = _text(raw, m.end())
    if ("pid=" in text or "it" in text or "INFO " in text or "ERROR " in text or "WARNING " in text) and _SECOND.search(raw, m.end()):
        return _apart(number, raw)
    name, pid, level, stamp, source, bare = m.groups()
    return [Line(number, text, name, int(pid) if pid else None, level or bare, stamp, source, True)]


def _unled(number: int, raw: str) -> list[Line] | None:
    """A line of a named process without a header (a bar, a traceback's line), read with one pattern; None for every other."""
    m = _UNLED.match(raw)
    if m is None or raw.find("[", 0, 48) >= 0 or _SECOND.search(raw, m.end()) or _transport(raw, m.end()):
        return None
    return [Line(number, _text(raw, m.end()), m[1], int(m[2]))]


def _carried(raw: str) -> int:
    """Where the text behind the transports' prefixes starts, where processes' names may follow; 0 for a line without them."""
    at = 0
    for _ in range(3):
        if raw.startswith("(", at) or at >= len(raw):
            break
        m = _transport(raw, at)
        if m is None:
            break
        at = m.end()
    return at


def _apart(number: int, raw: str) -> list[Line]:
    """The lines of one piece; one without a name of its own is of the process before it."""
    lines = [_one(number, part) for part in _glued(raw)]
    first = lines[0]
    return [first, *(line if line.worker else structs.replace(line, worker=first.worker, pid=first.pid) for line in lines[1:])]


def _glued(raw: str) -> list[str]:
    """Splits where a second full prefix starts behind text; a prefix nested right behind another is not a second line."""
    head = _peel(raw)[0]
    cuts: list[int] = []
    for m in _GLUED.finditer(raw):
        if m.start() > head:
            cuts.append(m.start())
            head = m.start() + _peel(raw[m.start() :])[0]
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


def _peel(raw: str) -> tuple[int, str | None, int | None, str | None]:
    """Where the text behind transport prefixes and process names starts, the innermost process name, its pid and its stamp."""
    at, name, pid, stamp = 0, None, None, None
    for _ in range(8):
        if at >= len(raw) or (raw[at] not in _STARTS and not raw[at].isalnum()):
            break
        if raw[at] == "(" and (m := _NAMED.match(raw, at)):
            name, pid = _process(m), int(m["pid"])
        elif raw[at] == "(" and (m := _UNNUMBERED.match(raw, at)):
            name = m["name"]
        elif raw[at] == "[" and (m := _SHELL.match(raw, at)):
            pass
        elif raw[at] == "[" and (m := _SGLANG.match(raw, at)):
            name, stamp = m["ranks"].strip().replace(" ", "_") or name, m["stamp"]
        elif raw[at] == "[" and (m := _RANK.match(raw, at)):
            name = name or f"rank{m['rank']}"
        else:
            m = _transport(raw, at)
        if m is None:
            break
        at = m.end()
    return at, name, pid, stamp


def _transport(raw: str, at: int) -> "re.Match[str] | None":
    """A transport's prefix that begins there. Most lines carry none: what a prefix must begin with is looked at first."""
    first = raw[at]
    patterns: tuple[re.Pattern[str], ...]
    if first.isdigit():
        patterns = _IN_DIGITS
    elif first in _STARTS:
        patterns = _IN_BRACKETS if first == "[" else _IN_PARENTHESES if first == "(" else _IN_AT
    elif raw[at : at + 3] in _CALENDAR_WORDS:
        patterns = _IN_LETTERS
    elif "| " in raw:
        patterns = (_SERVICE,)
    else:
        return None
    for pattern in patterns:
        if m := pattern.match(raw, at):
            return m
    return None


def _process(m: "re.Match[str]") -> str:
    name = (m["name"] or "pid").strip()
    rank = (m["rank"] or "").strip()
    return f"{name} {rank}" if rank else own_name(name, int(m["pid"]))


def own_name(name: str, pid: int | None) -> str:
    """A process's name, with its pid where several processes share the name."""
    return f"{name} pid={pid}" if pid is not None and name.split(" ")[0].split("(")[0] in _SHARED_NAMES else name


def _one(number: int, raw: str) -> Line:
    at, name, pid, stamp = _peel(raw)
    m = next((m for p in _HEADERS.get(raw[at : at + 1], ()) if (m := p.match(raw, at))), None)
    if m is None:
        return Line(number, _text(raw, at), name, pid, None, stamp, None, stamp is not None)
    found = m.groupdict()
    return Line(
        number,
        _text(raw, m.end()),
        name,
        pid,
        _level(found.get("level") or found.get("bare") or found.get("word")),
        found.get("stamp") or stamp,
        found.get("source"),
        True,
    )


_HEADERS: dict[str, tuple["re.Pattern[str]", ...]] = {  # by what they begin with
    **dict.fromkeys("DICF", (_HEADER, _BARE)),
    **dict.fromkeys("WE", (_HEADER, _BARE, _LLAMA)),
    **dict.fromkeys("0123456789", (_LLAMA, _PYTHON)),
    "[": (_TORCH, _SOURCE),
}
_SHORT = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "WARN": "WARNING", "FATAL": "CRITICAL"}


def _level(level: str | None) -> str | None:
    return _SHORT.get(level, level) if level else None


def _text(raw: str, at: int) -> str:
    text = raw[at:]
    return _REPEATED.sub("", text) if text.endswith("]") else text


def _unwrapped(raw: str) -> list[str]:
    """A line wrapped as JSON by a container runtime, by journald or by a JSON logging configuration, as the engine would have printed it.

    A message of several lines and its traceback are as many lines. Empty for what is no such line.
    """
    try:
        record = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    if not isinstance(record, dict):
        return []
    if isinstance(log := record.get("log"), str):
        return log.rstrip("\r\n").split("\n")
    if (entry := _journal_entry(record)) is not None:
        return entry.split("\n")
    message = record.get("message") or record.get("msg")
    if not isinstance(message, str):
        return []
    trace = record.get("exc_info") or record.get("stack_info")
    header, text = _header_of(record), f"{message}\n{trace}" if isinstance(trace, str) else message
    return [f"{header} {line}" for line in text.split("\n")]


def _header_of(record: dict[str, Any]) -> str:
    """`(EngineCore pid=7) INFO 2026-10-12 08:00:05,123 [core.py:9]` of a JSON record."""
    name = record.get("vllm_process_name") or record.get("processName") or "pid"
    name = "APIServer" if name == "MainProcess" else name
    pid, logger = record.get("process"), str(record.get("name") or "log").rsplit(".", 1)[-1]
    level, time = record.get("levelname") or record.get("level") or "INFO", record.get("asctime")
    source = f"{record.get('filename', f'{logger}.py')}:{record.get('lineno', 0)}"
    prefix = f"({name} pid={pid}) " if isinstance(pid, int) else ""
    stamp = f" {time}" if isinstance(time, str) and _CALENDAR.fullmatch(time) else ""
    return f"{prefix}{str(level).upper()}{stamp} [{source}]"


def _journal_entry(record: dict[str, Any]) -> str | None:
    """The line in `journalctl -o json`: text, or bytes as numbers where it holds colours."""
    entry = record.get("MESSAGE")
    if isinstance(entry, list) and all(isinstance(b, int) and 0 <= b < 256 for b in entry):
        entry = _ANSI.sub("", bytes(entry).decode("utf-8", "replace"))
    return entry if isinstance(entry, str) else None


_CALENDAR = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?")
_SINCE_START = re.compile(r"(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d)")


@lru_cache(maxsize=64)
def seconds_of(stamp: str) -> float | None:
    """A line's own time in seconds: Unix time for a calendar stamp (2000 where it has no year), since the start for llama.cpp's."""
    if m := _SINCE_START.fullmatch(stamp):
        return int(m[1]) * 60 + int(m[2]) + int(m[3]) / 1e3 + int(m[4]) / 1e6
    if (m := _CALENDAR.match(stamp)) is None or not 1 <= int(m[2]) <= 12 or not 1 <= int(m[3]) <= 31:
        return None
    whole = calendar.timegm((int(m[1] or 2000), int(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6])))
    return whole + float(f"0.{m[7] or 0}")
