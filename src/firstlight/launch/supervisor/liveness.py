"""Whether a serving engine still makes tokens. Busy is not dead: counters are looked at before anything is judged."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .http_probe import Answer

_COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total")
_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred")
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+\d.eE]+)", re.M)

Ask = Callable[..., None]


class Load(NamedTuple):
    """tokens: all tokens so far; running, waiting: requests now. None where the engine does not say."""

    tokens: float | None
    running: float | None
    waiting: float | None


def read_metrics(text: str) -> Load:
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return Load(_total(sums, _COUNTERS), _total(sums, _RUNNING), _total(sums, _WAITING))


def _total(sums: dict[str, float], names: tuple[str, ...]) -> float | None:
    found = [sums[n] for n in names if n in sums]
    return sum(found) if found else None


class Liveness:
    """Every `interval` seconds: counters; when idle, one token. Silent for `patience` seconds with work to do: wedged.

    Calls `judge("alive" | "wedged", evidence)` when the verdict changes. `ask(path, done, timeout, body)` makes a request.
    """

    def __init__(self, ask: Ask, judge: Callable[[str, dict[str, Any]], None], *, model: str, interval: float, patience: float) -> None:
        self._ask, self._judge, self._model = ask, judge, model
        self.interval, self._patience = interval, patience
        self._last: float | None = None
        self._moved = time.monotonic()
        self._asked_since: float | None = None
        self.verdict = "alive"

    def tick(self) -> None:
        self._ask("/metrics", self._counted, timeout=min(self._patience, 10.0), body=None)

    def _counted(self, answer: Answer) -> None:
        load = read_metrics(answer.body.decode("utf-8", "replace")) if answer.status == 200 else Load(None, None, None)
        now = time.monotonic()
        if load.tokens is not None and load.tokens != self._last:
            self._last, self._moved = load.tokens, now
            self._decide("alive", {"tokens": load.tokens, "running": load.running})
        elif load.running or load.waiting:
            if now - self._moved > self._patience:
                evidence = {"running": load.running, "waiting": load.waiting, "seconds_without_token": round(now - self._moved, 1)}
                self._decide("wedged", evidence)
        elif self._asked_since is None:
            self._generate(now)

    def _generate(self, now: float) -> None:
        self._asked_since = now
        body = {"model": self._model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        self._ask("/v1/completions", self._generated, timeout=self._patience, body=body)

    def _generated(self, answer: Answer) -> None:
        self._asked_since = None
        if answer.status == 200 and _has_choice(answer.body):
            self._moved = time.monotonic()
            self._decide("alive", {"seconds": round(answer.seconds, 3)})
        elif answer.status is None or answer.status >= 500:
            self._decide("wedged", {"status": answer.status, "problem": answer.problem, "seconds": round(answer.seconds, 1)})

    def _decide(self, verdict: str, evidence: dict[str, Any]) -> None:
        if verdict != self.verdict:
            self.verdict = verdict
            self._judge(verdict, evidence)


def _has_choice(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["choices"])
    except (ValueError, KeyError, TypeError):
        return False
