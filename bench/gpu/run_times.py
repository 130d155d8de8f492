"""Start to ready: the bare engine command against `firstlight up`, in turns, with real weight files, page cache warm and cold.

    python run_times.py --model FOLDER --engine-python PATH --results FILE.jsonl [--pairs 3] [--cold 3] [--seconds 500] [-- ENGINE FLAGS]

The bare command and its environment are the very ones that `up` started. Ready is the first 200 of /health, polled from outside every 50 ms
for both. Cold: the weight files' pages are dropped from the page cache first (posix_fadvise), nothing else. One JSON object a start.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from run_cases import LIMIT_SECONDS, firstlight, gpu_used_mib, run_of

PORT = 8150


def pages(folder: Path, cold: bool) -> float:
    """Drops or reads the weight files' pages; the seconds that reading took."""
    began = time.time()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            if cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 26):
                    pass
    return time.time() - began


def until_ready(began: float, alive: Any) -> float | None:
    while time.time() - began < LIMIT_SECONDS and alive():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2):
                return time.time() - began
        except OSError:
            time.sleep(0.05)
    return None


def up_words(given: argparse.Namespace) -> list[str]:
    words = ["up", str(given.model), "--name", "timed", "--engine", "vllm", "--engine-python", given.engine_python, "--port", str(PORT)]
    words += ["--gpus", str(given.gpu)] if gpu_used_mib() else []
    return [*words, "--skip", "verify", "--skip", "bench", "--ask", "never", "--rehearse", "never", "--attempts", "1"]


def bare(command: list[str], env: dict[str, str], log: Path) -> float | None:
    began = time.time()
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | env, stdout=out, stderr=out, start_new_session=True)
        try:
            return until_ready(began, lambda: process.poll() is None)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def through_up(words: list[str], log: Path) -> float | None:
    began = time.time()
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "firstlight", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        seconds = until_ready(began, lambda: process.poll() in (None, 0))
        process.wait(60)
    firstlight("down", "timed")
    return seconds


def launched() -> tuple[list[str], dict[str, str]]:
    """The command and environment with which `up` started the engine."""
    folder = Path(run_of("timed")["folder"])
    launch = json.loads((folder / "launch.json").read_text())
    return launch["argv"], launch["env"]


def idle(gpu: int) -> None:
    """Until the GPU is empty again, 20 s at most."""
    for _ in range(100):
        if not any(gpu_used_mib()[gpu : gpu + 1]):
            return
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cold", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("flags", nargs="*")
    given = parser.parse_args()
    ends, words = time.time() + given.seconds, [*up_words(given), "--", *given.flags]
    command: list[str] = []
    env: dict[str, str] = {}
    plan = [(False, -1), *((True, n) for n in range(given.cold)), *((False, n) for n in range(given.pairs))]
    took = 0.0
    for cold, number in plan:
        ways = ["bare", "up"] if number % 2 == 0 else ["up", "bare"]
        for way in ways if number >= 0 else ["up"]:  # the first start of all fills every cache and is not counted
            if ends - time.time() < took + 15:
                print("no time left")
                return
            read = pages(given.model, cold)
            idle(given.gpu)
            began, log = time.time(), given.results.parent / f"{'cold' if cold else 'warm'}-{number}-{way}.log"
            seconds = bare(command, env, log) if way == "bare" else through_up(words, log)
            took = time.time() - began + read
            if not command:
                command, env = launched()
                print("bare:", shlex.join(command), flush=True)
            row = {"way": way, "cold": cold, "pair": number, "seconds": seconds and round(seconds, 2), "time": round(began)}
            row |= {"model": given.model.name, "flags": given.flags, "read_seconds": round(read, 2)}
            with given.results.open("a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
