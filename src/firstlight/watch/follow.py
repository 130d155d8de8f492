"""Follows a log live: events as lines come, an ETA, and a verdict when it goes silent. One pass, constant memory."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct

from firstlight.core.figures import Figure
from firstlight.core.ports import Host
from firstlight.watch.eta import Eta
from firstlight.watch.growing import CHUNK, GrowingFile
from firstlight.watch.reading import Reading
from firstlight.watch.records import Record
from firstlight.watch.stall import Sample, Stall, Verdict, judge
from firstlight.watch.state import EngineLog, LogEvent
from firstlight.watch.symptoms import explain_wait

LOOK_SECONDS = 0.02
LOOK_SECONDS_ELSEWHERE = 0.5  # every look at another host is a command there
SAMPLE_SECONDS = 5.0
BEAT_SECONDS = 2.0
OVER = frozenset({"ready", "serving", "failed", "stopped"})


class Samples(Protocol):
    """What gives samples: `Sampler`, or a list of them in a test."""

    def sample(self) -> Sample: ...
    def stacks(self) -> str | None: ...


class Beat(Struct, frozen=True, kw_only=True):
    """Now and then, whether or not the log says something: where the start is, how long still, and whether it moves.

    done, total, unit: steps that the log told, else bytes of the checkpoint (a log that is silent while it loads). wait: what a wait
    between processes means at this moment, where the log told of one in this phase.
    """

    time: float
    phase: str
    remaining: Figure
    verdict: Verdict
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    stacks: str | None = None
    wait: str | None = None


class Follower:
    """Ties a log, an ETA and samples together. `clock` is Unix seconds."""

    def __init__(self, log: EngineLog, eta: Eta, *, samples: Samples | None = None, clock: Callable[[], float] = time.time) -> None:
        self.log, self.eta = log, eta
        self._source, self._clock = samples, clock
        self._samples: deque[Sample] = deque(maxlen=60)
        self._reading = Reading(eta.checkpoint_bytes)
        self._waits = False
        self._sampled = self._beaten = clock()
        self._dumped = False

    def take(self, chunk: bytes) -> list[LogEvent]:
        return self._seen(self.log.feed(chunk, self._clock()))

    def end_line(self) -> list[LogEvent]:
        """Events of a last line that nothing will be added to."""
        return self._seen(self.log.close(self._clock()))

    def note(self, text: str) -> LogEvent:
        """An event of what happened to the log itself. data: text."""
        return LogEvent(kind="note", time=self._clock(), line=self.log.lines, data={"text": text})

    def record(self, record: Record) -> list[LogEvent]:
        """Events of a record that an engine's process sent as data."""
        return self._seen(self.log.take(record.as_line(self.log.lines), self._clock()))

    def _seen(self, events: list[LogEvent]) -> list[LogEvent]:
        for event in events:
            self.eta.event(event)
            if event.kind in ("waiting", "phase"):
                self._waits = event.kind == "waiting"
        return events

    async def beat(self) -> Beat | None:
        """A Beat when one is due."""
        now = self._clock()
        if self._source is not None and now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            await self._sample()
        if now - self._beaten < BEAT_SECONDS:
            return None
        self._beaten = now
        verdict = self._verdict(now)
        done, total, unit = self._progress()
        return Beat(
            time=now,
            phase=self.log.phase,
            remaining=self.eta.remaining(self.log, now),
            verdict=verdict,
            done=done,
            total=total,
            unit=unit,
            stacks=await self._stacks(verdict),
            wait=explain_wait(verdict, self.log.phase) if self._waits else None,
        )

    def _progress(self) -> tuple[int | None, int | None, str | None]:
        """Steps that the log told; while it loads and tells none, bytes."""
        if self.log.total is None and (loaded := self._reading.last):
            return loaded.bytes, self.eta.checkpoint_bytes, "bytes"
        return self.log.done, self.log.total, self.log.unit

    async def _sample(self) -> None:
        assert self._source is not None
        sample = await asyncio.to_thread(self._source.sample)
        self._samples.append(sample)
        if loaded := self._reading.see(self._samples, loading=self.log.phase == "loading"):
            self.eta.bytes_read(sample.time, loaded.bytes)

    def _verdict(self, now: float) -> Verdict:
        silent = now - (self.log.last_line_at if self.log.last_line_at is not None else now)
        return judge(
            tuple(self._samples),
            phase=self.log.phase,
            silent_seconds=silent,
            engine=self.log.engine,
            earlier_seconds=self.eta.longest(self.log.phase),
            waits=self._waits,
        )

    async def _stacks(self, verdict: Verdict) -> str | None:
        """The workers' stacks, once, at the moment in which the verdict turns to stalled."""
        if verdict.state is not Stall.STALLED or self._dumped or self._source is None:
            return None
        self._dumped = True
        return await asyncio.to_thread(self._source.stacks)


class Beats:
    """Runs a follower's beats beside the reading: a sample may take seconds (nvidia-smi, a slow host), and no line waits for it."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._running: asyncio.Task[Beat | None] | None = None

    def next(self) -> Beat | None:
        """The beat that is there now; starts the next one. Raises what a beat raised."""
        if self._running is not None and not self._running.done():
            return None
        found = self._running.result() if self._running is not None else None
        self._running = asyncio.ensure_future(self._follower.beat())
        return found

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()


async def follow_file(
    follower: Follower, host: Host, path: str, *, until: frozenset[str] = OVER, over: Callable[[], bool] = lambda: False
) -> AsyncIterator[LogEvent | Beat]:
    """Events and beats of a growing log file until its phase is in `until`. A file that was cut, or that another took the place of, is
    read from its beginning; one that is gone and does not come back is the end. Both are told by an event `note`.

    over: whether nobody writes any more, asked at each beat; then it ends where the file does.

    Raises HostError when the file cannot be read.
    """
    beats = Beats(follower)
    try:
        async for item in _follow_file(follower, beats, host, path, until, over):
            yield item
    finally:
        beats.close()


async def _follow_file(
    follower: Follower, beats: Beats, host: Host, path: str, until: frozenset[str], over: Callable[[], bool]
) -> AsyncIterator[LogEvent | Beat]:
    file, ended = GrowingFile(host, path), False
    while True:
        look = await file.look(time.monotonic())
        if look.again:
            for event in follower.end_line():
                yield event
        if look.note is not None:
            yield follower.note(look.note)
        for event in follower.take(look.chunk) if look.chunk else ():
            yield event
        if len(look.chunk) == CHUNK:
            continue
        if follower.log.phase in until or ended or look.over:
            return
        if beat := beats.next():
            yield beat
            ended = await asyncio.to_thread(over)  # what was written before is read once more
        await asyncio.sleep(LOOK_SECONDS if host.is_local else LOOK_SECONDS_ELSEWHERE)


async def follow_chunks(follower: Follower, chunks: AsyncIterator[bytes]) -> AsyncIterator[LogEvent | Beat]:
    """Events and beats of a stream (a pipe) until it ends; silence is judged while it is silent."""
    source, beats = aiter(chunks), Beats(follower)
    pending = asyncio.ensure_future(_next(source))
    try:
        while True:
            done, _ = await asyncio.wait((pending,), timeout=BEAT_SECONDS)
            if done:
                chunk = pending.result()
                if chunk is None:
                    return
                for event in follower.take(chunk):
                    yield event
                pending = asyncio.ensure_future(_next(source))
            if beat := beats.next():
                yield beat
    finally:
        pending.cancel()
        beats.close()


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
