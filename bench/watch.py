"""How fast `watch` and `diagnose` read a log: MB/s on one core, and memory.

    python bench/watch.py [--megabytes 256] [--json bench/results/watch.json]

The log is made here: a start of 64 workers, then a server's everyday lines, tracebacks of requests among them.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from firstlight.diagnose.diagnose import diagnose
from firstlight.watch.state import EngineLog

CHUNK = 1 << 20


def start(workers: int) -> str:
    lines = [
        "(APIServer pid=9) INFO 10-12 08:00:00 [api_utils.py:273] non-default args: {'model': '/m', 'tensor_parallel_size': 64}",
        "(EngineCore pid=20) INFO 10-12 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='/m'",
    ]
    for rank in range(workers):
        lines.append(f"(Worker_TP{rank} pid={30 + rank}) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...")
    for i in range(119):
        lines.append(
            f"(Worker_TP0 pid=30) Loading safetensors checkpoint shards:  {i * 100 // 118}% Completed | {i}/118 [00:{i % 60:02d}<01:00,  1.20it/s]"  # noqa: E501
        )
    for rank in range(workers):
        lines.append(
            f"(Worker_TP{rank} pid={30 + rank}) INFO 10-12 08:04:05 [gpu_model_runner.py:5306] Model loading took 70.81 GiB memory and 240.1 seconds"  # noqa: E501
        )
    return "\n".join([*lines, "(APIServer pid=9) INFO:     Application startup complete."]) + "\n"


def everyday(i: int) -> str:
    request = f"chatcmpl-{i:08x}"
    return (
        f'(APIServer pid=9) INFO:     192.0.2.{i % 250}:{40000 + i % 20000} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        f'(APIServer pid=9) INFO:     192.0.2.{i % 250}:{40000 + i % 20000} - "GET /health HTTP/1.1" 200 OK\n'
        f"(APIServer pid=9) INFO 10-12 08:10:05 [logger.py:40] Received request {request}: params: SamplingParams(n=1, temperature=0.7, max_tokens={i % 4096})\n"  # noqa: E501
        f"(EngineCore pid=20) INFO 10-12 08:10:05 [loggers.py:257] Engine 000: Avg prompt throughput: {i % 900}.1 tokens/s, Avg generation throughput: 61.{i % 9} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%\n"  # noqa: E501
        f"(Worker_TP{i % 64} pid={30 + i % 64}) WARNING 10-12 08:10:05 [x.py:1] [Autotuner]: Skipping tactic {i % 40} due to failure\n"
    )


REQUEST_ERROR = (
    "(APIServer pid=9) ERROR 10-12 08:10:06 [serving.py:200] Traceback (most recent call last):\n"
    + '(APIServer pid=9) ERROR 10-12 08:10:06 [serving.py:200]   File "/x/serving.py", line 187, in create\n'
    + "(APIServer pid=9) ERROR 10-12 08:10:06 [serving.py:200]     engine_prompt = await self.preprocess(request)\n"
    + "(APIServer pid=9) ERROR 10-12 08:10:06 [serving.py:200] ValueError: This model's maximum context length is 4096 tokens\n"
)


def chunks(megabytes: int) -> Iterator[bytes]:
    """The same log for every reader, made as it is read."""
    yield start(64).encode()
    block = "".join(everyday(i) + (REQUEST_ERROR if i % 50 == 0 else "") for i in range(1500)).encode()
    left = megabytes << 20
    while left > 0:
        for at in range(0, len(block), CHUNK):
            piece = block[at : at + CHUNK]
            left -= len(piece)
            yield piece


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def watched(megabytes: int) -> dict[str, float]:
    log, began, before, total, worst, events = EngineLog("vllm"), time.process_time(), memory(), 0, 0.0, 0
    for chunk in chunks(megabytes):
        at = time.perf_counter()
        events += len(log.feed(chunk, 0.0))
        worst = max(worst, time.perf_counter() - at)
        total += len(chunk)
    seconds = time.process_time() - began
    assert log.phase == "serving"
    return {
        "megabytes": total >> 20,
        "seconds": round(seconds, 2),
        "mb_per_second": round(total / 1e6 / seconds, 1),
        "events": events,
        "grown_mib": round(memory() - before, 1),
    }


def diagnosed(megabytes: int) -> dict[str, float]:
    began, before = time.process_time(), memory()
    found = diagnose(chunks(megabytes))
    seconds = time.process_time() - began
    assert found.outcome == "ready"
    return {
        "megabytes": megabytes,
        "seconds": round(seconds, 2),
        "mb_per_second": round(megabytes * 1.048576 / seconds, 1),
        "grown_mib": round(memory() - before, 1),
    }


def latency(lines: int = 2000) -> dict[str, float]:
    """From a line's bytes to its event, one line at a time."""
    log, times = EngineLog("vllm"), []
    log.feed(start(64).encode(), 0.0)
    for i in range(lines):
        line = everyday(i).encode()
        at = time.perf_counter()
        log.feed(line, 0.0)
        times.append((time.perf_counter() - at) * 1e3)
    times.sort()
    return {"median_ms": round(times[lines // 2], 3), "p99_ms": round(times[lines * 99 // 100], 3)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "watch.json")
    options = parser.parse_args()
    result = {"watch": watched(options.megabytes), "diagnose": diagnosed(options.megabytes), "line_to_event": latency()}
    for name, row in result.items():
        print(f"{name:14}", "  ".join(f"{k} {v}" for k, v in row.items()))
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
