"""Numbers of a line that no milestone knows: what it names (`world_size=2`), and quantities with their unit (`took 1.5 GiB`). Pure."""

import re
from typing import Any

_LONGEST = 2000
_MOST = 16
_NAMED = re.compile(r"(?<![\w.])(?P<name>[A-Za-z][A-Za-z0-9_]{1,40})\s?=\s?(?P<value>-?\d{1,18}(?:\.\d{1,9})?)(?![\w.:/-])")
_UNITS = (
    r"GiB|MiB|KiB|GB|MB|KB|bytes|tokens|seconds|secs|sec|ms|s|%|layers|experts|blocks|heads|threads|workers|processes|graphs|files|GPUs"
)
_WITH_UNIT = re.compile(rf"(?<![\w.=/-])(?P<value>-?\d{{1,3}}(?:,\d{{3}})+|-?\d{{1,18}}(?:\.\d{{1,9}})?) ?(?P<unit>{_UNITS})(?![\w/])")
_RESERVED = frozenset({"text", "quantities", "line", "phase", "worker"})


def numbers_of(text: str) -> dict[str, Any]:
    """Named numbers as fields, and `quantities`: [{value, unit}]; empty where the line carries none."""
    text = text[:_LONGEST]
    found: dict[str, Any] = {}
    for m in _NAMED.finditer(text):
        if m["name"] not in _RESERVED and len(found) < _MOST:
            found[m["name"]] = number(m["value"])
    quantities = [{"value": number(m["value"]), "unit": m["unit"]} for m in _WITH_UNIT.finditer(text)][:_MOST]
    return {**found, "quantities": quantities} if quantities else found


def number(text: str) -> int | float:
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)
