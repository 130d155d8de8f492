"""What a run folder says, taken only where it can be true: somebody may have edited it, and by it processes are killed, files removed."""

from __future__ import annotations

import os
from typing import Any

from .engine import is_runtime_of, runtime_path
from .members import PREFIX

SHARED_MEMORY = "/dev/shm"


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def number(value: Any, *, least: int = 0) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 62 else None


def process(value: Any) -> tuple[int, int] | None:
    """pid and start ticks of a reference; both, or it names no process."""
    ref = mapping(value)
    pid, ticks = number(ref.get("pid"), least=2), number(ref.get("start_ticks"), least=1)
    return (pid, ticks) if pid is not None and ticks is not None else None


def processes(value: Any) -> frozenset[tuple[int, int]]:
    """Of a list of [pid, start ticks]."""
    pairs = [m for m in value if isinstance(m, list) and len(m) == 2] if isinstance(value, list) else []
    return frozenset(ref for pid, ticks in pairs if (ref := process({"pid": pid, "start_ticks": ticks})) is not None)


def cgroup(value: Any) -> str | None:
    """One that was made for a run: another's would make strangers ours."""
    fitting = isinstance(value, str) and value.startswith("/") and os.path.basename(value).startswith(PREFIX)
    return value if fitting and os.path.realpath(value) == value else None


def shared_memory(value: Any) -> set[str]:
    """Names that really stand in /dev/shm."""
    names = [name for name in value if isinstance(name, str) and "\0" not in name] if isinstance(value, list) else []
    return {n for n in names if os.path.normpath(n) == n and _inside(os.path.realpath(os.path.dirname(n)))}


def _inside(folder: str) -> bool:
    return folder == SHARED_MEMORY or folder.startswith(f"{SHARED_MEMORY}/")


def gpu_memory(value: Any) -> dict[str, int] | None:
    found = {index: used for index, used in mapping(value).items() if number(used) is not None}
    return found or None


def runtime(value: Any, folder: str) -> str:
    """The run's private folder: as recorded, because TMPDIR may have been another, but only if it has the name that this run gives it."""
    return value if isinstance(value, str) and is_runtime_of(value, folder) else runtime_path(folder)
