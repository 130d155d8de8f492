"""When a dead engine is started again: never by default; with back-off, and not for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RestartPolicy:
    """on-failure: an engine that had been ready is started again. More than `max_restarts` deaths within `window` seconds: a crash loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.enabled = options.get("policy", "never") == "on-failure"
        self.also_before_ready = bool(options.get("also_before_ready", False))
        self.max_restarts = int(options.get("max_restarts", 5))
        self.window = float(options.get("window_seconds", 600.0))
        self.first = float(options.get("backoff_seconds", 1.0))
        self.longest = float(options.get("longest_backoff_seconds", 60.0))
        self._deaths: list[float] = []

    def delay(self, now: float, *, was_ready: bool) -> float | None:
        """Seconds to wait before the next start after a death at `now` (monotonic); None: no next start."""
        if not self.enabled or not (was_ready or self.also_before_ready):
            return None
        self._deaths = [*(d for d in self._deaths if now - d < self.window), now]
        if self.crash_loop:
            return None
        return min(self.longest, self.first * 2.0 ** (len(self._deaths) - 1))

    @property
    def crash_loop(self) -> bool:
        return len(self._deaths) > self.max_restarts
