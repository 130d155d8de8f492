"""What a message says in words: strings that were raised as a tuple put together, and a program's word that another one ended."""

import ast
import re

_TUPLE = re.compile(r"(?P<type>(?:[\w.]+: ?)?)(?P<items>\((?P<quote>['\"]).*\))(?P<rest>\s*(?:\n.*)?)", re.DOTALL)
_LEFT = re.compile(r"[\s(\[{\"'`=]$")
_RIGHT = re.compile(r"^[\s.,;:!?)\]}]")
_ENDED = re.compile(
    r"\bllama[.\-_ ]?(?:cpp|server|runner)\b[^\n]{0,60}?\b(?:terminated|crashed|exited|no longer running)\b"
    r"|\b(?:vllm|vLLM|sglang|SGLang|mlx\w*) terminated unexpectedly\b|\brunner process (?:has terminated|no longer running)"
    r"|\bupstream (?:process|command) exited (?:prematurely|unexpectedly)|\bllama runner (?:terminated|exited)\b"
    r"|\b[Tt]he model has crashed\b|\b[Mm]odel process (?:exited|crashed)"
)
_WELL = re.compile(r"\b(?:code|status)[:= ]+0\b|but successfully")


def joined(text: str) -> str:
    """A message that is a tuple of strings (`raise RuntimeError("not for ", "this GPU")`) as the one sentence that was meant.

    Only where every element is a string or a number; any other text comes back as it is.
    """
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
