"""Numbers out of a config that anybody may have written: nonsense counts as missing."""

import math
from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 62


def number(config: Mapping[str, Any], key: str) -> int:
    """A whole number; 0 for what is missing, no number, not finite, negative or absurd."""
    return int(fraction(config, key))


def fraction(config: Mapping[str, Any], key: str) -> float:
    """As `number`, with what comes after the point."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST or not math.isfinite(value):
        return 0
    return value


def experts_of(config: Mapping[str, Any]) -> int:
    """Routed experts of a layer, by any of the field's names; 0 for a dense model."""
    return number(config, "n_routed_experts") or number(config, "num_experts") or number(config, "num_local_experts")


def top_k_of(config: Mapping[str, Any]) -> int:
    """Experts that one token goes through, at least 1."""
    names = ("num_experts_per_tok", "experts_per_token", "top_k_experts")
    return next((number(config, name) for name in names if number(config, name)), 1)
