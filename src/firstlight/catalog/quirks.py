"""Known-bad combinations as dated rules with a source. Data: quirks.toml beside this file."""

import re
import tomllib
from functools import cache
from importlib import resources

from msgspec import Struct, convert


class Quirk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; the TOML file's head says what each condition means. Empty and None: no condition."""

    code: str
    engine: str
    severity: str
    message: str
    seen: list[str]
    source: str
    date: str
    hint: str | None = None
    since: str | None = None
    until: str | None = None
    sms: list[int] = []
    device: str | None = None
    mla: bool | None = None
    kv_cache_dtypes: list[str] = []
    methods: list[str] = []
    formats: list[str] = []
    model_types: list[str] = []
    attention: list[str] = []
    flags: list[str] = []
    lm_head_quantized: bool | None = None

    def covers(self, release: tuple[int, ...]) -> bool:
        """Whether a release lies within since and until; an unknown one lies in none that has a bound."""
        if not release:
            return self.since is None and self.until is None
        return (self.since is None or _numbers(self.since) <= release) and (self.until is None or release[:3] <= _numbers(self.until))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


@cache
def quirks() -> tuple[Quirk, ...]:
    document = tomllib.loads(resources.files(__package__).joinpath("quirks.toml").read_text("utf-8"))
    return tuple(convert(document["quirk"], list[Quirk]))
