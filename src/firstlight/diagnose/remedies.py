"""Remedies with computed values: from the message, from the log's own figures, by a few named functions. Pure."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from firstlight.catalog.rules import RemedyTemplate, Rule
from firstlight.core.diagnosis import Remedy, Safety
from firstlight.diagnose.fitting import Scene, adapted, fits

_PLACE = re.compile(r"\{(\w+)\}")
MOST_UTILIZATION = 0.97
SAME_TEXT = 100  # characters by which a reason is known to be the message
SHOWN_TEXT = 280  # characters of a message that people are shown in any case
_CALL = re.compile(r"= ?(\w+)\((.*)\)$")


def remedies_of(rule: Rule, facts: Mapping[str, Any], scene: Scene | None = None) -> list[Remedy]:
    """The rule's remedies that help here and whose facts are known, in the rule's order; a second way to the same is left out."""
    scene = scene or Scene()
    found: list[Remedy] = []
    given = False
    for template in rule.remedies:
        if template.otherwise and given:
            continue
        remedy = _helping(template, rule, facts, scene)
        given = remedy is not None
        if remedy is not None and not any(_same(remedy, r) for r in found):
            found.append(remedy)
    return found


def _helping(template: RemedyTemplate, rule: Rule, facts: Mapping[str, Any], scene: Scene) -> Remedy | None:
    """The remedy where it helps; what only says the message again, which is shown whole, is neither a remedy nor a reason."""
    remedy = _filled(template, facts) if fits(template, rule, scene) and _allowed(template, facts) else None
    remedy = adapted(remedy, template, rule, scene) if remedy is not None else None
    if remedy is None or remedy.action is None:
        return remedy
    said = " ".join(scene.text.split())[:SHOWN_TEXT]
    if " ".join(remedy.action.split()) in said:
        return None
    return structs.replace(remedy, because="") if remedy.because and " ".join(remedy.because.split())[:SAME_TEXT] in said else remedy


def _same(a: Remedy, b: Remedy) -> bool:
    if a.change and b.change:
        return a.change.keys() == b.change.keys()
    return a.action is not None and a.action == b.action


def _allowed(template: RemedyTemplate, facts: Mapping[str, Any]) -> bool:
    """Whether the facts allow the remedy."""
    return not any(facts.get(name) is not None for name in template.lacks) and (template.when is None or holds(template.when, facts))


def holds(condition: str, facts: Mapping[str, Any]) -> bool:
    """Whether a condition on the facts is true; one of which a fact is not known is not."""
    try:
        return bool(value_of(condition, facts))
    except (KeyError, ValueError):
        return False


def _filled(template: RemedyTemplate, facts: Mapping[str, Any]) -> Remedy | None:
    try:
        change = {k: value_of(v, facts) for k, v in template.change.items()} if template.change else None
        action = _text(template.action, facts) if template.action else None
        because = _text(template.because, facts)
    except (KeyError, ArithmeticError, ValueError, TypeError):
        return None
    return Remedy(change=change, action=action, safety=Safety(template.safety), because=because, source=template.source)


def value_of(template: Any, facts: Mapping[str, Any]) -> Any:
    """A value as it stands, `{fact}` (typed when alone), text with facts, or `= function(fact, number, fact|number)`; "" is None (take
    it away). `fact|number`: the number where the fact is not known.

    Raises KeyError, ValueError.
    """
    if not isinstance(template, str) or not template:
        return template if template != "" else None
    if m := _CALL.match(template):
        return FUNCTIONS[m[1]](*(_argument(a.strip(), facts) for a in m[2].split(",")))
    if (m := _PLACE.fullmatch(template)) is not None:
        return facts[m[1]]
    return _text(template, facts)


def _argument(text: str, facts: Mapping[str, Any]) -> float:
    name, _, otherwise = text.partition("|")
    return float(facts.get(name, otherwise or name))


def _text(template: str, facts: Mapping[str, Any]) -> str:
    return _PLACE.sub(lambda m: str(facts[m[1]]), template)


def _positive(value: float) -> int:
    """A whole number above 0. Raises ValueError where there is none: the remedy does not exist."""
    if value < 1:
        raise ValueError("nothing left")
    return int(value)


def len_that_fits(length: float, needed: float, available: float) -> int:
    """Tokens that fit when `length` needs `needed` GiB and `available` GiB is there: linear, 3 % kept back, whole blocks of 16."""
    return _positive(length * available / needed * 0.97 // 16 * 16)


def rounded_down(value: float, step: float) -> int:
    return _positive(value // step * step)


def utilization_of(free: float, total: float) -> float:
    """The largest utilization, in whole percent, that leaves 1 % of the free memory untouched."""
    value = int(free * 0.99 / total * 100) / 100
    if value < 0.1:
        raise ValueError("nothing left")
    return value


def half(value: float) -> int:
    return _positive(value / 2)


def less_by(value: float, step: float) -> float:
    result = round(value - step, 2)
    if result < 0.5:
        raise ValueError("nothing left")
    return result


def utilization_after_profiling(utilization: float, requested: float, pool: float, free: float, peak: float) -> float:
    """The utilization whose KV pool fits what profiling really left free, GiB: less the activation peak, which comes again, and 1 GiB.

    `requested` is that utilization's share of the GPU; the pool was planned larger than `free` by what the profile does not see.
    """
    return _lowered(utilization, pool - (free - peak - 1), requested / utilization)


def utilization_halfway(utilization: float, pool: float, tried: float, free: float, total: float) -> float:
    """The utilization whose KV pool fits if half of the pool's tensors (GiB each: `tried`) were there when one found only `free`.

    The message does not say how many were; half of them is safe unless more than half of the pool was never free.
    """
    return _lowered(utilization, pool - (free + pool // tried // 2 * tried - 1), total)


def utilization_without(utilization: float, tried: float, free: float, total: float) -> float:
    """The utilization that leaves the missing GiB free, and half a GiB more."""
    return _lowered(utilization, tried - free + 0.5, total)


def _lowered(utilization: float, surplus: float, total: float) -> float:
    """Whole percents, rounded down. Raises ValueError where nothing must go or nothing would be left."""
    value = int((utilization - surplus / total) * 100) / 100
    if surplus <= 0 or value < 0.1:
        raise ValueError("no utilization does it")
    return value


def utilization_with(utilization: float, left: float, total: float) -> float:
    """The utilization, in whole percent, that turns the GiB that are left for the KV cache (below 0: missing) into one."""
    value = math.ceil((utilization + (1 - left) / total) * 100) / 100
    if left >= 1 or value > MOST_UTILIZATION:
        raise ValueError("no utilization does it")
    return value


def utilization_for(utilization: float, needed: float, available: float, total: float) -> float:
    """The utilization, in whole percent, that adds the GiB that the KV cache lacks."""
    value = math.ceil((utilization + (needed - available) / total) * 100) / 100
    if needed <= available or value > MOST_UTILIZATION:
        raise ValueError("no utilization does it")
    return value


def utilization_by_graphs(utilization: float, left: float, graphs: float, equivalent: float) -> float:
    """The same; the GPU's size is what makes `graphs` GiB of CUDA graphs the difference to the equivalent utilization without them."""
    return utilization_with(utilization, left, graphs / (utilization - equivalent))


def utilization_raised(utilization: float, left: float) -> float:
    """A little more, where the GPU's size is not known: not where more than a little is missing."""
    if left < -1:
        raise ValueError("how much more is not known")
    return more_by(utilization, 0.04, MOST_UTILIZATION)


def more_by(value: float, step: float, most: float) -> float:
    if value >= most:
        raise ValueError("nothing left")
    return min(round(value + step, 2), most)


def divisor_below(number: float, limit: float) -> int:
    """The largest divisor of `number` that is below `limit`."""
    return _positive(max((d for d in range(1, int(limit)) if int(number) % d == 0), default=0))


def power_of_two_above(value: float) -> int:
    return 1 << (_positive(value) - 1).bit_length()


def within(value: float, wanted: float, share: float) -> bool:
    """Whether a value misses what is wanted by no more than a share of it."""
    return abs(wanted - value) <= share * wanted


def above(value: float, bound: float) -> bool:
    return value > bound


def below_share(value: float, whole: float, share: float) -> bool:
    """Whether a value is less than that share (0 to 1) of the whole, both in one unit."""
    return value < share * whole


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        len_that_fits,
        rounded_down,
        utilization_of,
        utilization_after_profiling,
        utilization_halfway,
        utilization_without,
        half,
        less_by,
        more_by,
        utilization_with,
        utilization_for,
        utilization_by_graphs,
        utilization_raised,
        divisor_below,
        power_of_two_above,
        within,
        above,
        below_share,
    )
}
