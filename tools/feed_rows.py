"""Turns starts that were measured on a GPU (bench/gpu/run_cases.py) into rows that the planner is fitted and tested on.

    python tools/feed_rows.py                       bench/gpu/results/*.jsonl into tests/data/plan/{weights,kv}.jsonl
    python tools/feed_rows.py FILE.jsonl ...        these files instead
    python tools/feed_rows.py --check               exit 1 when a measured start is missing from the rows

Then `python tools/fit_memory.py`: it fits on the even rows and reports the odd ones. New rows go to the end, so a row never changes halves;
a case that is already there is brought up to date where it stands. A start that failed gives no row, and says so.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from firstlight.catalog.gpus import recognise
from firstlight.core.units import GIB, MIB
from firstlight.plan.flags import pins_from_args

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "tests" / "data" / "plan"
Row = dict[str, Any]


class Start(NamedTuple):
    """One measured start. origin: the results file, as the rows name it."""

    origin: str
    result: Row


def starts(files: list[Path]) -> Iterator[Start]:
    for file in files:
        for line in file.read_text("utf-8").splitlines():
            yield Start(file.name, json.loads(line))


def common(start: Start) -> Row:
    """What both kinds of rows say about a start: model folder, GPUs, release, and the flags that it ran with."""
    result = start.result
    name, _driver, memory = (part.strip() for part in result["machine"]["gpus"][0].split(","))
    gpu = recognise(name, int(memory.split()[0]) * MIB)
    if gpu is None:
        raise ValueError(f"{name} is not in the catalog")
    args = result["computed"]["args"]
    pins = pins_from_args(args)
    sizes = {"tp": pins.tensor_parallel_size or 1, "pp": pins.pipeline_parallel_size or 1, "dp": pins.data_parallel_size or 1}
    return {
        "case": f"{start.origin}: {result['case']}",
        "model": f"gpu/{result['model']}",
        "tp": sizes["tp"],
        **{k: v for k, v in sizes.items() if k != "tp" and v > 1},
        "engine": result["figures"]["engine_version"],
        "gpu": gpu.id,
        "total_gib": round(result["computed"]["per_gpu"]["total"]["mid"] / GIB, 4),
        "args": args,
        "source": f"own run through firstlight up, dummy weights (bench/gpu/results/{start.origin})",
    }


def weights_row(start: Start) -> Row | None:
    taken = start.result["figures"].get("weights_gib")
    printed = 0.0055  # a log has two digits
    return None if taken is None else common(start) | {"weights_gib": taken, "tolerance": max(0.01, round(printed / taken, 4))}


def kv_row(start: Start) -> Row | None:
    figures = start.result["figures"]
    left, tokens = figures.get("kv_cache_gib"), figures.get("kv_tokens")
    if left is None:
        return None
    return common(start) | {"kv_gib": left, **({"kv_tokens": tokens} if tokens else {}), "flashinfer": False}


def merged(rows: list[Row], fresh: list[Row]) -> list[Row]:
    """The rows with the fresh ones in the place of the same case, or at the end."""
    by_case = {row["case"]: row for row in fresh}
    kept = [by_case.pop(row["case"], row) if "case" in row else row for row in rows]
    return kept + list(by_case.values())


def read(kind: str) -> list[Row]:
    return [json.loads(line) for line in (ROWS / f"{kind}.jsonl").read_text("utf-8").splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    measured = list(starts(given.files or sorted((ROOT / "bench" / "gpu" / "results").glob("*.jsonl"))))
    stale = False
    for kind, make in (("weights", weights_row), ("kv", kv_row)):
        made = [(start, make(start)) for start in measured]
        for start, row in made:
            if row is None:
                print(f"{start.result['case']}: no row for {kind}: the start ended before that figure ({start.result.get('state')})")
        before = read(kind)
        after = merged(before, [row for _, row in made if row])
        stale = stale or before != after
        print(f"{kind}: {len(before)} rows before, {len(after)} after")
        if not given.check:
            (ROWS / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in after), "utf-8")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
