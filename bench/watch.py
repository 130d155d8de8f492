"""How fast `watch` and `diagnose` read a log: MB/s on one core, memory, and the time from a line to its event.

    python bench/watch.py [--megabytes 256] [--only NAME,NAME] [--json bench/results/watch.json]

The log is made here: a start of 64 workers, then a server's everyday lines, tracebacks of requests among them. `watch` and `diagnose` are
the readers alone; `command` is the whole `firstlight watch LOG --replay` on a file, `command_jsonl` with every event written; `live_file`
appends lines to a file that `firstlight watch LOG -o jsonl` follows, `live_pipe` writes them to `firstlight watch -`: the time until the
event is printed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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


def carried() -> Iterator[tuple[str, bytes]]:
    """The everyday lines as other programs hand them on."""
    lines = [line for i in range(1500) for line in (everyday(i) + (REQUEST_ERROR if i % 50 == 0 else "")).splitlines(keepends=True)]
    prefixes = {
        "compose": "vllm-1  | ",
        "kubectl": "[pod/v-0/vllm] ",
        "cri": "2026-10-12T08:00:05.123456789Z stderr F ",
        "journald": "Oct 12 08:00:05 gpu7 vllm[99]: ",
    }
    for name, prefix in prefixes.items():
        yield name, "".join(prefix + line for line in lines).encode()
    yield "colours", "".join("\x1b[1;36m" + line.replace(") ", ")\x1b[0;0m ", 1) for line in lines).encode()
    yield "json-file", "".join(json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in lines).encode()


def watched_carried(megabytes: int = 16) -> dict[str, float]:
    """MB/s of reading by what carried the log."""
    found = {}
    for name, block in carried():
        log, total, began = EngineLog("vllm"), 0, time.process_time()
        while total < megabytes << 20:
            for at in range(0, len(block), CHUNK):
                log.feed(block[at : at + CHUNK], 0.0)
            total += len(block)
        found[name] = round(total / 1e6 / (time.process_time() - began), 1)
    return found


def hostile() -> dict[str, bytes]:
    """Logs that are nobody's everyday: a flood of short lines with numbers, bars redrawn in one line, more names than any engine has."""
    step = "INFO 10-12 08:00:05 [x.py:1] step={0} loss=0.{0}\n"
    bar = "Loading safetensors checkpoint shards:  {0}% Completed | {1}/200000 [00:10<01:00,  1.20it/s]"
    said = "(Worker_TP{0} pid={1}) INFO 10-12 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...\n"
    fell = "(Worker_TP{0} pid={1}) ERROR 10-12 08:00:06 [x.py:1] ValueError: kestrel {0} fell\n"
    return {
        "flood": "".join(step.format(i) for i in range(150_000)).encode(),
        "bars": "\r".join(bar.format(i // 2000, i) for i in range(200_000)).encode() + b"\n",
        "names": "".join((said + fell).format(i, 30 + i) for i in range(20_000)).encode(),
    }


def hostile_seconds() -> dict[str, float]:
    """Processor seconds of reading each, and MB/s, by watch and by diagnose."""
    found = {}
    diagnose(b"warm\n")  # what is loaded once is not reading
    for name, log in hostile().items():
        pieces = [log[at : at + CHUNK] for at in range(0, len(log), CHUNK)]
        for reader in ("watch", "diagnose"):
            began, engine_log = time.process_time(), EngineLog("vllm")
            if reader == "watch":
                for piece in pieces:
                    engine_log.feed(piece, 0.0)
            else:
                diagnose(iter(pieces))
            seconds = time.process_time() - began
            found[f"{name}_{reader}_seconds"] = round(seconds, 2)
            found[f"{name}_{reader}_mb_per_second"] = round(len(log) / 1e6 / seconds, 1)
    return found


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


def commanded(folder: Path, megabytes: int, *options: str) -> dict[str, float]:
    """The command on a file: processor seconds and the most memory of its process, start of Python included."""
    path = folder / "big.log"
    if not path.exists():
        with path.open("wb") as f:
            f.writelines(chunks(megabytes))
    size = path.stat().st_size
    argv = [sys.executable, "-m", "firstlight", "watch", str(path), "--replay", *options]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    seconds = used.ru_utime + used.ru_stime
    return {
        "megabytes": size >> 20,
        "seconds": round(seconds, 2),
        "mb_per_second": round(size / 1e6 / seconds, 1),
        "most_memory_mib": round(used.ru_maxrss / 1024, 1),
    }


def live(folder: Path, *, pipe: bool, lines: int = 200) -> dict[str, float]:
    """From the write of a line to its event on the command's output, 64 workers known before, a line every 20 ms and a bit."""
    path = folder / "live.log"
    path.write_bytes(b"" if pipe else start(64).partition("(APIServer pid=9) INFO:     Application")[0].encode())
    argv = [sys.executable, "-m", "firstlight", "watch", "-" if pipe else str(path), "-o", "jsonl"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    target: IO[bytes] = process.stdin if pipe else path.open("ab", buffering=0)
    times = [took(target, process.stdout, i) for i in range(lines + 10)][10:]
    process.kill()
    process.wait()
    times.sort()
    return {"median_ms": round(times[lines // 2], 1), "p99_ms": round(times[lines * 99 // 100], 1), "worst_ms": round(times[-1], 1)}


def took(target: IO[bytes], events: IO[bytes], i: int) -> float:
    """Milliseconds until the event of one written line (known again by its number) is read."""
    time.sleep(0.02 + (i % 7) / 1000)
    line = f"(Worker_TP{i % 64} pid={30 + i % 64}) INFO 10-12 08:05:00 [x.py:1] Loading weights took {i}.5 seconds\n"
    began = time.perf_counter()
    target.write(line.encode())
    target.flush()
    wanted = f'"weights_seconds":{i}.5'.encode()
    while wanted not in events.readline():
        pass
    return (time.perf_counter() - began) * 1e3


def measured(name: str, megabytes: int, folder: Path) -> dict[str, float]:
    match name:
        case "watch":
            return watched(megabytes)
        case "diagnose":
            return diagnosed(megabytes)
        case "line_to_event":
            return latency()
        case "watch_carried_mb_per_second":
            return watched_carried()
        case "hostile":
            return hostile_seconds()
        case "command":
            return commanded(folder, megabytes)
        case "command_jsonl":
            return commanded(folder, megabytes, "-o", "jsonl")
        case "live_file" | "live_pipe":
            return live(folder, pipe=name == "live_pipe")
        case _:
            raise ValueError(name)


NAMES = (
    "watch",
    "diagnose",
    "line_to_event",
    "watch_carried_mb_per_second",
    "hostile",
    "command",
    "command_jsonl",
    "live_file",
    "live_pipe",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "watch.json")
    options = parser.parse_args()
    result = json.loads(options.json.read_text()) if options.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            result[name] = measured(name, options.megabytes, Path(folder))
            print(f"{name:14}", "  ".join(f"{k} {v}" for k, v in result[name].items()), flush=True)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps({name: result[name] for name in NAMES if name in result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
