"""What shows which engine and platform a log is of, and which words belong to one of them. Data: signs.toml, engines/*/flags.toml."""

import tomllib
from functools import cache
from importlib import resources

from msgspec import Struct, convert


class Sign(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine or a platform. said: texts by which the program names it; shows: texts that only this one prints.

    smi: its tool in place of `nvidia-smi`; holders: the same for who holds memory.
    """

    name: str
    title: str
    said: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    smi: str | None = None
    holders: str | None = None


class Belongs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts that mean something on these platforms, or to these engines, only (empty: any)."""

    texts: tuple[str, ...]
    platforms: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()


class Signs(Struct, frozen=True, kw_only=True):
    platform: tuple[Sign, ...]
    engine: tuple[Sign, ...]
    belongs: tuple[Belongs, ...]


class Flags(Struct, frozen=True, kw_only=True):
    """own: vLLM's name of a flag -> this engine's, "" the same. values: flags whose values are named otherwise. plan: see flags.toml."""

    own: dict[str, str]
    values: tuple[str, ...] = ()
    plan: bool = False

    def name_of(self, flag: str) -> str | None:
        """This engine's name of a flag of vLLM's (snake case); None where it has none."""
        own = self.own.get(flag)
        return flag if own == "" else own


@cache
def signs() -> Signs:
    return convert(tomllib.loads(resources.files("firstlight.catalog").joinpath("signs.toml").read_text("utf-8")), Signs)


@cache
def flags_of(engine: str | None) -> Flags | None:
    """What an engine other than vLLM has of vLLM's flags; None for vLLM itself and for an engine that is not known."""
    if engine is None:
        return None
    file = resources.files("firstlight.catalog").joinpath("engines", engine, "flags.toml")
    return convert(tomllib.loads(file.read_text("utf-8")), Flags) if file.is_file() else None


def platform_named(name: str | None) -> Sign | None:
    return next((p for p in signs().platform if p.name == name), None)


LOOKED = 2 << 20  # bytes at the beginning of a log; what comes later is looked at only where something went wrong


class Spotter:
    """Finds the engine and the platform of a log while its blocks pass; what is found first by name stays."""

    def __init__(self) -> None:
        self._engine, self._platform = _Kind(signs().engine), _Kind(signs().platform)
        self._looked = 0

    def look(self, block: bytes) -> None:
        """At a block, if it is of the log's beginning."""
        if self._looked < LOOKED:
            self._looked += len(block)
            self.look_at(block)

    def look_at(self, text: bytes) -> None:
        self._engine.look(text)
        self._platform.look(text)

    @property
    def is_past_beginning(self) -> bool:
        return self._looked >= LOOKED

    @property
    def engine(self) -> str | None:
        return self._engine.found

    @property
    def said_engine(self) -> str | None:
        return self._engine.found if self._engine.is_said else None

    @property
    def platform(self) -> str | None:
        return self._platform.found


class _Kind:
    """One of both. found: the sign that was seen, the earliest of the table; is_said: the program named it itself."""

    def __init__(self, table: tuple[Sign, ...]) -> None:
        self.found: str | None = None
        self.is_said = False
        self._said = [(s.name, text.encode()) for s in table for text in s.said]
        self._shows = [(s.name, text.encode()) for s in table for text in s.shows]

    def look(self, block: bytes) -> None:
        if self.is_said:
            return
        if name := _first(self._said, block):
            self.found, self.is_said = name, True
        elif name := _first(self._shows, block):
            self.found = name
            self._shows = self._shows[: next(i for i, (n, _) in enumerate(self._shows) if n == name)]


def _first(texts: list[tuple[str, bytes]], block: bytes) -> str | None:
    return next((name for name, text in texts if text in block), None)
