"""CUDA's own conventions: which devices a process sees, which toolkit knows which GPU, which driver runs which toolkit."""

import re
from collections.abc import Sequence

from firstlight.core.machine import Accelerator

# Major compute capability -> the first CUDA toolkit that makes code for it; code for x.0 runs on x.y. Source: CUDA's release notes.
_TOOLKIT_FOR_MAJOR = {7: (10, 0), 8: (11, 0), 9: (11, 8), 10: (12, 8), 11: (13, 0), 12: (12, 8)}

# CUDA major -> the oldest driver that runs every toolkit of it (minor version compatibility). Source: CUDA compatibility guide.
_DRIVER_FOR_MAJOR = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


def numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version or "")[:3])


def visible(gpus: Sequence[Accelerator], selection: str | None) -> list[Accelerator]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order: indices or uuids (or their beginnings); the first bad entry ends the list."""
    if selection is None:
        return list(gpus)
    chosen: list[Accelerator] = []
    for word in selection.split(","):
        found = _named(gpus, word.strip())
        if found is None or found in chosen:
            break
        chosen.append(found)
    return chosen


def _named(gpus: Sequence[Accelerator], word: str) -> Accelerator | None:
    if word.isdigit():
        return next((g for g in gpus if g.index == int(word)), None)
    return next((g for g in gpus if word and g.uuid and g.uuid.startswith(word)), None)


def toolkit_for(sm: int) -> tuple[int, int] | None:
    """The first CUDA toolkit for a compute capability; None: not in the table."""
    return _TOOLKIT_FOR_MAJOR.get(sm // 10)


def driver_for(cuda: str) -> tuple[int, int] | None:
    """The oldest driver that runs a CUDA version; None: not in the table."""
    return _DRIVER_FOR_MAJOR.get(numbers(cuda)[0]) if numbers(cuda) else None


def dotted(version: Sequence[int]) -> str:
    return ".".join(str(n) for n in version)


def capability(sm: int) -> str:
    """120 -> `12.0`."""
    return f"{sm // 10}.{sm % 10}"
