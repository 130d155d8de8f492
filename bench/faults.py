"""The fault matrix: what happens, how fast it is noticed, and what is lost.

    python bench/faults.py [--engine fake|llamacpp|vllm] [--only TEXT] [--fresh]

FIRSTLIGHT_TEST_GGUF names the GGUF, FIRSTLIGHT_ENGINE_PYTHON the interpreter that has vLLM. Rows of engines that are not there are
left out and said so. Writes bench/results/faults.json.

kernel_seconds, where a process was killed: until the kernel had taken it apart (threads end and memory is given back first, at the
process's own priority) and told whoever waits on it. What noticed_seconds has above that is ours.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import fault_cases_engines
import fault_cases_fake
import fault_cases_matrix
import fault_cases_vllm
from fault_kit import ENDS, Case, Kit, Result, Skip

RESULT = Path(__file__).parent / "results" / "faults.json"


def run_case(case: Case) -> list[dict[str, Any]]:
    """The rows of one start; none where this machine cannot make the fault."""
    kit = Kit(os.environ.get("FIRSTLIGHT_TEST_GGUF"), os.environ.get("FIRSTLIGHT_ENGINE_PYTHON"), os.environ.get("FIRSTLIGHT_TEST_FOLDER"))
    begun = time.monotonic()
    ENDS.clear()
    wrong = False
    try:
        found = case.run(kit)
    except Skip as e:
        kit.finish()
        print(f"  skipped   {case.engine:9} {case.fault}: {e}")
        return []
    except Exception as e:
        wrong, found = True, Result(None, f"NOT AS EXPECTED: {type(e).__name__}: {e}")
        traceback.print_exc()
    lost = kit.finish()
    results = [(case.fault, found)] if isinstance(found, Result) else found
    rows = [_row(case, fault, result, lost, wrong) for fault, result in results]
    if ENDS and rows[-1]["noticed_seconds"] is not None:
        rows[-1]["kernel_seconds"] = round(ENDS[-1], 4)
    return [{**row, "seconds": round(time.monotonic() - begun, 1), "as_expected": not wrong} for row in rows]


def _row(case: Case, fault: str, result: Result, lost: list[str], wrong: bool) -> dict[str, Any]:
    shown = "        " if result.noticed is None else f"{result.noticed:7.3f}s"
    print(
        f"{'x' if wrong or lost else '+'} {shown} {case.engine:9} {fault}: {result.outcome}{'; LOST ' + str(lost) if lost else ''}",
        flush=True,
    )
    noticed = result.noticed and round(result.noticed, 4)
    return {"fault": fault, "engine": case.engine, "noticed_seconds": noticed, "outcome": result.outcome, "lost": lost}


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows in the place of earlier ones of the same fault and engine."""
    try:
        before = json.loads(RESULT.read_text())["rows"]
    except (OSError, ValueError, KeyError):
        before = []
    new = {(r["fault"], r["engine"]) for r in rows}
    return [*(r for r in before if (r["fault"], r["engine"]) not in new), *rows]


def _write(rows: list[dict[str, Any]], *, fresh: bool) -> list[dict[str, Any]]:
    """Two campaigns may write at the same time."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        everything = rows if fresh else merged(rows)
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"command": "python bench/faults.py", "rows": everything}, indent=1, ensure_ascii=False) + "\n")
    return everything


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["fake", "llamacpp", "vllm"])
    parser.add_argument("--only", default="", help="faults whose name has this text")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows instead of replacing them one by one")
    options = parser.parse_args()
    cases = [*fault_cases_fake.CASES, *fault_cases_matrix.CASES, *fault_cases_engines.CASES, *fault_cases_vllm.CASES]
    chosen = [c for c in cases if options.engine in (None, c.engine) and options.only in c.fault]
    rows = [row for case in chosen for row in run_case(case)]
    everything = _write(rows, fresh=options.fresh)
    bad = [r for r in rows if r["lost"] or not r["as_expected"]]
    slow = [r for r in rows if (r["noticed_seconds"] or 0) > 0.5]
    print(f"{len(rows)} faults, {len(bad)} wrong, {len(slow)} noticed later than 0.5 s; {RESULT.name} has {len(everything)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
