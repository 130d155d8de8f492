"""The engine's own gauges while it is measured: preemptions and how full the KV cache was."""

import asyncio
import math
import re
import ssl
import time
from contextlib import suppress
from typing import NamedTuple

from firstlight.bench.client import Target

PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_reqs")
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eEInfNa]+)", re.M)
EVERY_SECONDS = 0.25
LARGEST_SHARE = 0.01
LARGEST_BYTES = 8 << 20


class Gauges(NamedTuple):
    """preemptions: so far, None: not shown. kv: share of the KV cache in use, 0..1."""

    preemptions: int | None
    kv: float | None


def read_gauges(text: str) -> Gauges:
    """From a Prometheus text; several series of one name (engines, ranks) are added for counters, and their largest taken for shares."""
    values: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        if (name in PREEMPTIONS or name in KV_USAGE) and (number := _finite(value)) is not None:
            values.setdefault(name, []).append(number)
    counted = next((values[n] for n in PREEMPTIONS if n in values), None)
    shares = next((values[n] for n in KV_USAGE if n in values), None)
    return Gauges(round(sum(counted)) if counted else None, max(shares) if shares else None)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def pause(took: float, elapsed: float) -> float:
    """Seconds until the next look, after one that took so long: sooner in the beginning, so that a short level is seen as well."""
    return max(EVERY_SECONDS, min(took / LARGEST_SHARE, elapsed))


class Sampler:
    """Reads /metrics while a level runs, and nothing where there is no /metrics.

    vLLM builds that text in the process that also writes the streams: a read takes 30 ms on two cores. Twenty a second slowed the steps of
    four users by 4 %, four by 1 %. So looks are as far apart as the level is old, and then take a hundredth of the time.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._first: Gauges | None = None
        self._last: Gauges | None = None
        self._kv: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self.read_seconds = 0.0

    async def __aenter__(self) -> "Sampler":
        self._first = self._last = await self._read()
        self.read_seconds = 0.0  # before the level began
        if self._first is not None:
            self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            meanwhile = self.read_seconds
            self._last = await self._read() or self._last
            self.read_seconds = meanwhile  # the level is over

    async def _watch(self) -> None:
        wait, started = EVERY_SECONDS, time.perf_counter()
        while True:
            await asyncio.sleep(wait)
            before = self.read_seconds
            self._last = await self._read() or self._last
            wait = pause(self.read_seconds - before, time.perf_counter() - started)
            if self._last and self._last.kv is not None:
                self._kv.append(self._last.kv)

    async def _read(self) -> Gauges | None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(2.0):
                status, text = await plain_get(self._target, "/metrics")
        except (OSError, TimeoutError, ValueError):
            return None
        finally:
            self.read_seconds += time.perf_counter() - started
        return read_gauges(text) if status == 200 else None

    @property
    def preemptions(self) -> int | None:
        if self._first is None or self._last is None or self._first.preemptions is None or self._last.preemptions is None:
            return None
        return self._last.preemptions - self._first.preemptions

    @property
    def kv(self) -> float | None:
        """The fullest that was seen."""
        return max(self._kv, default=None)


async def plain_get(target: Target, path: str) -> tuple[int, str]:
    """A GET on the server's root (not under /v1) over its own connection. Raises ValueError for what is not HTTP."""
    context = ssl.create_default_context() if target.tls else None
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    root = target.prefix.removesuffix("/v1")
    try:
        writer.write(f"GET {root}{path} HTTP/1.1\r\n".encode() + target.headers + b"Connection: close\r\n\r\n")
        head, _, body = (await _read_all(reader)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = head.split(b" ", 2)[1:2]
    return int(status[0]) if status else 0, body.decode(errors="replace")


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while len(kept) < LARGEST_BYTES and (block := await reader.read(65536)):
        kept += block
    return bytes(kept)
