"""Whether the kernel's OOM killer struck among the engine's processes. Where it took a worker, the engine ends in some other way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from . import procfs

FILES = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class OomWatch:
    """Counts from the moment on when it is made; `note` tells it of processes, whose cgroups count the kills among them."""

    def __init__(self) -> None:
        self._machine = procfs.oom_kills()
        self._counters: dict[str, int] = {}

    def note(self, pids: Iterable[int]) -> None:
        for path in {path for pid in pids for path in counters(pid)}:
            count = read(path)
            if count is not None:
                self._counters.setdefault(path, count)

    def struck(self, *, killed: bool) -> bool:
        """killed: whether the engine ended by SIGKILL; where no cgroup counts, only that and the machine's own count speak for it."""
        if self._counters:
            return any((read(path) or 0) > before for path, before in self._counters.items())
        return killed and procfs.oom_kills() > self._machine


def read(path: str) -> int | None:
    """`oom_kill N` of the file; None where it has none."""
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


def counters(pid: int) -> Iterator[str]:
    """The file that counts the kills in the process's cgroup: its own, or that of the nearest one above which counts."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for number, controllers, path in (row for row in rows if len(row) == 3):
        kind = "cgroup2" if number == "0" and not controllers else "cgroup" if "memory" in controllers.split(",") else None
        if kind is not None and (found := _nearest(_mount(kind), path, FILES[kind])) is not None:
            yield found


def _nearest(root: str | None, path: str, name: str) -> str | None:
    while root is not None:
        file = os.path.join(root, path.strip("/"), name)
        if os.path.exists(file):
            return file
        if path in ("", "/"):
            return None
        path = os.path.dirname(path.rstrip("/"))
    return None


def _mount(kind: str) -> str | None:
    """Where the hierarchy is mounted: version 2, or version 1 with the memory controller."""
    try:
        with open("/proc/self/mountinfo") as file:
            rows = [line.split(" - ") for line in file]
    except OSError:
        return None
    for before, after in (row for row in rows if len(row) == 2):
        words = after.split()
        if words[0] == kind and (kind == "cgroup2" or "memory" in words[-1].split(",")):
            return before.split()[4]
    return None
