"""Models by a short name, pinned to their bytes."""

import tomllib
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct


class Preset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file out of one wheel. wheel_sha256: of the wheel; sha256, bytes: of the file inside it."""

    title: str
    model: str
    license: str
    package: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


@cache
def presets() -> dict[str, Preset]:
    """Every preset by its name."""
    text = files("firstlight.catalog").joinpath("presets.toml").read_text()
    return msgspec.convert(tomllib.loads(text), dict[str, Preset])


def find_preset(name: str) -> Preset | None:
    return presets().get(name)
