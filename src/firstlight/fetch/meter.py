"""Rate and time left from byte counts, and what a place gave before."""

import json
import time
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

from firstlight.core.figures import Figure, Rung

WINDOW = 5.0
WORTH_KEEPING = 2.0


class Meter:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def rate(self, received: int) -> float | None:
        """None until half a second has passed."""
        now = time.monotonic()
        self._points.append((now, received))
        while self._points[0][0] < now - WINDOW:
            self._points.popleft()
        then, before = self._points[0]
        return (received - before) / (now - then) if now - then >= 0.5 else None


def eta_seconds(left: int | None, rate: float | None) -> float | None:
    return left / rate if left is not None and rate else None


def place_key(source: str, locator: str) -> str:
    """What a measured rate belongs to: the source and the server."""
    return f"{source} {urlsplit(locator).netloc}"


def remember_rate(folder: Path, key: str, received: int, seconds: float) -> None:
    """The mean of this fetch, half old and half new. Never a reason to fail."""
    if seconds < WORTH_KEEPING or received <= 0:
        return
    rates = _rates(folder)
    new = received / seconds
    rates[key] = round((rates.get(key, new) + new) / 2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / "rates.json.new"
        fresh.write_text(json.dumps(rates))
        fresh.replace(folder / "rates.json")
    except OSError:
        pass


def expected_seconds(folder: Path, key: str, left: int | None) -> Figure:
    """Unknown until something was fetched from there once."""
    rate = _rates(folder).get(key)
    if not rate or left is None:
        return Figure(because="nothing was fetched from there yet")
    mid = left / rate
    return Figure(
        low=mid / 2, mid=mid, high=mid * 2, rung=Rung.MEASURED, because="at the rate of earlier fetches from there; half to double"
    )


def _rates(folder: Path) -> dict[str, float]:
    try:
        found = json.loads((folder / "rates.json").read_text())
        return {str(k): float(v) for k, v in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
