"""Start to ready: the bare engine command, the same under firstlight's supervisor, and with the head start; page cache cold and warm.

    python bench/launch.py --engine vllm --model FOLDER [--rounds 2]      FIRSTLIGHT_ENGINE_PYTHON names vLLM's interpreter
    python bench/launch.py --engine llamacpp --model FILE.gguf [--rounds 5]
    python bench/launch.py --engine fake                                   what the supervisor itself costs

Cold means that the weight files' own pages are dropped from the page cache (posix_fadvise), nothing else. Writes bench/results/launch.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fault_kit import HOST, Kit, until

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.run import LaunchSpec
from firstlight.launch.client import Options, start
from firstlight.launch.headstart import HeadStart, plan_head_start

RESULT = Path(__file__).parent / "results" / "launch.json"


def drop(files: list[Path]) -> None:
    """Takes the files' clean pages out of the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: list[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def bare(spec: LaunchSpec) -> float:
    """Seconds until /health answers 200, without firstlight."""
    begun = time.monotonic()
    environment = {**os.environ, **spec.env}
    with tempfile.TemporaryFile() as log, subprocess.Popen(spec.argv, env=environment, stdout=log, stderr=log) as process:
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{spec.port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.02)
        seconds = time.monotonic() - begun
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(log.read()[-2000:].decode("utf-8", "replace"))
        process.terminate()
    return seconds


def supervised(spec: LaunchSpec, head_start: HeadStart | None) -> tuple[float, dict[str, Any] | None]:
    """Seconds from the call of `start` to the supervisor's `ready`, and what the head start did."""
    folder = tempfile.mkdtemp(prefix="firstlight-bench-")
    begun = time.time()
    client = start(HOST, folder=folder, spec=spec, options=Options(head_start=head_start))
    try:
        ready = until(client, "ready", seconds=600).time - begun
        read = next((e.data for e in client.past_events() if e.kind == "head-start-finished"), None)
    finally:
        client.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return ready, read


def weight_files(model: str | None) -> list[Path]:
    if model is None:
        return []
    path = Path(model)
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def checkpoint(model: str, files: list[Path]) -> Checkpoint:
    sizes = {f.name: f.stat().st_size for f in files}
    return Checkpoint(
        ref=model, format="gguf" if model.endswith(".gguf") else "safetensors", path=model, files=sizes, tensor_bytes=sum(sizes.values())
    )


def measure(spec_of: Callable[[], LaunchSpec], model: str | None, rounds: int, cold: bool) -> list[dict[str, Any]]:
    """One row per way of starting; the ways take turns, so that a slow minute of the machine meets all of them."""
    files = weight_files(model)
    ahead = plan_head_start(HOST, checkpoint(model, files), args=spec_of().argv) if model and cold else None
    ways: dict[str, Callable[[], float]] = {"bare": lambda: bare(spec_of()), "supervised": lambda: supervised(spec_of(), None)[0]}
    read: list[dict[str, Any] | None] = []

    def with_head_start() -> float:
        seconds, what = supervised(spec_of(), ahead)
        read.append(what)
        return seconds

    if ahead is not None and ahead.files:
        ways["supervised, head start"] = with_head_start
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            drop(files) if cold else warm(files)
            times[name].append(ways[name]())
            print(f"  {'cold' if cold else 'warm'} round {number + 1}: {name:24}{times[name][-1]:8.2f} s", flush=True)
    rows = [{"way": name, "cache": "cold" if cold else "warm", "seconds": [round(t, 3) for t in found]} for name, found in times.items()]
    for row in rows:
        row["median"] = round(statistics.median(row["seconds"]), 3)
        row["fastest"] = min(row["seconds"])
        row["head_start"] = read[-1] if row["way"] == "supervised, head start" and read else None
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["fake", "llamacpp", "vllm"], default="fake")
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kit = Kit(options.model, os.environ.get("FIRSTLIGHT_ENGINE_PYTHON"), options.model)
    spec_of = {"fake": lambda: kit.fake("plain"), "llamacpp": kit.llama, "vllm": kit.vllm}[options.engine]
    rows = [row for cold in ([True, False] if options.model else [False]) for row in measure(spec_of, options.model, options.rounds, cold)]
    size = sum(f.stat().st_size for f in weight_files(options.model))
    print(f"\n{options.engine}, {size / 2**30:.2f} GiB of weights, {options.rounds} rounds")
    print(f"{'way':26}{'cache':6}{'median':>9}{'fastest':>9}{'to bare':>9}")
    for row in rows:
        base = next(r["fastest"] for r in rows if r["way"] == "bare" and r["cache"] == row["cache"])
        row["to_bare_percent"] = round(100 * (row["fastest"] / base - 1), 2)
        print(f"{row['way']:26}{row['cache']:6}{row['median']:8.2f}s{row['fastest']:8.2f}s{row['to_bare_percent']:+8.2f}%")
    write(options.engine, size, options.rounds, rows)
    kit.finish()
    return 0


def write(engine: str, size: int, rounds: int, rows: list[dict[str, Any]]) -> None:
    """This engine's part of the results; the others' stay."""
    try:
        found = json.loads(RESULT.read_text())["engines"]
    except (OSError, ValueError, KeyError):
        found = {}
    command = f"python bench/launch.py --engine {engine}" + (" --model MODEL" if size else "") + f" --rounds {rounds}"
    found[engine] = {"command": command, "weight_bytes": size, "rows": rows}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"engines": found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
