"""Start to ready: the bare engine command, the same under firstlight's supervisor, with the head start, and `up`; page cache cold and warm.

    python bench/launch.py --engine vllm --model FOLDER [--rounds 3] [--cache warm|cold]   FIRSTLIGHT_ENGINE_PYTHON: vLLM's interpreter
    python bench/launch.py --engine llamacpp --model FILE.gguf
    python bench/launch.py --engine fake                                                   what the supervisor itself costs

For vLLM the command is what `up` itself plans, and every way runs that argv with that environment. Every start has a session of its own
(the kernel shares the processor by sessions), the ways take turns, and each round begins with another one. Cold: the weight
files' own pages are dropped from the page cache (posix_fadvise), nothing else. `up` counts from its launch stage on; its whole command,
from the first import to ready, is in `command_seconds`. --append adds these rounds to those on record. Writes bench/results/launch.json.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from fault_kit import HOST, Kit, free_port, until

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.run import LaunchSpec
from firstlight.engines.vllm.rehearsal import on_port
from firstlight.launch.client import Options, start
from firstlight.launch.headstart import HeadStart, plan_head_start

RESULT = Path(__file__).parent / "results" / "launch.json"
FLAGS = ("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4")


class Start(NamedTuple):
    """seconds: start to ready. command: the whole of `up`. supervisor_cpu: what the supervisor itself computed until then."""

    seconds: float
    command: float | None = None
    read_ahead: dict[str, Any] | None = None
    supervisor_cpu: float | None = None


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


def bare(spec: LaunchSpec) -> Start:
    """Until /health answers 200, without firstlight."""
    begun = time.monotonic()
    environment = {**os.environ, **spec.env}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(spec.argv, env=environment, stdout=log, stderr=log, start_new_session=True) as process,
    ):
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
    return Start(seconds)


def supervised(spec: LaunchSpec, head_start: HeadStart | None) -> Start:
    """From the call of `start` to the supervisor's `ready`."""
    folder = tempfile.mkdtemp(prefix="firstlight-bench-")
    begun = time.time()
    client = start(HOST, folder=folder, spec=spec, options=Options(head_start=head_start))
    try:
        ready = until(client, "ready", seconds=600).time - begun
        read = next((e.data for e in client.past_events() if e.kind == "head-start-finished"), None)
        reference = client.status().supervisor
        used = cpu_seconds(reference.pid) if reference else None
    finally:
        client.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return Start(ready, read_ahead=read, supervisor_cpu=used)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Ups:
    """`firstlight up` in a home of its own."""

    def __init__(self, model: str, python: str) -> None:
        self.home = tempfile.mkdtemp(prefix="firstlight-bench-home-")
        self.words = ["up", model, "--engine", "vllm", "--engine-python", python, "--name", "bench", "--skip", "verify", "--skip", "bench"]
        places = {f"XDG_{k}_HOME": f"{self.home}/{k.lower()}" for k in ("STATE", "CACHE", "DATA", "CONFIG")}
        self.env = {**os.environ, **places, "CI": "1"}
        self.planned: LaunchSpec | None = None

    def spec(self) -> LaunchSpec:
        """What the last `up` planned, on a free port."""
        assert self.planned is not None, "`up` comes first"
        return on_port(self.planned, free_port())

    def run(self) -> Start:
        begun = time.time()
        argv = [sys.executable, "-m", "firstlight"]
        try:
            subprocess.run([*argv, *self.words, *FLAGS], env=self.env, check=True, stdout=subprocess.DEVNULL, start_new_session=True)
            folder = max(Path(self.home, "state/firstlight/runs").iterdir())  # names end in their time
            own = [json.loads(line) for line in (folder / "attempts/1/supervisor.jsonl").read_text().splitlines()]
            ready = next(e["time"] for e in own if e["kind"] == "ready")
            stages = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
            launched = next(e["time"] for e in stages if e["kind"] == "stage-started" and e["stage"] == "launch")
            read = next((e["data"] for e in own if e["kind"] == "head-start-finished"), None)
            self.planned = msgspec.json.decode((folder / "attempts/1/launch.json").read_bytes(), type=LaunchSpec)
        finally:
            subprocess.run([*argv, "down", "--all", "--kill"], env=self.env, check=False, stdout=subprocess.DEVNULL)
        return Start(ready - launched, command=ready - begun, read_ahead=read)


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


Ways = dict[str, Callable[[], Start]]


def ways_of(spec_of: Callable[[], LaunchSpec], model: str | None, cold: bool, ups: Ups | None) -> Ways:
    files = weight_files(model)
    ahead = plan_head_start(HOST, checkpoint(model, files), args=[]) if model and cold else None
    ways: Ways = {"up": ups.run} if ups is not None else {}
    ways |= {"bare": lambda: bare(spec_of()), "supervised": lambda: supervised(spec_of(), None)}
    if ahead is not None and ahead.files:
        ways["supervised, head start"] = lambda: supervised(spec_of(), ahead)
    return ways


def measure(ways: Ways, files: list[Path], rounds: int, cold: bool) -> list[dict[str, Any]]:
    """One row per way of starting; the ways take turns, so that a slow minute of the machine meets all of them."""
    found: dict[str, list[Start]] = {name: [] for name in ways}
    for number in range(rounds):
        names, first = list(ways), number % len(ways)
        for name in [*names[first:], *names[:first]]:
            drop(files) if cold else warm(files)
            found[name].append(ways[name]())
            print(f"  {'cold' if cold else 'warm'} round {number + 1}: {name:24}{found[name][-1].seconds:8.2f} s", flush=True)
    return [row(name, cold, starts) for name, starts in found.items()]


def row(name: str, cold: bool, starts: list[Start]) -> dict[str, Any]:
    made: dict[str, Any] = {"way": name, "cache": "cold" if cold else "warm", "seconds": [round(s.seconds, 3) for s in starts]}
    if commands := [round(s.command, 3) for s in starts if s.command is not None]:
        made["command_seconds"] = commands
    if used := [s.supervisor_cpu for s in starts if s.supervisor_cpu is not None]:
        made["supervisor_cpu_seconds"] = max(used)
    if read := [s.read_ahead for s in starts if s.read_ahead]:
        made["head_start"] = read[-1]
    return made


def joined(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The new rounds behind those on record."""
    before = {(r["way"], r["cache"]): r for r in old}
    for made in new:
        if (earlier := before.pop((made["way"], made["cache"]), None)) is not None:
            for key in ("seconds", "command_seconds"):
                if key in made:
                    made[key] = [*earlier.get(key, []), *made[key]]
    return [*before.values(), *new]


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with its median, its fastest, and how its median and fastest stand to those of the bare command."""
    for made in rows:
        made["median"], made["fastest"] = round(statistics.median(made["seconds"]), 3), min(made["seconds"])
    for made in rows:
        base = next(r for r in rows if r["way"] == "bare" and r["cache"] == made["cache"])
        made["median_to_bare_percent"] = round(100 * (made["median"] / base["median"] - 1), 2)
        made["fastest_to_bare_percent"] = round(100 * (made["fastest"] / base["fastest"] - 1), 2)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["fake", "llamacpp", "vllm"], default="fake")
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", choices=["warm", "cold", "both"], default="both")
    parser.add_argument("--label", help="under which name the result stands (default: the engine)")
    parser.add_argument("--append", action="store_true")
    options = parser.parse_args()
    kit = Kit(options.model, os.environ.get("FIRSTLIGHT_ENGINE_PYTHON"), options.model)
    ups = Ups(options.model, kit.vllm_python) if options.engine == "vllm" and kit.vllm_python and options.model else None
    kinds: dict[str, Callable[[], LaunchSpec]] = {"fake": lambda: kit.fake("plain"), "llamacpp": kit.llama, "vllm": kit.vllm}
    spec_of = ups.spec if ups is not None else kinds[options.engine]
    if ups is not None:
        ups.run()  # not counted: it fills what the engine keeps for itself, which the others find then
    caches = {"both": [True, False], "cold": [True], "warm": [False]}[options.cache] if options.model else [False]
    files = weight_files(options.model)
    rows = [r for cold in caches for r in measure(ways_of(spec_of, options.model, cold, ups), files, options.rounds, cold)]
    written = write(options.label or options.engine, options, sum(f.stat().st_size for f in files), rows)
    show(written)
    with contextlib.suppress(OSError):
        shutil.rmtree(ups.home) if ups else None
    kit.finish()
    return 0


def write(label: str, options: argparse.Namespace, size: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """This engine's part of the results; the others' stay."""
    try:
        found = json.loads(RESULT.read_text())["engines"]
    except (OSError, ValueError, KeyError):
        found = {}
    known = found.get(label, {}).get("rows", []) if options.append else []
    everything = compared(joined(known, rows))
    command = f"python bench/launch.py --engine {options.engine}" + (" --model MODEL" if size else "")
    found[label] = {"command": command, "weight_bytes": size, "rows": everything}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"engines": found}, indent=1) + "\n")
    return everything


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'way':26}{'cache':6}{'rounds':>7}{'median':>9}{'fastest':>9}{'to bare':>18}")
    for made in rows:
        to_bare = f"{made['median_to_bare_percent']:+.2f}% {made['fastest_to_bare_percent']:+.2f}%"
        print(f"{made['way']:26}{made['cache']:6}{len(made['seconds']):7}{made['median']:8.2f}s{made['fastest']:8.2f}s{to_bare:>18}")


if __name__ == "__main__":
    sys.exit(main())
