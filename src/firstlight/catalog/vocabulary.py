"""What each vLLM release has names for: architectures, parsers, quantization methods, flags; and what it requires.

Data: `engines/vllm/vocabulary.json`, read from the wheels of the last patch of each minor release by `tools/generate_vocabulary.py`.
A release that is not in the table is answered as in `backends`: by its own minor version's last patch, a newer one by the newest.
"""

import importlib.resources
import re
from functools import cache

from msgspec import Struct, json

from firstlight.catalog.backends import release_for


class Vocabulary(Struct, frozen=True, kw_only=True):
    """name -> spans of releases (`0.16.0` from then on, `0.14.1..0.20.2` until then). min_capability: `METHOD=SM` -> spans."""

    generator: str
    source: str
    releases: list[str]
    architectures: dict[str, str]
    tool_parsers: dict[str, str]
    reasoning_parsers: dict[str, str]
    quantization: dict[str, str]
    flags: dict[str, str]
    min_capability: dict[str, str]
    requires: dict[str, dict[str, str]]

    def part(self, name: str) -> dict[str, str]:
        table: dict[str, str] = getattr(self, name)
        return table


@cache
def vocabulary() -> Vocabulary:
    data = importlib.resources.files("firstlight.catalog").joinpath("engines/vllm/vocabulary.json").read_bytes()
    return json.decode(data, type=Vocabulary)


def has(part: str, name: str, version: str | None) -> bool | None:
    """Whether a release knows the name; None when the release is unknown or older than the table."""
    release = release_for(version)
    return None if release is None else _within(vocabulary().part(part).get(name, ""), release)


def names(part: str, version: str) -> list[str]:
    """Every name of a release, sorted."""
    release = release_for(version)
    return sorted(n for n, spans in vocabulary().part(part).items() if release and _within(spans, release))


def since(part: str, name: str) -> str | None:
    """The first release in the table that has it; None when none has."""
    spans = vocabulary().part(part).get(name)
    return spans.split(",")[0].partition("..")[0] if spans else None


def until(part: str, name: str) -> str | None:
    """The last release that has it, None when the newest still does or none ever had."""
    last = vocabulary().part(part).get(name, "").split(",")[-1]
    return last.partition("..")[2] or None


def min_capability(method: str, version: str | None) -> int | None:
    """The lowest compute capability (75 for 7.5) a quantization method accepts in a release; None: not known."""
    release = release_for(version)
    for entry, spans in vocabulary().min_capability.items():
        name, _, capability = entry.rpartition("=")
        if name == method and release and _within(spans, release):
            return int(capability)
    return None


def requires(package: str, version: str | None) -> str | None:
    """A release's own requirement on a package, as in its metadata (`<5,>=4.56.0`)."""
    release = release_for(version)
    return vocabulary().requires.get(release, {}).get(package) if release else None


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets `<5,>=4.56.0`, `!=5.1.*`, `==2.9.1`; local parts (`+cpu`) are left out of it."""
    return all(_meets(_numbers(version), part.strip()) for part in specifier.split(",") if part.strip())


def _meets(have: tuple[int, ...], part: str) -> bool:
    found = re.fullmatch(r"(==|!=|>=|<=|>|<|~=)\s*(\d+(?:\.\d+)*)(\.\*)?\S*", part)
    if found is None:
        return True
    operator, wanted, star = found[1], _numbers(found[2]), found[3]
    size = len(wanted) if star else max(len(have), len(wanted))
    a, b = (tuple(n[i] if i < len(n) else 0 for i in range(size)) for n in (have, wanted))
    outcomes = {"==": a == b, "!=": a != b, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b, "~=": a >= b and a[:-1] == b[:-1]}
    return outcomes[operator]


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(n) for n in match[1].split(".")) if match else ()


def _within(spans: str, release: str) -> bool:
    order = _order()
    at = order[release]
    for span in filter(None, spans.split(",")):
        first, _, last = span.partition("..")
        if order[first] <= at <= (order[last] if last else at):
            return True
    return False


@cache
def _order() -> dict[str, int]:
    """Both tables are made from the same releases (a test holds them together)."""
    return {version: i for i, version in enumerate(vocabulary().releases)}
