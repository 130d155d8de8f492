"""What an engine's sources say when they fail, and in which file: a pasted message without frames still names its place.

Data: engines/*/texts.txt, made by tools/generate_texts.py from released packages: a line with a place (`path` or `path:function`), behind
it, indented by one space, the beginnings of the fixed parts of the messages that only this part of the engine prints, and behind a tab the
names of its classes, which Python's own messages carry.
"""

import re
from functools import cache
from importlib import resources

READ = 2000  # characters of a message that are looked at


@cache
def load_texts(engine: str) -> tuple[tuple[str, str], ...]:
    """(fixed part of a message, place), the longest part first; an engine whose texts nobody collected has none."""
    file = resources.files("firstlight.catalog") / "engines" / engine / "texts.txt"
    found: list[tuple[str, str]] = []
    place = ""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        if line.startswith(" "):
            found.append((line[1:], place))
        elif not line.startswith(("#", "\t")):
            place = line
    return tuple(sorted(found, key=lambda row: -len(row[0])))


_NAMES = re.compile(r"(?:'|\b)(?P<name>[A-Za-z_]\w{7,})(?:' object|'? has no attribute|\.__init__\(\)|\.\w+\(\) (?:got|missing|takes))")
_OF_PLUGINS = re.compile(r"(?:Ascend|NPU|HPU|Gaudi|Spyre|Neuron|Rbln|RBLN|Metal)\w+")
_OF_MODELS = re.compile(r"\w+(?:ForCausalLM|ForConditionalGeneration|DecoderLayer|MultiTokenPredictor|Model|MLP|Attention)")


@cache
def load_names(engine: str) -> dict[str, str]:
    """Class -> place, of the classes whose place is known."""
    file = resources.files("firstlight.catalog") / "engines" / engine / "texts.txt"
    found: dict[str, str] = {}
    place = ""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        if line.startswith("\t"):
            found[line[1:]] = place
        elif not line.startswith(("#", " ")):
            place = line
    return found


def place_of_text(engine: str, text: str) -> str | None:
    """The place that prints a message, by its longest fixed part that is known, else by the class that Python names; None without."""
    text = text[:READ]
    if found := next((place for part, place in load_texts(engine) if part in text), None):
        return found
    m = _NAMES.search(text)
    return place_of_class(engine, m["name"]) if m else None


def place_of_class(engine: str, name: str) -> str | None:
    if _OF_PLUGINS.fullmatch(name):
        return f"{engine}_plugin/:{name}"
    if found := load_names(engine).get(name):
        return found
    return f"{engine}/models/:{name}" if _OF_MODELS.fullmatch(name) else None
