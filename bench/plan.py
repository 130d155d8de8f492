"""How exact a plan is, how fast it is, and how exact peers are on the same rows.

    python bench/plan.py                        own tables, and bench/results/plan.json
    python bench/plan.py --peers VENV [VENV...] the peers of those environments beside it: kvfit, vramscout, modelinfo-cli, hf-mem,
                                                aiconfigurator (bench/plan_peers.py says how they are asked)

Rows: tests/data/plan/{weights,kv}.jsonl, each with its source, and unplanned.jsonl: measured starts of models whose shapes are not known.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "plan"))

from plan_measured import promise
from plan_models import checkpoint, rows
from plan_peers import ask_all, question_of

from firstlight.core.schema import encode
from firstlight.core.units import GIB

RESULTS = Path(__file__).parent / "results" / "plan.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="VENV", nargs="+")
    venvs = parser.parse_args().peers
    weights = [_own_weights(row) for row in rows("weights") if "guessed" not in row]
    guessed = [_own_weights(row) | {"guessed": row["guessed"]} for row in rows("weights") if "guessed" in row]
    pools = [_own_pool(row) for row in rows("kv")]
    speed = _speed()
    unplanned = rows("unplanned")
    document: dict[str, Any] = {"weights": weights, "weights_guessed": guessed, "weights_unknown_model": unplanned}
    document |= {"kv_pool": pools, "process_seconds": speed}
    _print_weights(weights)
    _print_others(guessed, unplanned)
    _print_pools(pools)
    print("\nwhole process, Python's start included:")
    for name, taken in speed.items():
        print(f"  {name.replace('_', ' '):<10} {taken['wall']:.2f} s wall, {taken['processor']:.2f} s of processor time")
    if venvs:
        document["peers"] = ask_all([v.absolute() for v in venvs], [r for r in rows("weights") + rows("kv") if "guessed" not in r])
    elif RESULTS.exists():
        document["peers"] = json.loads(RESULTS.read_text()).get("peers")
    if document.get("peers"):
        _print_peers(document["peers"], weights, pools)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _own_weights(row: dict[str, Any]) -> dict[str, Any]:
    found = promise(row)
    planned = (found.weights.mid or 0) / GIB
    error = round(planned / row["weights_gib"] - 1, 5)
    return {**_who(row), "measured_gib": row["weights_gib"], "planned_gib": round(planned, 3), "error": error}


def _own_pool(row: dict[str, Any]) -> dict[str, Any]:
    found = promise(row)
    planned = [round((x or 0) / GIB, 2) for x in (found.pool.low, found.pool.mid, found.pool.high)]
    exact = {"error": round(found.pool_error, 4), "covered": found.covered, "half_width": round(found.half_width, 4)}
    return {**_who(row), "measured_gib": row["kv_gib"], "planned_gib": planned, **exact}


def _who(row: dict[str, Any]) -> dict[str, Any]:
    return {"model": row["model"], "tp": row["tp"], "pp": row.get("pp", 1), "engine": row["engine"], "question": question_of(row)}


def _print_weights(found: list[dict[str, Any]]) -> None:
    print(f"{'weights per GPU, GiB':<28} {'engine':<8} {'measured':>9} {'planned':>9} {'error':>8}")
    for r in found:
        print(f"{_name(r):<28} {r['engine']:<8} {r['measured_gib']:>9.2f} {r['planned_gib']:>9.2f} {r['error']:>+8.2%}")
    errors = [abs(r["error"]) for r in found]
    within = sum(abs(r["planned_gib"] - r["measured_gib"]) <= max(0.01 * r["measured_gib"], 0.0055) for r in found)
    print(f"median {statistics.median(errors):.2%}, worst {max(errors):.2%}, {within} of {len(errors)} within 1 % or the printed digit")


def _print_others(guessed: list[dict[str, Any]], unplanned: list[dict[str, Any]]) -> None:
    """Measured starts that count for nothing above: what is guessed about them, or why they are no rows."""
    for r in guessed:
        figures = f"{r['measured_gib']:>9.2f} {r['planned_gib']:>9.2f} {r['error']:>+8.2%}"
        print(f"{_name(r):<28} {r['engine']:<8} {figures}  guessed: {r['guessed']}")
    for r in unplanned:
        print(f"{_name(r):<28} {r['engine']:<8} {r['weights_gib']:>9.2f} {'':>9} {'':>8}  unknown model: {r['because']}")


def _print_pools(found: list[dict[str, Any]]) -> None:
    print(f"\n{'KV pool per GPU, GiB':<28} {'engine':<8} {'measured':>9} {'planned':>20} {'error':>8}")
    for r in found:
        low, mid, high = r["planned_gib"]
        mark = "" if r["covered"] else "  outside"
        interval = f"{mid:.2f} ({low:.2f}-{high:.2f})"
        print(f"{_name(r):<28} {r['engine']:<8} {r['measured_gib']:>9.2f} {interval:>20} {r['error']:>+8.1%}{mark}")
    for name, part in (("held-out half", found[1::2]), ("all rows", found)):
        error = statistics.median(abs(r["error"]) for r in part)
        covered = sum(r["covered"] for r in part) / len(part)
        width = statistics.median(r["half_width"] for r in part)
        print(f"{name}: median error {error:.1%}, covered {covered:.0%}, half-width {width:.1%}")


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']} tp{row['tp']}"


def _speed() -> dict[str, dict[str, float]]:
    """Best of seven whole processes, from a Checkpoint as JSON: wall and processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        path.write_bytes(encode(checkpoint("deepseek-v3")))
        argv = [sys.executable, "-c", "from firstlight.app.main import main; main()", "plan", "--checkpoint", str(path)]
        argv += ["--gpu", "8xh200-141gb-sxm", "--engine", "vllm", "-o", "json"]
        return {"one_node": _best_of(argv), "two_nodes": _best_of([*argv, "--nodes", "2"])}


def _best_of(argv: list[str], times: int = 7) -> dict[str, float]:
    wall, processor = [], []
    for _ in range(times):
        start, before = time.perf_counter(), _processor_seconds()
        subprocess.run(argv, check=True, capture_output=True)
        wall.append(time.perf_counter() - start)
        processor.append(_processor_seconds() - before)
    return {"wall": round(min(wall), 3), "processor": round(min(processor), 3)}


def _processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print_peers(peers: dict[str, dict[str, Any]], weights: list[dict[str, Any]], pools: list[dict[str, Any]]) -> None:
    """Each peer on the rows that it answers, and firstlight on exactly those."""
    print(f"\n{'errors: median (worst), rows':<30} {'weights':>24} {'KV pool':>24}")
    for name, said in peers.items():
        theirs, ours = [], []
        for index, measured in ((0, weights), (1, pools)):
            alone = [r for r in measured if r["pp"] == 1]
            pairs = [(said[r["question"]][index], r) for r in alone if r["question"] in said and said[r["question"]][index] is not None]
            theirs.append(_summary([abs(value / r["measured_gib"] - 1) for value, r in pairs], len(measured)))
            ours.append(_summary([abs(r["error"]) for _, r in pairs], len(measured)))
        print(f"{name:<30} {theirs[0]:>24} {theirs[1]:>24}")
        print(f"{'  firstlight on these rows':<30} {ours[0]:>24} {ours[1]:>24}")


def _summary(errors: list[float], asked: int) -> str:
    if not errors:
        return f"no answer on {asked}"
    return f"{statistics.median(errors):.2%} ({max(errors):.0%}), {len(errors)}/{asked}"


if __name__ == "__main__":
    sys.exit(main())
