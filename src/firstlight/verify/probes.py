"""The fixed questions and continuations, read from `probes.toml`."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Fact(NamedTuple):
    """A fact asked in several wordings and languages; any right answer counts."""

    wordings: tuple[str, ...]
    answer: re.Pattern[str]


class Continuation(NamedTuple):
    """A text that has one natural continuation."""

    text: str
    answer: re.Pattern[str]


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("firstlight.verify").joinpath("probes.toml").read_text("utf-8"))


def facts() -> list[Fact]:
    return [Fact(tuple(f["wordings"]), re.compile(f["answer"])) for f in _data()["fact"]]


def continuations() -> list[Continuation]:
    return [Continuation(c["text"], re.compile(rf"\s*(?:{c['answer']})")) for c in _data()["continuation"]]
