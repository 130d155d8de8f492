"""How a unit is shown to a person, and masked so that every rank and run of it reads alike."""

import re

from firstlight.diagnose.units import FRAME, Unit

HEAD_SHOWN = 200  # characters

_CANN_REASON = re.compile(r"\b(?P<code>E[A-Z]\d{4})\)?: (?:\[PID: \d+\] \S+ )?(?P<why>(?!Inner|\[)[^\n]{8,300})")
_BARE = re.compile(r"[\w.]+:?")  # an exception without a message
_MASKS = (
    (re.compile(r"0x[0-9a-fA-F]+"), "X"),
    (re.compile(r"(?<![\w.])/(?:[\w.@+=-]+/)*[\w.@+=-]+"), "PATH"),
    (re.compile(r"'[^'\n]{0,200}'"), "'…'"),
    (re.compile(r"\d+(?:[.,]\d+)*"), "N"),
)


def shown(unit: Unit) -> str:
    """What a person is shown of it: the message; where there is none, or the log is cut before it, with the source line that raised it;
    of CANN's long ones the first line and the one that names the reason.
    """
    source = next((f.strip() for f in reversed(unit.frames) if f.strip(" ^~") and not FRAME.match(f)), "")
    if unit.torn:
        where = next((f.strip() for f in reversed(unit.frames) if FRAME.match(f)), "")
        return f"{where}: {source}" if source else where or unit.text
    if (reason := _CANN_REASON.search(unit.text)) and reason.start() > HEAD_SHOWN:
        return f"{unit.head[:HEAD_SHOWN]} … {reason['code']}: {reason['why']}"
    return f"{unit.text} by {source}" if source and _BARE.fullmatch(unit.text.strip()) else unit.text


def template(text: str) -> str:
    """A message with its numbers, addresses, paths and quoted names masked: equal for every rank and every run."""
    for regex, mask in _MASKS:
        text = regex.sub(mask, text)
    return text[:400]
