"""Asked against measured: `python bench/ask.py --python ASKING_PYTHON` prints a table and writes bench/results/ask.json.

Each row of tests/data/ask/measured.json is put to the release that was measured, without its GPU. The Python files of a release that is
not in the cache are fetched first.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from firstlight.app.places import cache_folder
from firstlight.ask.ask import ask
from firstlight.ask.wheels import engine_source
from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.units import GIB
from firstlight.probe.local import LocalHost

ROOT = Path(__file__).parent.parent
SHAPES = ROOT / "tests/data/ask"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--wheels", default=str(cache_folder() / "ask/wheels"))
    args = parser.parse_args()
    rows = [measure(row, args) for row in json.loads((SHAPES / "measured.json").read_text())]
    (ROOT / "bench/results/ask.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{'model':38} {'release':8} {'asked':>8} {'measured':>9} {'differ':>8} {'wall s':>7} {'CPU s':>6} {'GiB used':>9}")
    for r in rows:
        numbers = f"{r['asked_gib']:8.3f} {r['load_gib']:9.2f} {r['difference']:+8.2%} {r['seconds']:7.1f} {r['cpu_seconds']:6.1f}"
        print(f"{r['model']:38} {r['release']:8} {numbers} {r['peak_gib']:9.2f}")
    return 0 if all(abs(r["difference"]) <= r["tolerance"] for r in rows) else 1


def measure(row: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The row with what was asked, how long it took and what it used; answers are not remembered between runs."""
    engine_source(LocalHost(), args.python, f"vllm=={row['release']}", args.wheels)
    with tempfile.TemporaryDirectory() as folder:
        model, cache = Path(folder, "model"), Path(folder, "cache")
        model.mkdir()
        cache.mkdir()
        (cache / "wheels").symlink_to(Path(args.wheels).absolute())
        (model / "config.json").write_bytes((SHAPES / f"{row['model']}.json").read_bytes())
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        answer = ask(
            LocalHost(),
            checkpoint=Checkpoint(ref=row["model"], format="config-only", path=str(model)),
            machine=imagine(row["gpu"]),
            candidate=Candidate(engine=EngineRef(name="vllm", version=row["release"]), max_model_len=32768, kv_cache_memory_bytes=20 * GIB),
            install=None,
            wheel=f"vllm=={row['release']}",
            asking=EngineInstall(engine="vllm", python=args.python, device="cpu"),
            cache=str(cache),
            timeout=600,
        )
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if answer.parameter_bytes is None:
        raise SystemExit(f"{row['model']}: {answer.refusal or answer.findings}")
    asked = answer.parameter_bytes / GIB
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        **row,
        "asked_gib": round(asked, 4),
        "difference": round(asked / row["load_gib"] - 1, 5),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_gib": round(after.ru_maxrss * 1024 / GIB, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
