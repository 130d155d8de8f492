"""What a line is by its looks: an access log, a native library's error, a word of trouble, a request's, a block's indentation."""

import re
from collections.abc import Sequence
from itertools import pairwise

from firstlight.engines.lines import Line

QUIET = frozenset({"INFO", "DEBUG", "WARNING"})
LOUD = frozenset({"ERROR", "CRITICAL"})
ROUTINE = frozenset({"INFO", "DEBUG"})
_ENDING = re.compile(r"(?i)shut|stop|terminat|kill|exit|abort|destroy|clean|clos|fail|error|dead|died|finished|disconnect")
_TROUBLE = re.compile(  # in lower case; no alternative begins with an assertion, so that most characters are passed over at once
    r"error|fail|fatal|cannot|can't|could ?n.t|could not|unable|kill|abort|denied|not found|no such|warn|exception|out of memory|oom"
    r"|no space|invalid|recognized|unsupported|not supported|in use|terminat|timed out|timeout|too (?:many|old|small)|died|refused"
    r"|unexpected|unknown|missing|exceed|assert|segfault|corrupt|mismatch|incompatible|already|no module|no available|xid|lost|fallen"
    r"|insufficient|unreachable|temporarily unavailable|must be|is larger than|divisible|n(?<!\wn)an\b"
    r"|not compatible|must match|illegal|core dumped|not loaded|without (?:ssl|curl)"
    r"|f(?<!\wf)ault\b|sig[a-z]{3,4} received|not implemented|r(?<!\wr)equires\b|crash|exited with|critical|memory: -|status|manifest"
    r"|\*\*\* "
)
_ERROR = re.compile(r"(?i)\b(?:errors?|fatal|failed|failure|aborted|cannot|could not|unable to|not found|unsupported)\b|\*\*\*")
_NATIVE = re.compile(
    r"(?:ggml|gguf|llama|clip|mtmd|common|sycl|vk|hip)\w*:? [^\n]*\b(?:error|fail(?:ed|ure)|fatal|abort|exception)\b"
    r"|(?:fatal|FATAL|terminate called|Native API failed|[Ee]xception|[Ee]rror)\b[^\n]*:"
    r"|[^\n]{0,80}(?:\| critical \||\bTT_(?:THROW|FATAL)\b)",
)
_OF_REQUESTS = re.compile(
    r"(?:serving|hermes|\w*tool_parser|\w*reasoning_parser|abstract_\w*parser|protocol|chat_utils|preprocess|media)\w*\.py"
)
_MILD = ("Ignored ", "Ignoring ", "Skipping ", "Warning: ", "warning: ")  # what an unprefixed line says of itself
_CODE = re.compile(r'\s*(?:File "|raise\b|return\b|self\.|[\^~]+\s*$|[\w.]+ = |[\w.]+\()')
_SLOT = re.compile(r"\b(?:launch_slot_|update_slots|print_timing): id +\d+ \| task \d")
_MARKED = re.compile(r"\s*\d+\.\d\d\.\d{3}\.\d{3} E ")
_ACCESS = " HTTP/1."
_WELL = b'" 200 OK'
_SPEEDS = b" throughput: "
MOST_CHATTER = 40  # lines of a block from which on it is worth to leave them out
_CHATTER = ("loggers.py:", "logger.py:", "metrics.py:", "async_llm.py:")  # what a server says of every request and every ten seconds
_ANSWERED = re.compile(r'"(?:GET|POST) /\S* HTTP/1\.\d" \d{3}')
_ONWARD = re.compile(r"\b100 ?%|\b(?:[Ss]kipping|[Rr]etrying|[Ff]alling back|[Dd]ownload(?:ed| complete))\b")
_FRAME = re.compile(r'Traceback|\s*(?:File "|\^|~)|\s{4,}\S')


def is_quiet(line: Line) -> bool:
    """Whether a line says of itself that it is no error."""
    mild = line.level in QUIET or (line.level is None and line.text.startswith(_MILD))
    return mild and not line.text.startswith("Traceback")


def is_answer(line: Line) -> bool:
    """Whether an INFO line is an access log's: the server answers."""
    return _ACCESS in line.text and bool(_ANSWERED.search(line.text))


def is_at_work(line: Line) -> bool:
    """Whether a line is what a server says of the requests that it works on: llama.cpp of each, vLLM every ten seconds."""
    text = line.text
    return ("| task " in text and bool(_SLOT.search(text))) or ("throughput: " in text and is_chatter(line))


def is_refusal(line: Line) -> bool:
    """Whether an access log's line answers a request of somebody's with 500: the server was up, and its engine failed."""
    return '"POST ' in line.text and '" 500' in line.text


def is_chatter(line: Line) -> bool:
    """Whether an INFO line is what a server says of every request and every ten seconds."""
    return line.source is not None and line.source.startswith(_CHATTER)


def without_chatter(block: bytes) -> bytes:
    """A block without the lines that a server prints every few seconds and for every request that went well: no rule asks for them."""
    if block.count(_SPEEDS) + block.count(_WELL) < MOST_CHATTER:
        return block
    return b"\n".join(line for line in block.split(b"\n") if not (_WELL in line or (_SPEEDS in line and b"INFO" in line)))


def is_frame(text: str) -> bool:
    return bool(_FRAME.match(text))


def is_frame_of_file(text: str) -> bool:
    return text.lstrip().startswith('File "')


def is_native(text: str) -> bool:
    """Whether native code prints its errors so."""
    return bool(_NATIVE.match(text))


def speaks_of_trouble(text: str) -> bool:
    return bool(_TROUBLE.search(text.lower()))


def speaks_of_error(text: str) -> bool:
    """Whether a line that was not logged as an error has words that only errors have."""
    return bool(_ERROR.search(text))


def speaks_of_end(text: str) -> bool:
    return bool(_ENDING.search(text))


def goes_onward(text: str) -> bool:
    """Whether a program tells that it went on: a download that is complete, something that is skipped or tried again."""
    return bool(_ONWARD.search(text))


def is_marked_error(text: str) -> bool:
    """Whether llama.cpp marked a line as an error, behind whatever another program put in front."""
    return bool(_MARKED.match(text))


def is_broken(text: str) -> bool:
    """Bytes that are no text."""
    return text.count("\ufffd") * 4 > len(text)


def is_of_request(source: str | None) -> bool:
    """Whether a logging line's file handles single requests: what fails there is answered to the client, and the server goes on."""
    return bool(source and _OF_REQUESTS.match(source))


def common_indent(lines: Sequence[str]) -> int:
    """Spaces in front of every line: a log that was pasted as a block. 0 where that may be a piece of a traceback."""
    if not lines or any(_CODE.match(line) for line in lines[:1]):
        return 0
    return min(len(line) - len(line.lstrip(" ")) for line in lines)


def is_double_spaced(numbers: Sequence[int]) -> bool:
    """Whether every second line is empty, as some editors and pages paste. numbers: of the lines that are not."""
    return len(numbers) > 2 and all(after - before == 2 for before, after in pairwise(numbers))
