"""What an engine's output line is: transport prefixes peeled, then worker, level, source and text. Pure; used by watch and diagnose."""

import re

from msgspec import Struct, structs

from firstlight.engines.unwrapping import ANSI, unwrapped


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


_ANSI_NAMED = re.compile(r"(?:ESC|\^\[|␛|(?<=\))|^)\[\d{1,2}(?:;\d{1,2})*m")
_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,2})*m")
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
    re.compile(r"\[\d{2,6}\] (?=\d+\.\d\d\.\d\d\d\.\d\d\d [DIWE] )|\[\d{4,6}\] (?=[A-Za-z_/ ])"),  # llama.cpp's router: a child's port
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
_NAMED_RECORD = re.compile(r"\([\w ]+ pid=\d+\) (?=\{\")")  # releases before 0.30 name the process in front of a JSON record too
_UNLED = re.compile(r"\(((?:APIServer|EngineCore|Worker_)\w*) pid=(\d+)\) (?=[ABGHJ-VX-Za-z ])")


def parse(number: int, raw: str) -> list[Line]:
    """The line or lines in one printed piece: two processes that wrote without a newline between them are taken apart."""
    if line := _plain(number, raw, 0):
        return line
    whole = raw
    if "\x1b" in raw:
        raw = ANSI.sub("", raw)
    elif line := _unled(number, raw):
        return line
    elif raw.find("[", 0, 48) >= 0 and _COLOUR.search(raw, 0, 48):
        raw = _ANSI_NAMED.sub("", raw)
    if raw.startswith("> "):
        raw = raw[2:]
    if "pid=" in raw[:48] and _CUT.match(raw):
        raw = f"({raw}"
    if "pid=" in raw[:48] and (m := _NAMED_RECORD.match(raw)):
        raw = raw[m.end() :]
    if raw.startswith("{") and (lines := unwrapped(raw)):
        return [line for text in lines for line in parse(number, text)]
    if raw[:1] == " " and (m := _INDENTED.match(raw)):
        raw = raw[m.end() :]
    at = _carried(raw)
    if (at or raw is not whole) and (line := _plain(number, raw, at)):
        return line
    if at and raw.startswith("{", at) and (lines := unwrapped(raw[at:])):
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
