"""The whole way at full size: Kimi-K2.5's 61 layers with dummy weights on eight GPUs, by `firstlight up` end to end.

    python run_eight.py --models FOLDER --engine-python PATH --results FILE.jsonl [--model kimi61] [-tp 8]

Steps: up (plan, ask, rehearse, launch, watch; dummy weights cannot pass coherence, so only the contract is judged), verify, bench from one
user to 64, kill -9 of one worker and the restart, down. Each step is a JSON object in the results file. The same script with
`--model kimi9 -tp 2` is its rehearsal on two GPUs. Expert and data parallelism, DCP: cases.json, run_cases.py --gpus 8.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from models import write_model
from run_answers import asked, checks
from run_cases import firstlight, gpu_used_mib, log_fields, run_of, smi, split_of
from run_stories import processes, states_after_kill

NAME = "eight"
SECONDS = 560


def up_words(given: argparse.Namespace) -> list[str]:
    words = ["up", str(write_model(given.models, given.model)), "--name", NAME, "--engine", "vllm", "--engine-python", given.engine_python]
    words += ["--gpus", ",".join(map(str, range(given.tensor_parallel_size)))] if smi("index") else []
    words += ["-tp", str(given.tensor_parallel_size), "--max-model-len", given.max_model_len, "--skip", "bench", "--skip", "verify"]
    return [*words, "--env", "VLLM_LOGGING_LEVEL=DEBUG", "--ask", "always", "--rehearse", "always", "-y", "--", "--load-format", "dummy"]


def figures(folder: Path) -> dict[str, Any]:
    """Computed, asked, rehearsed and measured, as the run's files have them; `ranks` when the plan told them apart."""
    told: dict[str, Any] = {}
    for name in ("plan", "answer", "rehearsal", "phases"):
        if (path := folder / f"{name}.json").exists():
            told[name] = json.loads(path.read_text())
    if "plan" in told:
        told["plan"] = told["plan"]["best"]
    log = folder / "attempts" / str(run_of(NAME).get("attempt", 1)) / "engine.log"
    return told | ({"figures": log_fields(log), "split": split_of(log), "workers": sorted(processes(folder))} if log.exists() else {})


def kill_worker() -> dict[str, Any]:
    """kill -9 of the second worker, then every state that the run goes through, until it is ready again or is not."""
    there = processes(Path(run_of(NAME)["folder"]))
    victim = there.get("Worker_TP1") or there.get("EngineCore")
    if victim is None:
        return {"error": "no worker in the log"}
    return {"victim": victim, "states": states_after_kill(NAME, victim, seconds=SECONDS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--model", default="kimi61")
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=8)
    parser.add_argument("--max-model-len", default="131072")
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()

    def keep(step: str, **told: Any) -> None:
        with given.results.open("a") as f:
            f.write(json.dumps({"step": step, "time": round(time.time())} | told) + "\n")
        print(step, json.dumps(told)[:800], flush=True)

    began = time.time()
    up = firstlight(*up_words(given), seconds=SECONDS)
    seconds = round(time.time() - began, 1)
    run = run_of(NAME)
    keep("up", rc=up.returncode, seconds=seconds, state=run.get("state"), said=up.stderr.splitlines()[-14:], used_mib=gpu_used_mib())
    if up.returncode == 0:
        keep("figures", **figures(Path(run["folder"])))
        keep("contract", **checks(asked("verify", NAME, "--checks", "contract")))
        keep("bench", **asked("bench", NAME, "--force", "--concurrency", str(given.concurrency)))
        keep("kill a worker", **kill_worker())
    firstlight("down", NAME)
    keep("down", used_mib=gpu_used_mib())


if __name__ == "__main__":
    main()
