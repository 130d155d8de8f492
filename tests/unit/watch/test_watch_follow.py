"""Following a growing file and a pipe: events within 50 ms, beats with ETA and verdict, a stall with its stacks."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.core.ports import FileInfo
from firstlight.watch.eta import Eta
from firstlight.watch.follow import Beat, Follower, follow_chunks, follow_file
from firstlight.watch.stall import Sample, Stall
from firstlight.watch.state import EngineLog, LogEvent


class FileHost:
    """What of a Host following a file needs."""

    is_local = True

    def stat(self, path: str) -> FileInfo | None:
        file = Path(path)
        return FileInfo(path=path, size=file.stat().st_size) if file.exists() else None

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(limit if limit is not None else -1)


async def collect(source: AsyncIterator[LogEvent | Beat]) -> list[tuple[float, LogEvent | Beat]]:
    return [(time.monotonic(), item) async for item in source]


async def test_lines_of_a_growing_file_are_events_at_once(tmp_path: Path) -> None:
    path, written = tmp_path / "engine.log", []
    follower = Follower(EngineLog("vllm"), Eta("vllm"))
    reading = asyncio.create_task(collect(follow_file(follower, FileHost(), str(path))))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    with open(path, "ab", buffering=0) as f:  # noqa: ASYNC230
        for line in (b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n", b"INFO:     Application startup complete.\n"):
            await asyncio.sleep(0.1)
            f.write(line)
            written.append(time.monotonic())
    found = [(at, item) for at, item in await reading if isinstance(item, LogEvent) and item.kind == "phase"]
    assert [item.data["name"] for _, item in found if isinstance(item, LogEvent)] == ["loading", "ready"]
    assert all(at - wrote < 0.5 for (at, _), wrote in zip(found, written, strict=True))


async def test_a_file_that_became_shorter_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n" * 3)
    follower = Follower(EngineLog("vllm"), Eta("vllm"))
    reading = asyncio.create_task(collect(follow_file(follower, FileHost(), str(path))))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    path.write_bytes(b"INFO:     Application startup complete.\n")
    assert (await asyncio.wait_for(reading, 10))[-1][1].kind == "ready"  # type: ignore[union-attr]


async def being_read(folder: Path) -> tuple[Path, Follower, "asyncio.Task[Any]"]:
    """A log of an engine that loads, and who follows it and has seen that."""
    path = folder / "engine.log"
    path.write_bytes(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n")
    follower = Follower(EngineLog("vllm"), Eta("vllm"))
    reading = asyncio.create_task(collect(follow_file(follower, FileHost(), str(path))))  # type: ignore[arg-type]
    while follower.log.phase != "loading":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return path, follower, reading


async def noted(reading: "asyncio.Task[Any]") -> list[str]:
    """What was said of the file itself until the end."""
    items = [item for _, item in await asyncio.wait_for(reading, 30)]
    return [item.data["text"] for item in items if isinstance(item, LogEvent) and item.kind == "note"]


async def test_a_file_that_another_took_the_place_of_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, follower, reading = await being_read(tmp_path)
    path.rename(tmp_path / "engine.log.1")
    (tmp_path / "new").write_bytes(
        b"INFO 10-12 08:00:09 [a.py:1] another engine says more than the first\n" * 3 + b"INFO:     Application startup complete.\n"
    )
    (tmp_path / "new").rename(path)
    notes = await noted(reading)
    assert [n for n in notes if "read from its beginning" in n]
    assert follower.log.phase == "ready"


async def test_a_file_that_is_gone_for_good_is_told_and_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstlight.watch.growing.GONE_SECONDS", 0.02)
    monkeypatch.setattr("firstlight.watch.growing.GIVEN_UP_SECONDS", 0.2)
    path, _, reading = await being_read(tmp_path)
    path.unlink()
    notes = await noted(reading)
    assert "the file is gone" in notes[0]
    assert "nothing more can be read" in notes[-1]


async def test_a_pipe_is_followed_until_it_closes() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"INFO 10-12 08:00:05 [a.py:1] Starting to lo"
        yield b"ad model /m...\n"

    follower = Follower(EngineLog("vllm"), Eta("vllm"))
    items = [item for _, item in await collect(follow_chunks(follower, chunks()))]
    assert [i.data["name"] for i in items if isinstance(i, LogEvent) and i.kind == "phase"] == ["loading"]


class StillSamples:
    """An engine in which nothing moves."""

    def __init__(self, clock: "Ticks") -> None:
        self.clock, self.dumps = clock, 0

    def sample(self) -> Sample:
        return Sample(time=self.clock.now, cpu_seconds=10.0, io_bytes=100, gpu_bytes=100, network_bytes=100)

    def stacks(self) -> str | None:
        self.dumps += 1
        return "Thread 1: all_reduce"


class Ticks:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


async def test_a_stall_is_told_once_with_the_stacks() -> None:
    clock = Ticks()
    samples = StillSamples(clock)
    follower = Follower(EngineLog("vllm"), Eta("vllm"), samples=samples, clock=clock)
    follower.take(b"INFO 10-12 08:00:05 [a.py:1] vLLM is using nccl==2.28.7\n")
    beats = [beat for _ in range(40) if (beat := await follower.beat())]
    states = [beat.verdict.state for beat in beats]
    assert states[0] is not Stall.STALLED
    assert states[-1] is Stall.STALLED
    assert [beat.stacks for beat in beats if beat.stacks] == ["Thread 1: all_reduce"]
    assert samples.dumps == 1


async def test_a_hang_whose_log_repeats_that_a_process_waits_is_told() -> None:
    clock = Ticks()
    follower = Follower(EngineLog("vllm"), Eta("vllm"), samples=StillSamples(clock), clock=clock)
    follower.take(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n")
    beats = []
    for _ in range(60):
        follower.take(b"INFO 10-12 08:00:05 [a.py:1] No available shared memory broadcast block found in 60 seconds.\n")
        beats += [beat for beat in [await follower.beat()] if beat]
    assert "harmless as long as something moves" in (beats[3].wait or "")
    assert beats[-1].verdict.state is Stall.STALLED
    assert "this is a hang" in (beats[-1].wait or "")
    follower.take(b"INFO 10-12 08:00:05 [a.py:1] Model loading took 3.0 GiB memory and 4.0 seconds\n")
    after = await follower.beat()
    assert after is not None
    assert after.wait is None


class Slow:
    """A host on which a sample takes a second."""

    def sample(self) -> Sample:
        time.sleep(1.0)
        return Sample(time=time.time())

    def stacks(self) -> str | None:
        return None


async def test_no_line_waits_for_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstlight.watch.follow.SAMPLE_SECONDS", 0.05)
    path, took = tmp_path / "engine.log", []
    path.write_bytes(b"")
    follower = Follower(EngineLog("vllm"), Eta("vllm"), samples=Slow())
    reading = follow_file(follower, FileHost(), str(path))  # type: ignore[arg-type]
    with open(path, "ab", buffering=0) as f:  # noqa: ASYNC230
        for i in range(10):
            await asyncio.sleep(0.05)
            f.write(f"INFO 10-12 08:00:05 [a.py:1] Loading weights took {i}.5 seconds\n".encode())
            began = time.monotonic()
            while not isinstance(item := await anext(reading), LogEvent) or item.kind != "figure":
                pass
            took.append(time.monotonic() - began)
    await reading.aclose()  # type: ignore[attr-defined]
    assert max(took) < 0.8
    assert sorted(took)[5] < 0.3


class Growing:
    """Loading that maps a gigabyte per sample while the log says nothing."""

    def __init__(self, clock: "Ticks") -> None:
        self.clock, self.count = clock, 0

    def sample(self) -> Sample:
        self.count += 1
        return Sample(time=self.clock.now, read_bytes=1000, mapped_bytes=10**9 * self.count, cached_bytes=5 * 10**9)

    def stacks(self) -> str | None:
        return None


async def test_loading_that_the_log_does_not_tell_is_seen_in_bytes() -> None:
    clock = Ticks()
    follower = Follower(EngineLog("vllm"), Eta("vllm", checkpoint_bytes=50 * 10**9), samples=Growing(clock), clock=clock)
    follower.take(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n")
    beats = [beat for _ in range(8) if (beat := await follower.beat())]
    last = beats[-1]
    assert (last.done, last.total, last.unit) == (7 * 10**9, 50 * 10**9, "bytes")
    assert "of 50 GB at" in (last.remaining.because or "")
    follower.take(b"Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.05it/s]\n")
    told = await follower.beat()
    assert told is not None
    assert (told.done, told.total, told.unit) == (1, 2, "shards")
