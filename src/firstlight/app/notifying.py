"""The run's events as a systemd manager wants them: a status line, and more time while milestones advance."""

import time

from firstlight.app.progress import Board, amount
from firstlight.core.events import Event
from firstlight.core.units import format_seconds
from firstlight.deploy.notify import Notifier

EXTENSION_SECONDS = 300.0
EVERY_SECONDS = 1.0
_MILESTONES = frozenset({"stage-started", "stage-finished", "phase", "progress", "figure", "check", "ready", "head-start"})


class NotifyProgress:
    """Listens to a run's events. Silence earns no more time: what stalls runs into the manager's own limit."""

    def __init__(self, notifier: Notifier, title: str, stages: list[str]) -> None:
        self.notifier, self.board = notifier, Board(title, stages)
        self._extended = self._told = float("-inf")
        self._status = ""

    def __enter__(self) -> "NotifyProgress":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        view = self.board.apply(event)
        now = time.monotonic()
        if event.kind in _MILESTONES and now - self._extended >= EVERY_SECONDS:
            self._extended = now
            self.notifier.extend(max(EXTENSION_SECONDS, 1.5 * (view.eta_seconds or 0.0) if view else 0.0))
        if event.kind == "stalled":
            self.tell(f"stalled in {event.data.get('phase')}: {event.data.get('because')}")
        elif view is not None and view.state == "running":
            left = f", {format_seconds(view.eta_seconds)} left" if view.eta_seconds else ""
            self.tell(" ".join(p for p in (view.phase or view.name, amount(view)) if p) + left, rarely=event.kind in ("progress", "eta"))

    def tell(self, status: str, *, rarely: bool = False) -> None:
        """One status line; figures that change all the time are told once a second."""
        now = time.monotonic()
        if status != self._status and not (rarely and now - self._told < EVERY_SECONDS):
            self._status, self._told = status, now
            self.notifier.send(STATUS=status)
