"""What the bench's streaming client costs: chunks a second one core could take, by processor time, next to a general client.

    python bench/bench_client.py [--json]

Two cases: chunks that arrive each by itself (64 paced streams, the way an engine sends) and chunks that arrive as fast as they can be sent.
Processor time is the process's own, so that a busy machine does not change the figure.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import httpx2
from corrupt.engines import free_port, process

from firstlight.bench.client import Target, User

SERVER = ROOT / "tests/unit/bench/bench_stream.py"
RESULTS = ROOT / "bench/results/bench_client.json"
BODY = b'{"stream": true}'
Streams = Callable[[str, int], Awaitable[int]]


async def by_ours(base: str, users: int) -> int:
    target = Target.of(base)

    async def one() -> int:
        user = User(target)
        record = await user.send("/chat/completions", BODY, seconds=120)
        user.close()
        if record.error:
            raise RuntimeError(record.error)
        return len(record.times)

    return sum(await asyncio.gather(*(one() for _ in range(users))))


async def by_httpx2(base: str, users: int) -> int:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:

        async def one() -> int:
            count = 0
            async with client.stream("POST", base + "/chat/completions", content=BODY) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                        count += 1
            return count

        return sum(await asyncio.gather(*(one() for _ in range(users))))


def measure(streams: Streams, users: int, chunks: int, apart: float) -> dict[str, float]:
    port = free_port()
    with process([sys.executable, str(SERVER), str(port), str(chunks), str(apart)], port):
        base = f"http://127.0.0.1:{port}/v1"
        cpu, wall = time.process_time(), time.perf_counter()
        count = asyncio.run(streams(base, users))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if count != users * chunks:
        raise RuntimeError(f"{count} chunks of {users * chunks}")
    return {"chunks": count, "cpu_seconds": round(cpu, 3), "wall_seconds": round(wall, 3), "chunks_per_core_second": round(count / cpu)}


CASES: list[tuple[str, int, int, float]] = [("each by itself", 64, 400, 0.02), ("as fast as sent", 4, 20_000, 0.0)]


def main() -> None:
    rows = []
    for case, users, chunks, apart in CASES:
        for name, streams in (("firstlight", by_ours), ("httpx2 + json", by_httpx2)):
            best = max((measure(streams, users, chunks, apart) for _ in range(3)), key=lambda r: r["chunks_per_core_second"])
            rows.append({"case": case, "client": name, **best})
            print(
                f"{case:16} {name:14} {best['chunks_per_core_second']:9.0f} chunks a core-second, {best['chunks']:6.0f} chunks", flush=True
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"best_of": 3, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
