"""Starts each case with dummy weights on real GPUs through `firstlight up`, and appends what came to a results file.

    python run_cases.py --models FOLDER --engine-python PATH --results FILE.jsonl --seconds 500 [--logs FOLDER] [--only NAME ...]

Cases that the results file already has are passed over, so that short leases of a GPU add up. One JSON object a line. On a machine with
more GPUs than a case needs, as many cases run side by side, each with its own `--gpus`. A case with `"rehearse": true` is rehearsed first.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from models import write_model

HERE = Path(__file__).parent
LIMIT_SECONDS = 280
# DEBUG: the engine tells where its memory goes. fork: its processes need not import everything again (20 s a start). No DeepGEMM warm-up:
# it compiles for minutes, after the memory was measured.
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_DEEP_GEMM_WARMUP": "skip"}
WRITING = threading.Lock()


def firstlight(*words: str, seconds: float = LIMIT_SECONDS, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """env: variables besides this process's own."""
    argv, env = [sys.executable, "-m", "firstlight", *words], os.environ | (env or {})
    return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False, env=env)


def run_of(name: str) -> dict[str, Any]:
    """The run's record; {} where there is none."""
    found = firstlight("describe", name, "-o", "json").stdout
    return json.loads(found) if found.strip() else {}


def smi(query: str) -> list[str]:
    """One line per GPU; none where there is no driver (a rehearsal of this script on a CPU build)."""
    try:
        argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    except FileNotFoundError:
        return []


def gpu_used_mib() -> list[int]:
    return [int(line) for line in smi("memory.used")]


def log_fields(log: Path) -> dict[str, Any]:
    """Every figure that the engine's log carries, as firstlight reads it."""
    from firstlight.watch.state import EngineLog

    state = EngineLog("vllm", None)
    state.feed(log.read_bytes(), time.time())
    return {k: v for k, v in state.fields.items() if k not in ("args", "config")}


def split_of(log: Path) -> dict[str, int]:
    """Where the memory of the rank that binds went, in bytes, by the engine's own account."""
    import msgspec

    from firstlight.engines.vllm.rehearsal import read_figures

    return {k: v for k, v in msgspec.to_builtins(read_figures(log.read_bytes())).items() if v is not None}


def up_words(case: dict[str, Any], folder: Path, name: str, python: str, gpus: list[int]) -> list[str]:
    words = ["up", str(folder), "--name", name, "--engine", "vllm", "--engine-python", python, "--skip", "verify", "--skip", "bench"]
    words += ["--gpus", ",".join(map(str, gpus))] if smi("index") else []
    words += ["--port", str(8100 + 10 * gpus[0])]
    for pair in ENVIRONMENT.items():
        words += ["--env", "=".join(pair)]
    words += ["--ask", "never", "--rehearse", "always" if case.get("rehearse") else "never", "--attempts", "1", "-o", "jsonl"]
    return [*words, *case["args"], "--", "--load-format", "dummy", *case.get("engine_args", [])]


def run_case(case: dict[str, Any], models: Path, python: str, gpus: list[int], logs: Path | None) -> dict[str, Any]:
    with WRITING:
        folder, name = write_model(models, case["model"]), case["name"].replace(".", "-")
    began = time.time()
    up = firstlight(*up_words(case, folder, name, python, gpus))
    wall = round(time.time() - began, 1)
    run = run_of(name)
    place = Path(run["folder"])
    log = place / "attempts" / "1" / "engine.log"
    row = {"case": case["name"], "model": case["model"], "args": case["args"], "time": round(began), "rc": up.returncode}
    used = gpu_used_mib()
    row |= {"state": run["state"], "wall_seconds": wall, "used_mib_serving": [used[g] for g in gpus if g < len(used)]}
    if (phases := place / "phases.json").exists():
        row["phase_seconds"] = json.loads(phases.read_text())
    best = json.loads((place / "plan.json").read_text())["best"]
    row["computed"] = {"args": best["args"], "per_gpu": best["per_gpu"], "kv_tokens": best["kv_tokens"]}
    row |= {"environment": ENVIRONMENT, "figures": log_fields(log), "split": split_of(log)} if log.exists() else {}
    if (report := place / "rehearsal.json").exists():
        row["rehearsed"] = json.loads(report.read_text())
    if up.returncode:
        row["error"] = up.stdout.splitlines()[-12:] + up.stderr.splitlines()[-12:]
    if logs and log.exists():
        (logs / f"{name}.log").write_bytes(log.read_bytes())
    firstlight("down", name)
    used = gpu_used_mib()
    return row | {"used_mib_after_down": [used[g] for g in gpus if g < len(used)]}


def machine() -> dict[str, Any]:
    return {"gpus": smi("name,driver_version,memory.total")}


class Lanes:
    """Cases taken one by one by as many lanes as there are places for them; no case starts that would not end in time."""

    def __init__(self, cases: list[dict[str, Any]], given: argparse.Namespace) -> None:
        self.cases, self.given, self.ends, self.taking = cases, given, time.time() + given.seconds, threading.Lock()

    def take(self) -> dict[str, Any] | None:
        with self.taking:
            left = self.ends - time.time()
            for case in self.cases:
                if left > case.get("seconds", 60 if "--enforce-eager" in case["args"] else 100) * (2 if case.get("rehearse") else 1):
                    self.cases.remove(case)
                    return case
            return None

    def run(self, gpus: list[int]) -> None:
        while (case := self.take()) is not None:
            try:
                row = run_case(case, self.given.models, self.given.engine_python, gpus, self.given.logs) | {"machine": machine()}
            except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
                print(f"{case['name']}: {type(e).__name__}: {e}", flush=True)
                continue
            if row["rc"]:
                ENVIRONMENT.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
            with WRITING, self.given.results.open("a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps({k: row.get(k) for k in ("case", "rc", "state", "wall_seconds", "used_mib_serving", "used_mib_after_down")}))
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--gpus", type=int, default=1, help="only cases that need so many GPUs")
    parser.add_argument("--first", type=int, default=0, help="index of the first GPU to use")
    parser.add_argument("--lanes", type=int, help="cases at once; as many as this machine's GPUs allow when not said")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    found = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    done = {row["case"] for row in found if row["rc"] == 0}
    cases = [c for c in json.loads((HERE / "cases.json").read_text()) if c["name"] not in done and c.get("gpus", 1) == given.gpus]
    lanes = Lanes([c for c in cases if not given.only or c["name"] in given.only], given)
    count = given.lanes or max(1, len(gpu_used_mib()) // given.gpus)
    first = given.first
    threads = [
        threading.Thread(target=lanes.run, args=([*range(first + i * given.gpus, first + (i + 1) * given.gpus)],)) for i in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case in lanes.cases:
        print(f"no time for {case['name']}")


if __name__ == "__main__":
    main()
