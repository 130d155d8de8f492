"""The record behind every code of a finding or error: title, meaning, cure. Data: findings.toml; diagnosis codes come from the rules."""

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from firstlight.core.errors import InputError

if TYPE_CHECKING:
    from firstlight.catalog.rules import RemedyTemplate


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """title: what is wrong, as one clause. meaning: why it matters. cure: what to do, a line each. rooms: who says it."""

    code: str
    title: str
    meaning: str
    cure: list[str] = []
    rooms: list[str] = []
    link: str | None = None


@cache
def records() -> dict[str, Record]:
    document = tomllib.loads(resources.files(__package__).joinpath("findings.toml").read_text("utf-8"))
    return {row["code"]: convert(row, Record) for row in document["finding"]}


def record(code: str) -> Record | None:
    return records().get(code)


def explain(code: str) -> Record:
    """The record of a code, from findings.toml or, for a diagnosis, from the rules. Raises InputError `unknown-code`."""
    found = record(code) or _from_rules(code)
    if found is None:
        near = difflib.get_close_matches(code, all_codes(), n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`firstlight explain` lists all of them"
        raise InputError("unknown-code", f"no finding, error or diagnosis has the code {code}", hint=hint)
    return found


def all_codes() -> list[str]:
    from firstlight.catalog.rules import builtin_rules

    return sorted({*records(), *(rule.code for rule in builtin_rules())})


def _from_rules(code: str) -> Record | None:
    from firstlight.catalog.rules import builtin_rules, titled

    fitting = [rule for rule in builtin_rules() if rule.code == code]
    if not fitting:
        return None
    cures = [_remedy(r) for rule in fitting for r in rule.remedies]
    links = [s for rule in fitting for s in rule.sources if s.startswith("http")]
    first = fitting[0]
    return Record(
        code=code,
        title=titled(first.title, {}),
        meaning=first.meaning,
        cure=list(dict.fromkeys(cures)),
        rooms=["diagnose"],
        link=next(iter(links), None),
    )


def _setting(name: str, value: object) -> str:
    """A computed value (`= less_by(…)`) depends on the log at hand."""
    return f"another {name}" if isinstance(value, str) and ("{" in value or value.startswith("= ")) else f"{name} = {value}"


def _remedy(remedy: "RemedyTemplate") -> str:
    what = ", ".join(_setting(k, v) for k, v in remedy.change.items()) if remedy.change else remedy.action or ""
    where = f" ({remedy.conditions})" if remedy.conditions else ""
    return f"{what}{where}: {remedy.because}" if remedy.because else what + where
