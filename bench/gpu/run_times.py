"""Start to ready: the bare engine command against `firstlight up`, in turns, with real weight files, page cache warm and cold.

    python run_times.py --model FOLDER --engine-python PATH --results FILE.jsonl [--pairs 3] [--cold 3] [--plain 0] [--compile 0]
        [--seconds 500] [-- ENGINE FLAGS]

The bare command and its environment are the very ones that `up` started. Ready is the first 200 of /health, polled from outside every 50 ms
for all. Cold: the weight files' pages are dropped from the page cache first (posix_fadvise), nothing else. Plain: cold, under the
supervisor that `up` starts, without its head start; beside a bare one where no cold pair stands beside it. Compile: in each round, pages
warm, bare and `up` from two empty places for compile caches, both again from what the first left, then a rehearsal into a third and `up`
after it. One JSON object a row; pairs are numbered on from those that the results file has.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from run_cases import LIMIT_SECONDS, firstlight, gpu_used_mib, run_of

from firstlight.core.run import LaunchSpec
from firstlight.launch.caches import VARIABLES
from firstlight.launch.client import Options, start
from firstlight.probe.local import LocalHost

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
    words = ["up", *planned_words(given), "--name", "timed", "--port", str(PORT), "--skip", "verify", "--skip", "bench", "--ask", "never"]
    return [*words, "--rehearse", "never", "--attempts", "1", "--", *given.flags]


def rehearsal_words(given: argparse.Namespace) -> list[str]:
    return ["rehearse", *planned_words(given), "--", *given.flags]


def planned_words(given: argparse.Namespace) -> list[str]:
    words = [str(given.model), "--engine", "vllm", "--engine-python", given.engine_python]
    return [*words, "--gpus", str(given.gpu)] if gpu_used_mib() else words


class Bare:
    """The engine's own command, with the environment that `up` gave it; `fresh`: with compile caches in another place."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.command, self.env = command, env

    def fresh(self, place: Path) -> "Bare":
        return Bare(self.command, self.env | {name: str(place / name) for name in VARIABLES})


def bare(start: Bare, log: Path) -> float | None:
    began = time.time()
    with log.open("wb") as out:
        process = subprocess.Popen(start.command, env=os.environ | start.env, stdout=out, stderr=out, start_new_session=True)
        try:
            return until_ready(began, lambda: process.poll() is None)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def through_up(words: list[str], log: Path, cache: Path | None = None) -> float | None:
    """cache: where firstlight keeps what it makes, instead of its own place."""
    began, env = time.time(), os.environ | ({"XDG_CACHE_HOME": str(cache)} if cache else {})
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "firstlight", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
        seconds = until_ready(began, lambda: process.poll() in (None, 0))
        process.wait(60)
    firstlight("down", "timed")
    return seconds


def supervised(log: Path) -> float | None:
    """What `up` started, by its supervisor alone and without the head start."""
    spec = msgspec.json.decode((Path(run_of("timed")["folder"]) / "launch.json").read_bytes(), type=LaunchSpec)
    began = time.time()
    client = start(LocalHost(), folder=str(log.with_suffix(".run")), spec=spec, options=Options())
    try:
        return until_ready(began, lambda: True)
    finally:
        client.stop()


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


class Timer:
    """Starts of one model until the time is up; each is a row of the results."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.ends: float = time.time() + given.seconds
        self.took = 0.0
        self.words = up_words(given)
        self.bare = Bare([], {})
        rows = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
        self.done = max((row["pair"] for row in rows), default=-1) + 1

    def left(self) -> bool:
        """Whether another start fits, as long as the last one took."""
        return self.ends - time.time() > self.took + 15

    def start(self, kind: str, number: int, way: str, run: Callable[[Path], float | None]) -> None:
        read = pages(self.given.model, kind == "cold")
        idle(self.given.gpu)
        began = time.time()
        seconds = run(self.given.results.parent / f"{kind}-{number}-{way}.log".replace(" ", "-"))
        self.took = time.time() - began + read
        if not self.bare.command:
            self.bare = Bare(*launched())
            print("bare:", shlex.join(self.bare.command), flush=True)
        row = {"way": way, "kind": kind, "pair": self.done + number, "seconds": seconds and round(seconds, 2), "time": round(began)}
        row |= {"model": self.given.model.name, "flags": self.given.flags, "read_seconds": round(read, 2)}
        with self.given.results.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    def first(self) -> None:
        """Fills every cache and tells the command; not counted."""
        self.start("first", 0, "up", lambda log: through_up(self.words, log))

    def pair(self, kind: str, number: int, other: str = "up") -> None:
        """A bare start and one of the other way, every second time in the other order."""
        ways = {"bare": lambda log: bare(self.bare, log), "up": lambda log: through_up(self.words, log), "supervised": supervised}
        for way in ("bare", other) if number % 2 == 0 else (other, "bare"):
            self.try_start(kind, number, way, ways[way])

    def plain(self, number: int, beside: bool) -> None:
        """A start without the head start; beside: `pair` has made the bare one of this round."""
        if beside:
            self.try_start("cold", number, "supervised", supervised)
        else:
            self.pair("cold", number, other="supervised")

    def compiled(self, rounds: int) -> None:
        place = Path(tempfile.mkdtemp(prefix="firstlight-compile-"))
        for number in range(rounds):
            plain = partial(bare, self.bare.fresh(place / f"bare-{number}"))
            own, rehearsed = (partial(through_up, self.words, cache=place / f"{what}-{number}") for what in ("up", "rehearsed"))
            for which in ("first", "second"):
                ways = {"bare": plain, "up": own}
                for way in ways if number % 2 == 0 else reversed(ways):
                    self.try_start("compile", number, f"{way} {which}", ways[way])
            if self.left():
                began = time.time()
                firstlight(*rehearsal_words(self.given), env={"XDG_CACHE_HOME": str(place / f"rehearsed-{number}")})
                print(f"rehearsed in {time.time() - began:.1f} s", flush=True)
            self.try_start("compile", number, "up rehearsed", rehearsed)
        shutil.rmtree(place, ignore_errors=True)

    def try_start(self, kind: str, number: int, way: str, run: Callable[[Path], float | None]) -> None:
        if self.left():
            self.start(kind, number, way, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cold", type=int, default=3)
    parser.add_argument("--plain", type=int, default=0)
    parser.add_argument("--compile", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("flags", nargs="*")
    given = parser.parse_args()
    timer = Timer(given)
    timer.first()
    for number in range(max(given.cold, given.pairs, given.plain)):
        for kind, wanted in (("cold", given.cold), ("warm", given.pairs)):
            if number < wanted:
                timer.pair(kind, number)
        if number < given.plain:
            timer.plain(number, beside=number < given.cold)
    timer.compiled(given.compile)
    if not timer.left():
        print("no time left")


if __name__ == "__main__":
    main()
