"""Answers and speed on a real GPU: a real chat model through `firstlight up`, judged, measured beside the engine's own tool, and damaged.

    python run_answers.py --source CHAT.gguf --work FOLDER --engine-python PATH --results FILE.jsonl [--gpu 0]

The folders (healthy and damaged) are made by tests/corrupt/hf_folder.py. Gross damage must fail the black box, mild damage the comparison
with the healthy endpoint's reference. Each step is a JSON object in the results file. The cache is pinned and the utilization
small, so that other engines may use the GPU meanwhile.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from run_cases import firstlight, gpu_used_mib, run_of, smi

TESTS = Path(__file__).resolve().parents[2] / "tests"
GROSS = ("kv-swapped",)
MILD = ("layer-zeroed",)


def folder_of(given: argparse.Namespace, name: str) -> Path:
    argv = [sys.executable, "-m", "corrupt.hf_folder", str(given.source.resolve()), str(given.work.resolve()), name]
    done = subprocess.run(argv, cwd=TESTS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr[-600:])
    return given.work / name


def up(given: argparse.Namespace, name: str, *more: str) -> "subprocess.CompletedProcess[str]":
    words = ["up", str(folder_of(given, name)), "--name", name, "--engine", "vllm", "--engine-python", given.engine_python]
    words += ["--gpus", str(given.gpu)] if smi("index") else []
    words += ["--port", str(8300 + given.gpu), "--ask", "never", "--rehearse", "never", "--restart", "never", "--dtype", "bfloat16"]
    words += ["--env", "VLLM_WORKER_MULTIPROC_METHOD=fork", "--max-num-seqs", "64"]
    words += ["--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(4 << 30)]
    return firstlight(*words, *more)


def asked(*words: str) -> dict[str, Any]:
    began = time.time()
    done = firstlight(*words, "-o", "json")
    answer = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {"said": done.stderr[-600:]}
    return {"rc": done.returncode, "seconds": round(time.time() - began, 1), "answer": answer}


def checks(verdict: dict[str, Any]) -> dict[str, Any]:
    """Which checks passed, failed and were left out, without their evidence; the evidence of those that failed."""
    found = verdict.get("answer", {}).get("checks", [])
    told: dict[str, Any] = {"rc": verdict["rc"], "seconds": verdict["seconds"], "passed": [], "failed": {}, "skipped": []}
    for check in found:
        if check.get("skipped"):
            told["skipped"].append(check["name"])
        elif check["passed"]:
            told["passed"].append(check["name"])
        else:
            told["failed"][check["name"]] = check["evidence"]
    return told if found else told | {"said": verdict["answer"]}


def agreement(given: argparse.Namespace) -> dict[str, Any]:
    """The built-in bench and `vllm bench serve` in turns on the healthy endpoint, the same requests from both."""
    served, results = run_of("healthy")["endpoint"], given.work / "agreement.json"
    argv = [sys.executable, str(TESTS.parent / "bench/bench_agreement.py"), "--vllm-python", given.engine_python]
    argv += ["--folder", str(given.work / "healthy"), "--endpoint", served["base_url"], "--model", served["model"]]
    argv += ["--users", "1", "8", "--requests-a-user", "40", "--rounds", "3", "--results", str(results)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return {"rc": done.returncode, **(json.loads(results.read_text()) if results.exists() else {"said": done.stderr[-600:]})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--gpu", type=int, default=0)
    given = parser.parse_args()

    def keep(step: str, **told: Any) -> None:
        with given.results.open("a") as f:
            f.write(json.dumps({"step": step, "time": round(time.time())} | told) + "\n")
        print(step, json.dumps(told)[:700], flush=True)

    began, reference = time.time(), given.work / "reference.json"
    given.work.mkdir(parents=True, exist_ok=True)
    done = up(given, "healthy", "--skip", "bench")
    keep("up", rc=done.returncode, seconds=round(time.time() - began, 1), said=done.stderr.splitlines()[-12:], used_mib=gpu_used_mib())
    keep("verify full", **checks(asked("verify", "healthy", "--profile", "full", "--concurrency", "16")))
    keep("save reference", **checks(asked("verify", "healthy", "--checks", "contract", "--save-reference", str(reference))))
    keep("agreement", **agreement(given))
    firstlight("down", "healthy")
    for name in (*MILD, *GROSS):
        began = time.time()
        done = up(given, name, *(("--skip", "bench") if name in GROSS else ("--skip", "bench", "--skip", "verify")))
        told: dict[str, Any] = {"rc": done.returncode, "seconds": round(time.time() - began, 1)}
        if name in GROSS:
            told |= checks(asked("verify", name))
        else:
            told |= {"against": checks(asked("verify", name, "--against", str(reference)))}
        firstlight("down", name)
        keep(name, **told)
    keep("down", used_mib=gpu_used_mib())


if __name__ == "__main__":
    main()
