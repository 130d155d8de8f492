"""Whether a model fits, and what could make room: proposals, never actions."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from firstlight.core.fetch import Space
from firstlight.core.findings import Finding
from firstlight.core.units import format_bytes, format_seconds
from firstlight.fetch.models import CachedModel, cached_models
from firstlight.fetch.space import MARGIN, space_findings

SHOWN = 4


def room_findings(space: Space, needed: int | None, env: Mapping[str, str], cache: Path, keep: Path) -> list[Finding]:
    """`space_findings`, with the cached models on the same disk that could go. keep: the model that is to be fetched."""
    found = space_findings(space, needed)
    if not any(f.code == "no-space" for f in found):
        return found
    missing = (needed or 0) + MARGIN - (space.available_bytes or 0)
    others = [m for m in cached_models(env, cache=cache) if _same_disk(m, space) and Path(m.path) != keep]
    lines = proposals(others, missing, time.time())
    return [msgspec.structs.replace(f, evidence=[*f.evidence, *lines]) if f.code == "no-space" else f for f in found]


def proposals(models: Sequence[CachedModel], missing: int, now: float) -> list[str]:
    """Models by how long nobody used them, until they would make enough room. Pure."""
    lines: list[str] = []
    freed = 0
    for model in sorted(models, key=lambda m: m.last_used or 0.0):
        if freed >= missing or len(lines) == SHOWN:
            break
        freed += model.bytes
        used = f"last used {format_seconds(max(0.0, now - model.last_used))} ago" if model.last_used else "never used"
        lines.append(f"could go: {model.name}, {format_bytes(model.bytes)}, {used}")
    return lines


def _same_disk(model: CachedModel, space: Space) -> bool:
    try:
        return os.stat(model.path).st_dev == os.stat(space.path).st_dev
    except OSError:
        return False
