"""How often the interval of `watch` held the time that a start still took.

    python bench/eta.py LOG… [--json bench/results/eta.json]

Each log is a whole start of vLLM up to ready. It is replayed with the times of its lines; at every second the interval as a user saw it
then (the last one, less the seconds since) is held against what was left in truth. `alone`: nothing is known but the log. `history`: the
phases of the other logs of the same model and release are given as earlier starts on this machine (whatever their flags and caches were).
"""

import argparse
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from firstlight.core.figures import Figure
from firstlight.watch.eta import Eta, phase_seconds
from firstlight.watch.state import EngineLog

MOST_HISTORY = 5
LAST_SECONDS = 2  # of a start: the stamps of lines are whole seconds


def replay(data: bytes, history: Sequence[Mapping[str, float]] = ()) -> tuple[EngineLog, dict[int, Figure], float | None]:
    """The log at ready, the estimate at each second with a line, and when it was ready (None: never)."""
    log, eta, told = EngineLog("vllm", stamped=True), Eta("vllm", history=history), dict[int, Figure]()
    for raw in data.splitlines(keepends=True):
        for event in log.feed(raw, 0.0):
            eta.event(event)
        if log.phase in ("ready", "serving", "failed"):
            return log, told, None if log.phase == "failed" else log.last_line_at
        if log.last_line_at is not None and (found := eta.remaining(log, log.last_line_at)).known:
            told[int(log.last_line_at)] = found
    return log, told, None


def judged(told: Mapping[int, Figure], ready: float) -> dict[str, float]:
    """Seconds of the start, share of them in which the interval held the truth, median miss of its middle against what was left."""
    inside, misses, latest = 0, [], None
    seconds = range(min(told), int(ready) - LAST_SECONDS)
    for second in seconds:
        latest = second if second in told else latest
        figure, since, left = told[latest or second], second - (latest or second), ready - second
        low, mid, high = figure.low or 0.0, figure.mid or 0.0, figure.high or 0.0
        inside += max(low - since, 0.0) <= left <= max(high - since, high * 0.1)
        misses.append(abs(max(mid - since, 0.0) - left) / left)
    return {"seconds": len(seconds), "inside": inside, "median_miss": round(statistics.median(misses), 2) if misses else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "eta.json")
    options = parser.parse_args()
    texts = {hashlib.sha256(data).hexdigest(): data for data in (path.read_bytes() for path in options.logs)}
    starts = [(data, log) for data in texts.values() for log, told, ready in [replay(data)] if ready is not None and told]
    result = {}
    for name in ("alone", "history"):
        rows = [row for data, log in starts if (row := one(data, log, starts, with_history=name == "history"))]
        seconds = sum(row["seconds"] for row in rows)
        result[name] = {
            "starts": len(rows),
            "seconds": seconds,
            "inside_percent": round(100 * sum(row["inside"] for row in rows) / max(seconds, 1), 1),
            "median_miss": round(statistics.median(row["median_miss"] for row in rows), 2) if rows else None,
        }
        print(name, result[name])
    options.json.write_text(json.dumps(result, indent=1) + "\n")


def one(data: bytes, log: EngineLog, starts: list[tuple[bytes, EngineLog]], *, with_history: bool) -> dict[str, float] | None:
    alike = [o for d, o in starts if d is not data and (o.fields.get("model"), o.version) == (log.fields.get("model"), log.version)]
    if with_history and not alike:
        return None
    _, told, ready = replay(data, [phase_seconds(o) for o in alike[:MOST_HISTORY]] if with_history else [])
    row = judged(told, ready or 0.0)
    return row if row["seconds"] > 0 else None


if __name__ == "__main__":
    main()
