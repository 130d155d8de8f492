"""Starts each case with dummy weights on a real GPU through `firstlight up`, and appends what came to a results file.

    python run_cases.py --models FOLDER --engine-python PATH --results FILE.jsonl --seconds 500 [--logs FOLDER] [--only NAME ...]

Cases that the results file already has are passed over, so that short leases of a GPU add up. One JSON object a line.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from models import write_model

HERE = Path(__file__).parent
LIMIT_SECONDS = 240


def firstlight(*words: str, seconds: float = LIMIT_SECONDS) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "firstlight", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False)


def gpu_used_mib() -> list[int]:
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )
    return [int(w) for w in text.stdout.split()]


def log_fields(log: Path, version: str | None) -> dict[str, Any]:
    """Every figure that the engine's log carries, as firstlight reads it."""
    from firstlight.watch.state import EngineLog

    state = EngineLog("vllm", version)
    state.feed(log.read_bytes(), time.time())
    return {k: v for k, v in state.fields.items() if k not in ("args", "config")}


def run_case(case: dict[str, Any], models: Path, python: str, logs: Path | None) -> dict[str, Any]:
    folder, name = write_model(models, case["model"]), case["name"].replace(".", "-")
    began = time.time()
    words = ["up", str(folder), "--name", name, "--engine", "vllm", "--engine-python", python, "--skip", "verify", "--skip", "bench"]
    words += ["--ask", "never", "--rehearse", "never", "--attempts", "1", "-o", "jsonl", *case["args"], "--", "--load-format", "dummy"]
    up = firstlight(*words)
    run = json.loads(firstlight("describe", name, "-o", "json").stdout or "{}")
    attempt = Path(run["folder"]) / "attempts" / "1"
    row = {
        "case": case["name"],
        "model": case["model"],
        "args": case["args"],
        "time": round(began),
        "rc": up.returncode,
        "state": run["state"],
    }
    row |= {"wall_seconds": round(time.time() - began, 1), "used_mib_serving": gpu_used_mib()}
    if (phases := Path(run["folder"]) / "phases.json").exists():
        row["phase_seconds"] = json.loads(phases.read_text())
    row["figures"] = log_fields(attempt / "engine.log", None)
    best = json.loads((Path(run["folder"]) / "plan.json").read_text())["best"]
    row["computed"] = {"args": best["args"], "per_gpu": best["per_gpu"], "kv_tokens": best["kv_tokens"]}
    if up.returncode:
        row["error"] = up.stdout.splitlines()[-12:] + up.stderr.splitlines()[-12:]
    if logs:
        (logs / f"{name}.log").write_bytes((attempt / "engine.log").read_bytes())
    firstlight("down", name)
    row["used_mib_after_down"] = gpu_used_mib()
    return row


def machine() -> dict[str, Any]:
    query = "name,driver_version,memory.total"
    smi = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return {"gpus": smi.stdout.strip().splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--gpus", type=int, help="only cases for so many GPUs; those of this machine when not said")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    ends = time.time() + given.seconds
    count = given.gpus or len(gpu_used_mib())
    done = {json.loads(line)["case"] for line in given.results.read_text().splitlines()} if given.results.exists() else set()
    for case in json.loads((HERE / "cases.json").read_text()):
        if case["name"] in done or case.get("gpus", 1) != count or (given.only and case["name"] not in given.only):
            continue
        if ends - time.time() < case.get("seconds", 110 if "--enforce-eager" in case["args"] else 170):
            print(f"no time for {case['name']}")
            continue
        try:
            row = run_case(case, given.models, given.engine_python, given.logs) | {"machine": machine()}
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
            print(f"{case['name']}: {type(e).__name__}: {e}")
            continue
        with given.results.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(
            json.dumps({k: row[k] for k in ("case", "rc", "state", "wall_seconds", "used_mib_serving", "used_mib_after_down")}), flush=True
        )


if __name__ == "__main__":
    main()
