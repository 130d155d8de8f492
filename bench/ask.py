"""Asked against measured: `python bench/ask.py --python ASKING_PYTHON` prints a table and writes bench/results/ask.json.

Each row of tests/data/ask/measured.json is put to the release that was measured, without its GPU. The Python files of a release that is
not in the cache are fetched first. Exit 1: a difference, a time or an amount of memory is over its limit.
"""

import argparse
import importlib
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
from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.units import GIB
from firstlight.probe.local import LocalHost

ROOT = Path(__file__).parent.parent
SHAPES = ROOT / "tests/data/ask"


LIMITS = {"seconds": 20.0, "peak_gib": 2.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--wheels", default=str(cache_folder() / "ask/wheels"))
    args = parser.parse_args()
    rows = []
    print(f"{'model':38} {'release':8} {'layout':6} {'asked':>8} {'measured':>9} {'differ':>8} {'wall s':>7} {'CPU s':>6} {'GiB used':>9}")
    for row in json.loads((SHAPES / "measured.json").read_text()):
        r = measure(row, args)
        rows.append(r)
        numbers = f"{r['asked_gib']:8.3f} {r['load_gib']:9.2f} {r['difference']:+8.2%} {r['seconds']:7.1f} {r['cpu_seconds']:6.1f}"
        print(f"{r['model']:38} {r['release']:8} {layout(row):6} {numbers} {r['peak_gib']:9.2f}", flush=True)
    (ROOT / "bench/results/ask.json").write_text("[\n" + ",\n".join(" " + json.dumps(r) for r in rows) + "\n]\n")
    return 0 if all(within(r) for r in rows) else 1


def within(row: dict[str, Any]) -> bool:
    return abs(row["difference"]) <= row["tolerance"] and all(row[name] < limit for name, limit in LIMITS.items())


def layout(row: dict[str, Any]) -> str:
    short = {"tensor_parallel_size": "TP", "pipeline_parallel_size": "PP", "decode_context_parallel_size": "DCP"}
    return " ".join(f"{short[k]}{v}" for k, v in row.get("fields", {}).items() if k in short) or "1 GPU"


def measure(row: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The row with what was asked, how long it took and what it used; answers are not remembered between runs."""
    config = shape(row["model"])
    fields = {"max_model_len": 32768, "kv_cache_memory_bytes": 20 * GIB, **row.get("fields", {})}
    answer, spent = put(config, row["release"], row["gpu"], fields, python=args.python, wheels=args.wheels)
    if answer.parameter_bytes is None:
        raise SystemExit(f"{row['model']}: {answer.refusal or answer.findings}")
    asked = answer.parameter_bytes / GIB
    return {**row, "asked_gib": round(asked, 4), "difference": round(asked / row["load_gib"] - 1, 5), **spent}


def shape(name: str) -> dict[str, Any]:
    """A config.json of tests/data/ask, or one of bench/gpu/models.py, which were started on GPUs."""
    file = SHAPES / f"{name}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    sys.path.insert(0, str(ROOT / "bench/gpu"))
    made = importlib.import_module("models").MODELS[name]()
    return dict(made[0] if isinstance(made, tuple) else made)


def put(
    config: dict[str, Any], release: str, gpu: str, fields: dict[str, Any], *, python: str, wheels: str, hf_quant: str | None = None
) -> tuple[EngineAnswer, dict[str, float]]:
    """(the answer of `release` about a config alone, {seconds, cpu_seconds, peak_gib} of the process that gave it).

    hf_quant: the text of its hf_quant_config.json, where it has one.
    """
    engine_source(LocalHost(), python, f"vllm=={release}", wheels)
    with tempfile.TemporaryDirectory() as folder:
        model, cache = Path(folder, "model"), Path(folder, "cache")
        model.mkdir()
        cache.mkdir()
        (cache / "wheels").symlink_to(Path(wheels).absolute())
        (model / "config.json").write_text(json.dumps(config))
        if hf_quant:
            (model / "hf_quant_config.json").write_text(hf_quant)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        answer = ask(
            LocalHost(),
            checkpoint=Checkpoint(ref="bench", format="config-only", path=str(model)),
            machine=imagine(gpu),
            candidate=Candidate(engine=EngineRef(name="vllm", version=release), **fields),
            install=None,
            wheel=f"vllm=={release}",
            asking=EngineInstall(engine="vllm", python=python, device="cpu"),
            cache=str(cache),
            timeout=600,
        )
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The children's maximum is over all so far, so it bounds each from above.
    return answer, {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "peak_gib": round(after.ru_maxrss * 1024 / GIB, 2)}


if __name__ == "__main__":
    sys.exit(main())
