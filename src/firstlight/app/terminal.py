"""What the user's terminal is to be given: NO_COLOR, TERM=dumb and FIRSTLIGHT_ASCII hold for every line, whoever prints it."""

import io
import os
import sys
from typing import TextIO

# What our sentences, bars and rich's tables are drawn with; a model's own name is left as it is.
PLAIN = str.maketrans(
    {
        "✓": "+", "✗": "x", "▲": "!", "•": "-", "●": "*", "–": "-", "·": "-", "…": "...", "→": "->", "×": "x", "≤": "<=", "≥": ">=",
        "█": "#", "▌": "=", "░": ".", "▒": ":", "▓": "%", "▁": "_", "▄": "=", "▚": "=", "▞": "+", "⠀": " ", "₂": "2",
        "─": "-", "━": "-", "│": "|", "┃": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+",
        "┏": "+", "┓": "+", "┗": "+", "┛": "+", "┡": "+", "┩": "+", "╇": "+", "╈": "+", "┳": "+", "┻": "+", "╋": "+", "╭": "+", "╮": "+",
        "╰": "+", "╯": "+", "╞": "+", "╡": "+", "═": "=", "╪": "+",
    }
)  # fmt: skip


class PlainStream(io.TextIOWrapper):
    """A text stream that draws with ASCII only."""

    def write(self, text: str) -> int:
        return super().write(text.translate(PLAIN))


def prepare_streams() -> None:
    """No name of a file and no locale brings a line down; where FIRSTLIGHT_ASCII is set or UTF-8 is not, drawing is ASCII."""
    _open_closed()
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


def _open_closed() -> None:
    """A stream that the caller has closed (`2>&-`) becomes /dev/null: the next file to be opened must not take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def _prepared(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, PlainStream):
        return stream
    encoding, buffering = stream.encoding, stream.line_buffering
    if encoding.lower().replace("-", "") == "utf8" and not os.environ.get("FIRSTLIGHT_ASCII"):
        stream.reconfigure(errors="backslashreplace")
        return stream
    return PlainStream(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=buffering)


def colour() -> bool | None:
    """False where colour is not wanted (https://no-color.org: any value that is not empty); None leaves it to the stream."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
