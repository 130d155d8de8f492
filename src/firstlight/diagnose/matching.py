"""What the rules say of a unit, and whether the log as a whole allows them."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from firstlight.catalog.milestones import Field, typed
from firstlight.catalog.rules import Block, Pattern, Rule, version_within
from firstlight.catalog.signs import Spotter
from firstlight.catalog.texts import place_of_text
from firstlight.diagnose.messages import essence, joined
from firstlight.diagnose.noise import QUIET, speaks_of_trouble
from firstlight.diagnose.place import place_of_frames, place_of_process, place_of_type
from firstlight.diagnose.remedies import holds
from firstlight.diagnose.units import Unit

LOOKUPS = 40


class Match(Struct, frozen=True, kw_only=True):
    rule: Rule
    facts: dict[str, Field]


class Matcher:
    """The rules against the units and the blocks of one log."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.lookups = 0
        self.spotter = Spotter()
        wanted = [p for r in self.rules for p in (*r.with_log, *r.unless_log)]
        wanted += [p for r in self.rules for remedy in r.remedies for p in (*remedy.with_log, *remedy.unless_log)]
        self._missing = {p.regex.pattern: p for p in wanted}

    def look(self, block: Block) -> None:
        """Which texts that a rule wants (or wants not) anywhere in the log are there, and what it is of: looked for in whole blocks."""
        self.spotter.look(block.data)
        likely = [p for p in self._missing.values() if p.may_match_in(block)]
        if likely:
            text = block.data.decode("utf-8", "replace")
            for p in likely:
                if p.regex.search(text):
                    del self._missing[p.regex.pattern]

    def find_place(self, unit: Unit, engine: str | None) -> None:
        """What a unit behind the log's beginning is of; and where its exception was raised: by its frames, else by its message, which is
        looked up in the engine's texts a few times only.
        """
        if self.spotter.is_past_beginning:
            self.spotter.look_at("\n".join([unit.text, *unit.frames]).encode())
        if unit.kind != "exception":
            return
        unit.place = (
            place_of_frames(unit.frames) or self._place_of_text(unit.text, engine) or place_of_type(unit.text) or place_of_process(unit)
        )

    def _place_of_text(self, text: str, engine: str | None) -> str | None:
        if self.lookups >= LOOKUPS or engine not in (None, "vllm", "sglang"):
            return None
        self.lookups += 1
        return place_of_text("vllm", text)

    def matches(self, unit: Unit, engine: str | None) -> list[Match]:
        """What the rules say of a unit, and of the error that it only carries on; a wrapper that quotes one is read for it."""
        found = self._matches_of(unit)
        carried = essence(unit.text)
        if carried is None:
            return found
        carried = joined(carried)
        inner = self._matches_of(structs.replace(unit, text=carried, place=self._place_of_text(carried, engine)))
        return [m for m in found if m.rule.role != "wrapper" and not m.rule.places] + [m for m in inner if m.rule.role != "wrapper"]

    def _matches_of(self, unit: Unit) -> list[Match]:
        found: list[Match] = []
        plain = unit.kind == "line" and unit.logged is None and not speaks_of_trouble(unit.text)
        for rule in self.rules:
            if rule.role == "benign" or (plain and rule.role == "cause" and not rule.info):
                continue
            if (facts := matched(rule, unit)) is not None:
                found.append(Match(rule=rule, facts=facts))
        return found

    def holds(self, rule: Rule, engine: str | None, version: str | None) -> bool:
        """Whether the log as a whole allows this rule (asked at the end, when everything was read)."""
        if engine and rule.engines and engine not in rule.engines:
            return False
        if not version_within(version, rule.versions):
            return False
        return all(map(self.has, rule.with_log)) and not any(map(self.has, rule.unless_log))

    def has(self, wanted: Pattern) -> bool:
        """Whether the log has a pattern that a rule or a remedy of these asks for."""
        return wanted.regex.pattern not in self._missing


def matched(rule: Rule, unit: Unit) -> dict[str, Any] | None:
    """The facts of a rule's match on a unit (named groups, typed), None where it does not match."""
    if unit.logged in QUIET and not rule.info:
        return None
    hit = next((m for p in rule.match if (m := p.search(unit.text))), None)
    if hit is None and "\n" in unit.text and (unit.carried or rule.priority >= 0):
        joined = " ".join(unit.text.split())
        hit = next((m for p in rule.match if (m := p.search(joined))), None)
    if hit is None or any(p.search(unit.text) for p in rule.unless):
        return None
    if rule.places and not any(p.search(unit.place or "") for p in rule.places):
        return None
    named = hit.groupdict()
    if rule.frames or rule.unless_frames:
        frames = "\n".join(unit.frames)
        framed = next((m for p in rule.frames if (m := p.search(frames))), None)
        if (rule.frames and framed is None) or any(p.search(frames) for p in rule.unless_frames):
            return None
        named = {**(framed.groupdict() if framed else {}), **named}
    facts = {**rule.facts, **{k: typed(k, v) for k, v in named.items() if v is not None}}
    return facts if rule.when is None or holds(rule.when, facts) else None
