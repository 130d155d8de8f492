"""Log milestones of each engine: which line means which phase, and which typed fields it carries. Data: engines/*/milestones.toml."""

import re
import tomllib
from functools import cache
from importlib import resources

from msgspec import Struct

PHASES = (
    "spawned",
    "configuring",
    "distributed-init",
    "loading",
    "post-load",
    "compiling",
    "profiling",
    "kv-allocation",
    "capturing",
    "warming",
    "api-start",
    "ready",
    "serving",
    "failed",
    "stopping",
    "stopped",
)
_MODULE = re.compile(r"\s*(?:\[(?!shutdown\])\w+\] )?")
RANK = {name: i for i, name in enumerate(PHASES)}
Field = str | int | float
MOST_DIGITS = 18
"""A longer number is no count, and stays text: JSON has no place for it."""


class Milestone(Struct, frozen=True, kw_only=True):
    """One kind of line. event: figure | progress | ready | start | stopping | stopped | died | waiting.

    ranks: `one` where a single rank prints the line for all of them. unit: of `progress`.
    """

    event: str
    pattern: re.Pattern[str]
    phase: str | None = None
    unit: str | None = None
    ranks: str | None = None


class Expected(Struct, frozen=True, kw_only=True):
    """How long a phase usually takes, in seconds; silent: how long its log may say nothing while all is well."""

    phase: str
    low: float
    mid: float
    high: float
    silent: float


class Milestones(Struct, frozen=True, kw_only=True):
    """by_word: the first word of a line's text (or its beginning, for words that run on) -> the milestones to try."""

    engine: str
    by_word: dict[str, tuple[Milestone, ...]]
    prefixes: tuple[str, ...]
    expected: dict[str, Expected] = {}

    def find(self, text: str) -> tuple[Milestone, dict[str, Field]] | None:
        """The milestone that a line's text is, with its typed fields; None for most lines."""
        if text[:1] in ("[", " "):
            text = _MODULE.sub("", text, count=1)
        word = text.partition(" ")[0]
        found = self.by_word.get(word)
        if found is None and ("=" in word or "(" in word) and text.startswith(self.prefixes):
            found = next((self.by_word[p] for p in self.prefixes if text.startswith(p)), None)
        for milestone in found or ():
            if m := milestone.pattern.match(text):
                return milestone, {k: typed(k, v) for k, v in m.groupdict().items() if v is not None}
        return None


def typed(name: str, value: str) -> Field:
    """A field by its name's unit: seconds, GiB, MiB, GB, rates, percent and ratios are floats, other numbers whole, the rest text."""
    plain = value.replace(",", "")
    if name.endswith(("_gib", "_mib", "_gb", "_seconds", "_ms", "_per_second", "_percent", "_concurrency", "utilization")):
        try:
            return float(plain)
        except ValueError:
            return value
    return int(plain) if plain.isdecimal() and plain.isascii() and len(plain) <= MOST_DIGITS else value


@cache
def load_milestones(engine: str) -> Milestones:
    """The milestones of `vllm`, `llamacpp` or `sglang`; an unknown engine has none."""
    file = resources.files("firstlight.catalog") / "engines" / engine / "milestones.toml"
    data = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    rows = data.get("milestone", [])
    index: dict[str, list[Milestone]] = {}
    for row in rows:
        milestone = Milestone(
            event=row["event"], pattern=re.compile(row["text"]), phase=row.get("phase"), unit=row.get("unit"), ranks=row.get("ranks")
        )
        for word in row.get("first") or [_first_word(row["text"])]:
            index.setdefault(word, []).append(milestone)
    return Milestones(
        engine=engine,
        by_word={word: tuple(rows) for word, rows in index.items()},
        prefixes=tuple(word for word in index if word.endswith(("=", "("))),
        expected={row["phase"]: Expected(**row) for row in data.get("expected", [])},
    )


def _first_word(pattern: str) -> str:
    return pattern.split(" ", 1)[0].replace("\\", "")
