"""Failures on a real GPU, each to a serving endpoint or to the right story; appends one JSON object a story to a results file.

    python run_stories.py --models FOLDER --engine-python PATH --results FILE.jsonl [--gpu 0] [NAME ...]

triton-mla        an attention backend that runs out of memory after profiling has promised otherwise
triton-rehearsed  the same, found by the rehearsal before a weight is read
hog               another process holds most of the GPU
wrong-tp          more GPUs asked for than there are
cut-shard         a weight file that ends early (needs the files of weights.py in kimi3)
kill-core         kill -9 of the engine core while serving: restarted, and nothing left after `down`
kill-server       kill -9 of the API server while serving
kill-supervisor   kill -9 of the supervisor while serving
kill-worker       kill -9 of one of two workers while serving (two GPUs)
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import write_model
from run_cases import ENVIRONMENT, firstlight, gpu_used_mib, run_of

HOLD = """
import time, torch
held = torch.empty(int({gib} * 2**30), dtype=torch.uint8, device="cuda:{gpu}")
print("held", flush=True)
time.sleep(300)
"""


class Stage:
    """What every story needs: the models, the engine, the GPU, a port of its own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.models, self.python, self.gpu = given.models, given.engine_python, given.gpu

    def up(
        self, name: str, model: str, *args: str, engine_args: tuple[str, ...] = ("--load-format", "dummy"), gpus: str | None = None
    ) -> Any:
        words = ["up", str(write_model(self.models, model)), "--name", name, "--engine", "vllm", "--engine-python", self.python]
        words += ["--skip", "verify", "--skip", "bench", "--ask", "never", "--port", str(8200 + 10 * self.gpu)]
        words += ["--gpus", gpus or str(self.gpu)] if gpu_used_mib() else []
        for pair in ENVIRONMENT.items():
            words += ["--env", "=".join(pair)]
        return firstlight(*words, *(args or ("--rehearse", "never")), "--", *engine_args)

    def told(self, name: str) -> list[str]:
        """The run's story page, as lines; where there is no run, nothing."""
        folder = run_of(name).get("folder")
        page = Path(folder) / "story.md" if folder else None
        return page.read_text().splitlines() if page and page.exists() else []


def outcome(stage: Stage, name: str, up: "subprocess.CompletedProcess[str]", began: float) -> dict[str, Any]:
    run = run_of(name)
    return {
        "rc": up.returncode,
        "seconds": round(time.time() - began, 1),
        "state": run.get("state"),
        "attempts": run.get("attempt"),
        "story": stage.told(name),
        "said": up.stderr.splitlines()[-14:],
    }


def triton(stage: Stage, *args: str) -> dict[str, Any]:
    began = time.time()
    flags = ("--load-format", "dummy", "--attention-backend", "TRITON_MLA")
    return outcome(stage, f"triton-{stage.gpu}", stage.up(f"triton-{stage.gpu}", "kimi5", *args, engine_args=flags), began)


def hog(stage: Stage) -> dict[str, Any]:
    code = HOLD.format(gib=100, gpu=stage.gpu)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        began = time.time()
        told = outcome(stage, "hogged", stage.up("hogged", "kimi5", "--enforce-eager", "--rehearse", "never"), began)
        holder.kill()
    return told | {"holder_pid": holder.pid}


def wrong_tp(stage: Stage) -> dict[str, Any]:
    began = time.time()
    return outcome(stage, "wide", stage.up("wide", "kimi5", "-tp", "16", "--rehearse", "never"), began)


def cut_shard(stage: Stage) -> dict[str, Any]:
    folder = write_model(stage.models, "kimi3")
    last = sorted(folder.glob("*.safetensors"))[-1]
    whole = last.stat().st_size
    kept = last.open("rb+")
    kept.seek(whole - 4096)
    tail = kept.read()
    kept.truncate(whole - 4096)
    try:
        began = time.time()
        return outcome(stage, "cut", stage.up("cut", "kimi3", "--rehearse", "never", engine_args=()), began)
    finally:
        kept.seek(whole - 4096)
        kept.write(tail)
        kept.close()


def processes(folder: Path) -> dict[str, int]:
    """Name of each of the engine's processes -> its pid, as its log's prefixes say: (EngineCore pid=12), (Worker_TP1 pid=34)."""
    found = re.findall(r"^\((\w+) pid=(\d+)\)", (folder / "attempts" / "1" / "engine.log").read_text(errors="replace"), re.M)
    return {name: int(pid) for name, pid in found}


def states_after_kill(name: str, pid: int, *, seconds: float) -> list[tuple[float, str | None]]:
    """kill -9, then (seconds since, state) of each change of the run's state, until it is up again, over, or the time is."""
    os.kill(pid, signal.SIGKILL)
    began, seen = time.time(), list[tuple[float, str | None]]()
    while time.time() - began < seconds:
        state = run_of(name).get("state")
        if not seen or seen[-1][1] != state:
            seen.append((round(time.time() - began, 1), state))
        if state in ("failed", "stopped") or (len(seen) > 1 and state in ("ready", "serving")):
            break
        time.sleep(0.3)
    return seen


def killed(stage: Stage, which: str, *args: str, gpus: str | None = None) -> dict[str, Any]:
    """Serving, then kill -9 of one process; what firstlight then says and does within 90 s; nothing left after `down`."""
    began, name = time.time(), f"kill-{which}"
    up = stage.up(name, "llama8b", "--enforce-eager", "--rehearse", "never", *args, gpus=gpus)
    told = outcome(stage, name, up, began)
    run = run_of(name)
    if up.returncode:
        return told
    there = processes(Path(run["folder"]))
    victims = {
        "server": run["engine_process"]["pid"],
        "supervisor": run["supervisor"]["pid"],
        "core": there.get("EngineCore"),
        "worker": there.get("Worker_TP1"),
    }
    told |= {"ready_seconds": told["seconds"], "processes": there, "victim": victims[which]}
    if victims[which] is None:
        return told | {"error": "no such process", "after_down_mib": down(name)}
    seen = states_after_kill(name, victims[which], seconds=90)
    return told | {"states": seen, "story": stage.told(name), "after_down_mib": down(name)}


def down(name: str) -> list[int]:
    firstlight("down", name)
    return gpu_used_mib()


STORIES: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "triton-mla": lambda s: triton(s, "--rehearse", "never"),
    "triton-rehearsed": lambda s: triton(s, "--rehearse", "always"),
    "hog": hog,
    "wrong-tp": wrong_tp,
    "cut-shard": cut_shard,
    "kill-core": lambda s: killed(s, "core"),
    "kill-server": lambda s: killed(s, "server"),
    "kill-supervisor": lambda s: killed(s, "supervisor"),
    "kill-worker": lambda s: killed(s, "worker", "-tp", "2", gpus="0,1"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("names", nargs="*", default=[])
    given = parser.parse_args()
    for name in given.names or STORIES:
        try:
            row = {"story": name, "time": round(time.time())} | {"told": STORIES[name](Stage(given))}
        except (OSError, ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as e:
            print(f"{name}: {type(e).__name__}: {e}", flush=True)
            continue
        for run in (f"triton-{given.gpu}", "hogged", "wide", "cut"):
            firstlight("down", run)
        row["used_mib_after"] = gpu_used_mib()
        with given.results.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(json.dumps(row)[:1500], flush=True)


if __name__ == "__main__":
    main()
