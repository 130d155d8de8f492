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
_SETTING = re.compile(
    r"(?<![\w.'])'?(?P<name>[a-z][a-z0-9_]{1,60})'?(?:=|: )"
    r"(?P<value>True|False|-?\d{1,18}(?:\.\d{1,9})?|\[\d{1,9}(?:, ?\d{1,9}){0,600}\])(?=[,)}\s]|$)"
)
_LONGEST_SETTINGS = 40_000
_MOST_SETTINGS = 200
Setting = int | float | bool | list[int]
_RESERVED = frozenset({"text", "quantities", "line", "phase", "worker"})


def numbers_of(text: str) -> dict[str, Any]:
    """Named numbers as fields, and `quantities`: [{value, unit}]; empty where the line carries none."""
    text = text[:_LONGEST]
    named = _NAMED.findall(text) if "=" in text else ()
    found: dict[str, Any] = {name: number(value) for name, value in named[:_MOST] if name not in _RESERVED}
    quantities = [{"value": number(value), "unit": unit} for value, unit in _WITH_UNIT.findall(text)[:_MOST]]
    return {**found, "quantities": quantities} if quantities else found


def settings_of(text: str) -> dict[str, Setting]:
    """Numbers, switches and lists of numbers in an engine's arguments or configuration, as Python prints them (`a=2`, `'a': [1, 2]`).

    Text values are left out: they may hold keys and paths. Of a name that comes twice the first counts (the engine's, then nested ones).
    """
    found: dict[str, Setting] = {}
    for m in _SETTING.finditer(text[:_LONGEST_SETTINGS]):
        if m["name"] not in found and len(found) < _MOST_SETTINGS:
            found[m["name"]] = _setting(m["value"])
    return found


def _setting(text: str) -> Setting:
    if text.startswith("["):
        return [int(part) for part in text[1:-1].split(",") if part.strip()]
    return text == "True" if text in ("True", "False") else number(text)


def number(text: str) -> int | float:
    plain = text.replace(",", "") if "," in text else text
    return float(plain) if "." in plain else int(plain)
