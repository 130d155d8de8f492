"""What an engine's sources say when they fail, and in which file: a pasted message without frames still names its place.

Data: engines/*/texts.txt, made by tools/generate_texts.py from released packages: a line with a place (`path` or `path:function`), behind
it, indented by one space, the beginnings of the fixed parts of the messages that only this part of the engine prints.
"""

from functools import cache
from importlib import resources


@cache
def load_texts(engine: str) -> tuple[tuple[str, str], ...]:
    """(fixed part of a message, place), the longest part first; an engine whose texts nobody collected has none."""
    file = resources.files("firstlight.catalog") / "engines" / engine / "texts.txt"
    found: list[tuple[str, str]] = []
    place = ""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        if line.startswith(" "):
            found.append((line[1:], place))
        elif not line.startswith("#"):
            place = line
    return tuple(sorted(found, key=lambda row: -len(row[0])))


def place_of_text(engine: str, text: str) -> str | None:
    """The place that prints a message, by its longest fixed part that is known; None where none is."""
    return next((place for part, place in load_texts(engine) if part in text), None)
