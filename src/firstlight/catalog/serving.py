"""Which parsers a model needs in an engine's server: data in `engines/<engine>/serving.toml`."""

import tomllib
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from firstlight.catalog.engines import parse_version
from firstlight.core.checkpoint import Checkpoint


class Parsers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """match: model types; architectures: outermost class names. since: the first release that has the names."""

    match: list[str]
    architectures: list[str] = []
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    since: str = "0"


def parsers_for(checkpoint: Checkpoint, release: tuple[int, ...], engine: str = "vllm") -> Parsers | None:
    """The entry for this model in this release; None: none is known, the server answers plain text."""
    kinds = {checkpoint.model_type, checkpoint.config.get("model_type")}
    for entry in _entries(engine):
        if (kinds & set(entry.match) or set(entry.architectures) & set(checkpoint.architectures)) and parse_version(entry.since) <= release:
            return entry
    return None


@cache
def _entries(engine: str) -> tuple[Parsers, ...]:
    document = tomllib.loads(resources.files(__package__).joinpath(f"engines/{engine}/serving.toml").read_text("utf-8"))
    return tuple(msgspec.convert(row, Parsers) for row in document["parser"])
