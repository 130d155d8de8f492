"""A byte rate that all connections of a fetch share, and waits between attempts."""

import random
import threading
import time

BURST_SECONDS = 0.25


class RateLimit:
    """`take(n)` returns when n more bytes fit under `bytes_per_second` (None: no limit), or when `stop` is set."""

    def __init__(self, bytes_per_second: float | None, stop: threading.Event) -> None:
        self.bytes_per_second = bytes_per_second
        self._stop, self._lock, self._paid_until = stop, threading.Lock(), 0.0

    def take(self, n: int) -> None:
        if not self.bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            self._paid_until = max(self._paid_until, now - BURST_SECONDS) + n / self.bytes_per_second
            wait = self._paid_until - now
        if wait > 0:
            self._stop.wait(wait)

    def read_size(self, largest: int) -> int:
        """Small reads under a small limit, so that the bar moves and the limit holds within a second."""
        if not self.bytes_per_second:
            return largest
        return max(4096, min(largest, int(self.bytes_per_second / 16)))


PATIENT_ATTEMPTS = 6


def wait_seconds(attempt: int, asked: float | None) -> float:
    """What the server asked for; our own growing waits where it asks for nothing, or again and again for too little."""
    if asked is None:
        return backoff_seconds(attempt)
    return max(asked, backoff_seconds(attempt - PATIENT_ATTEMPTS)) if attempt > PATIENT_ATTEMPTS else asked


def backoff_seconds(attempt: int) -> float:
    """0.25 s doubling to 30 s, with jitter so that many clients do not come back at once. attempt: 1 for the first wait."""
    return float(min(30.0, 0.25 * 2 ** min(attempt - 1, 10)) * (0.5 + random.random() / 2))
