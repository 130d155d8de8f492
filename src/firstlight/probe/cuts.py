"""What was cut off is asked again: a connection that comes and goes costs time, never an answer."""

import time
from collections.abc import Callable
from typing import TypeVar

from firstlight.core.errors import HostError

T = TypeVar("T")
PATIENCE_SECONDS = 120.0
FIRST_PAUSE, LONGEST_PAUSE = 0.3, 2.0
FIRST_CONTACT_SECONDS = 20.0  # of a host that never was reached: a connection that broke on its way in


class ConnectionLost(HostError):
    """There was a connection, and it broke: `host-unreachable` that may be gone at the next try."""


class Cuts:
    """One host's connection. reached: a command ran there once; a host that never was reached is not waited for.

    patience: seconds from the first loss of one question on. on_lost: told once per question that is asked again.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS, on_lost: Callable[[HostError], None] | None = None) -> None:
        self.patience, self.on_lost, self.reached = patience, on_lost, False

    def across(self, ask: Callable[[int], T]) -> T:
        """`ask(losses)` until it answers, with growing pauses. Raises HostError: of its own, or the last loss."""
        losses, deadline, first = 0, 0.0, time.monotonic() + FIRST_CONTACT_SECONDS
        while True:
            try:
                answer = ask(losses)
            except HostError as e:
                deadline = deadline or time.monotonic() + self.patience
                losses += 1
                if not self._again(e) or time.monotonic() > (deadline if self.reached else first):
                    raise
                if losses == 1 and self.on_lost:
                    self.on_lost(e)
                time.sleep(min(LONGEST_PAUSE if self.reached else 1.0, FIRST_PAUSE * 2 ** (losses - 1)))
            else:
                self.reached = True
                return answer

    def _again(self, error: HostError) -> bool:
        """Whether another try may help: of a host that was never reached only where a connection broke."""
        return error.code == "host-unreachable" and (self.reached or isinstance(error, ConnectionLost))
