"""Known deviations of engines from the OpenAI contract, as data."""

import tomllib
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct


class Deviation(Struct, frozen=True, kw_only=True):
    """seen: the engine's version it was met on, by running it."""

    engine: str
    check: str
    code: str
    what: str
    seen: str


@cache
def deviations() -> tuple[Deviation, ...]:
    data = tomllib.loads(files("firstlight.catalog").joinpath("deviations.toml").read_text("utf-8"))
    return tuple(msgspec.convert(data["deviation"], list[Deviation]))


def known_deviation(engine: str | None, check: str, code: str) -> Deviation | None:
    """The deviation of this engine that explains `code` in `check`, or None."""
    return next((d for d in deviations() if (d.engine, d.check, d.code) == (engine, check, code)), None)
