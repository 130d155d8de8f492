"""What a message says in words: tuples put together, types given back, the error that it carries on, that another program ended."""

import ast
import re

_TUPLE = re.compile(r"(?P<type>(?:[\w.]+: ?)?)(?P<items>\((?P<quote>['\"]).*\))(?P<rest>\s*(?:\n.*)?)", re.DOTALL)
_ADDRESS = re.compile(r"(?<=: )\[address=[\w.:-]+, pid=\d+\] ")  # Xoscar's actors put it in front of what they hand on
_LEFT = re.compile(r"[\s(\[{\"'`=]$")
_RIGHT = re.compile(r"^[\s.,;:!?)\]}]")
_ENDED = re.compile(
    r"\bllama[.\-_ ]?(?:cpp|server|runner)\b[^\n]{0,60}?\b(?:terminated|crashed|exited|no longer running)\b"
    r"|\b(?:vllm|vLLM|sglang|SGLang|mlx\w*) terminated unexpectedly\b|\brunner process (?:has terminated|no longer running)"
    r"|\b[Ff]ailed to load llama-server\b"
    r"|\bupstream (?:process|command) exited (?:prematurely|unexpectedly)|\bllama runner (?:terminated|exited)\b"
    r"|\b[Tt]he model has crashed\b|\b[Mm]odel process (?:exited|crashed)"
)
_WELL = re.compile(r"\b(?:code|status)[:= ]+0\b|but successfully")
_QUOTED = re.compile(
    r"(?:[Ww]orker |RPC |)[Ff]ailed with error (?:%s[^'\"]*['\"], )?['\"](?P<message>.+?)['\"]?(?:, please check the stack trace|$)",
    re.DOTALL,
)
_ORIGINAL = re.compile(r"to find the original error: (?P<message>\S.*?)\.?$", re.DOTALL)
_REPR = re.compile(r"(?P<type>[A-Z]\w*(?:Error|Exception))\((?P<quote>['\"])(?P<message>.*?)(?P=quote),?\)?$", re.DOTALL)
_REFUSED = re.compile(
    r"validation errors? for \w+\s+(?:[\w.-]+\s+)?(?:Value|Assertion) (?:error|failed), (?P<message>.+?)(?: \[type=|$)", re.DOTALL
)
_REFUSED_ALONE = re.compile(r"(?:Value|Assertion) (?:error|failed), (?P<message>.+?)(?: \[type=|$)", re.DOTALL)
_REFUSED_V1 = re.compile(r"[^\n]*validation errors? for \w+\s+__root__\s+(?P<message>.+?)(?: \(type=|$)", re.DOTALL)  # pydantic 1
_RAISE = re.compile(
    r"""raise (?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)\((?:(?P<f>[fF])?(?P<quote>['"])(?P<message>[^\n]*?)(?P=quote)[ ,+%.)]|[^'"\n]*\)?$)"""
)
_HOLE = re.compile(r"\{[^{}]*\}")
_TYPED = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
_TYPES = (
    (re.compile(r"has no attribute '"), "AttributeError"),
    (re.compile(r"\w+\(\) (?:got|missing|takes)|unsupported operand|object is not (?:callable|iterable|subscriptable)"), "TypeError"),
    (re.compile(r"^'?[\w.-]+'?$"), "KeyError"),
    (re.compile(r"No module named '"), "ModuleNotFoundError"),
    (re.compile(r"cannot import name '"), "ImportError"),
    (re.compile(r"\[Errno \d+\]"), "OSError"),
    (re.compile(r"(?:CUDA|HIP|XPU|NPU) out of memory"), "torch.OutOfMemoryError"),
)


def joined(text: str) -> str:
    """A message that is a tuple of strings (`raise RuntimeError("not for ", "this GPU")`) as the one sentence that was meant.

    Only where every element is a string or a number; any other text comes back as it is, without the address of an actor in front.
    """
    text = _ADDRESS.sub("", text, count=1) if "[address=" in text else text
    m = _TUPLE.fullmatch(text) if "('" in text or '("' in text else None
    if m is None:
        return text
    try:
        items = ast.literal_eval(m["items"])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if not isinstance(items, tuple) or not all(isinstance(item, str | int | float) for item in items):
        return text
    said = ""
    for item in map(str, items):
        said += item if not said or _LEFT.search(said) or _RIGHT.search(item) else f" {item}"
    return f"{m['type']}{said}{m['rest']}"


def says_ended(text: str) -> bool:
    """Whether a program that had started an engine (a model runner, a proxy, a desktop application) says that it ended."""
    return bool(_ENDED.search(text)) and not _WELL.search(text)


def typed_message(message: str) -> str:
    """A message that was printed without its exception's type, with the type that says such things; RuntimeError where none does."""
    if m := _REPR.match(message):
        return f"{m['type']}: {m['message']}"
    if _TYPED.match(message):
        return message
    return f"{next((name for words, name in _TYPES if words.search(message)), 'RuntimeError')}: {message}"


def raising(source: str) -> str | None:
    """What a line of code raises, as it would be printed: `raise ValueError("no room")` is `ValueError: no room`; None for other lines.

    What an f-string would hold is left out, and a message that is not in the line.
    """
    m = _RAISE.match(source)
    if m is None:
        return None
    message = (_HOLE.sub("…", m["message"]) if m["f"] else m["message"]) if m["message"] else ""
    return f"{m['type']}: {message}".removesuffix(": ")


def is_repr(message: str) -> bool:
    """Whether a message is an exception's repr: V0's engine process prints the one that ended its loop so."""
    return bool(_REPR.match(message))


def essence(text: str) -> str | None:
    """The error that a message only carries on: a worker's, quoted by the engine core, or a check's inside pydantic's report."""
    if m := _QUOTED.search(text) or _ORIGINAL.search(text):
        return typed_message(m["message"]) if m["message"].strip("'\" ") else None
    m = _REFUSED.search(text) or _REFUSED_ALONE.match(text) or _REFUSED_V1.match(text)
    return f"ValueError: {m['message']}" if m else None
