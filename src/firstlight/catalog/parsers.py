"""Which parsers turn a model family's own syntax into tool calls and reasoning fields. Data: parsers.toml beside this file."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from msgspec import Struct, convert


class Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tool, reasoning: vLLM's parser names, the preferred first; empty: the family has none of the kind."""

    id: str
    model_types: list[str] = []
    architectures: list[str] = []
    name: str | None = None
    tool: list[str] = []
    reasoning: list[str] = []
    flags: list[str] = []


@cache
def families() -> tuple[Family, ...]:
    document = tomllib.loads(resources.files(__package__).joinpath("parsers.toml").read_text("utf-8"))
    return tuple(convert(document["family"], list[Family]))


def family_of(model_type: str | None, architectures: Sequence[str], name: str) -> Family | None:
    """The family of a model; where a name decides between several, only a matching name does."""
    fitting = [f for f in families() if model_type in f.model_types or set(architectures) & set(f.architectures)]
    named = [f for f in fitting if f.name and re.search(f.name, name, re.I)]
    plain = [f for f in fitting if f.name is None]
    return next(iter([*named, *plain]), None)
