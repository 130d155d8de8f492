"""What an engine's sources say when they fail, and in which file: a pasted message without frames still names its place.

Data: engines/*/texts.txt, made by tools/generate_texts.py from released packages: a line with a place (`path` or `path:function`), behind
it, indented by one space, digests of how the fixed parts of the messages begin that only this part of the engine prints, and behind a tab
the names of its classes, which Python's own messages carry.
"""

import hashlib
import re
from functools import cache
from importlib import resources

READ = 2000  # characters of a message that are looked at
LENGTHS = (48, 40, 32, 24)  # of the beginning of a fixed part that a digest stands for; a part has the longest that it reaches
_STARTS = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z0-9])|(?=[^\sA-Za-z0-9])")


def digest_of(part: str) -> str:
    """12 hexadecimal digits for the beginning of a fixed part, which has at least 24 characters."""
    length = next(n for n in LENGTHS if n <= len(part))
    return hashlib.blake2b(part[:length].encode(), digest_size=6).hexdigest()


@cache
def load_texts(engine: str) -> dict[str, str]:
    """Digest of how a message begins -> place; an engine whose texts nobody collected has none."""
    return {mark: place for kind, mark, place in _rows(engine) if kind == " "}


@cache
def _rows(engine: str) -> list[tuple[str, str, str]]:
    """(kind, digest or name, place)"""
    file = resources.files("firstlight.catalog") / "engines" / engine / "texts.txt"
    found, place = [], ""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        if line.startswith((" ", "\t")):
            found.append((line[0], line[1:], place))
        elif not line.startswith("#"):
            place = line
    return found


_NAMES = re.compile(r"(?:'|\b)(?P<name>[A-Za-z_]\w{7,})(?:' object|'? has no attribute|\.__init__\(\)|\.\w+\(\) (?:got|missing|takes))")
_OF_PLUGINS = re.compile(r"(?:Ascend|NPU|HPU|Gaudi|Spyre|Neuron|Rbln|RBLN|Metal)\w+")
_OF_MODELS = re.compile(r"\w+(?:ForCausalLM|ForConditionalGeneration|DecoderLayer|MultiTokenPredictor|Model|MLP|Attention)")


@cache
def load_names(engine: str) -> dict[str, str]:
    """Class -> place, of the classes whose place is known."""
    return {name: place for kind, name, place in _rows(engine) if kind == "\t"}


def place_of_text(engine: str, text: str) -> str | None:
    """The place that prints a message, by its longest fixed part that is known, else by the class that Python names; None without."""
    text = text[:READ]
    if found := _longest_known(load_texts(engine), text):
        return found
    m = _NAMES.search(text)
    return place_of_class(engine, m["name"]) if m else None


def _longest_known(texts: dict[str, str], text: str) -> str | None:
    starts = [m.start() for m in _STARTS.finditer(text)] if texts else []
    parts = (text[at : at + length] for length in LENGTHS for at in starts if at + length <= len(text))
    return next((place for part in parts if (place := texts.get(digest_of(part)))), None)


def place_of_class(engine: str, name: str) -> str | None:
    if _OF_PLUGINS.fullmatch(name):
        return f"{engine}_plugin/:{name}"
    if found := load_names(engine).get(name):
        return found
    return f"{engine}/models/:{name}" if _OF_MODELS.fullmatch(name) else None
