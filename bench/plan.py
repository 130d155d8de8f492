"""How exact a plan is, how fast it is, and how exact peers are on the same rows.

    python bench/plan.py                        own tables, and bench/results/plan.json
    python bench/plan.py --peers /path/to/venv  the peers of that environment beside it (pip install kvfit vramscout modelinfo-cli)

Rows: tests/data/plan/{weights,kv}.jsonl, each with its source. Peers get the same shapes: a folder with correct safetensors headers over
sparse files, locally (vramscout, modelinfo) or from a hub on loopback (kvfit, which reads only hubs).
"""

import argparse
import contextlib
import json
import math
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "plan"))

from plan_measured import promise
from plan_models import checkpoint, rows
from server import Hub

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.schema import encode
from firstlight.core.units import GIB
from firstlight.plan.resident import ELEMENT_BYTES

RESULTS = Path(__file__).parent / "results" / "plan.json"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "KimiK25ForConditionalGeneration",
    "glm4_moe": "Glm4MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_text": "Qwen3_5ForConditionalGeneration",
}
PEER_TENSORS = 2_000  # some peers take minutes and gigabytes on more: such rows are not asked of any
KVFIT_GPUS = {"h100": "h100-80", "h200": "h200-141", "rtx-pro-6000-blackwell": "rtx-pro-6000-96"}
KVFIT = """
import sys, kvfit.hf as hf
hf.HF_BASE = sys.argv[1]
sys.argv = ["kvfit", *sys.argv[2:]]
import kvfit.cli
sys.exit(kvfit.cli.main())
"""


class SparseHub(Hub):
    """A hub that does not hash: the files are hundreds of gigabytes of holes."""

    def sha256(self, path: Path) -> str:
        return "0" * 64

    def git_sha1(self, path: Path) -> str:
        return "0" * 40


class Said(NamedTuple):
    """What a peer says, GiB per GPU; None where it does not answer."""

    weights: float | None = None
    pool: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="VENV")
    venv = parser.parse_args().peers
    weights = [_own_weights(row) for row in rows("weights")]
    pools = [_own_pool(row) for row in rows("kv")]
    speed = _speed()
    document: dict[str, Any] = {"weights": weights, "kv_pool": pools, "process_seconds": speed}
    _print_weights(weights)
    _print_pools(pools)
    print("\nwhole process, Python's start included:")
    for name, taken in speed.items():
        print(f"  {name.replace('_', ' '):<10} {taken['wall']:.2f} s wall, {taken['processor']:.2f} s of processor time")
    if venv:
        document["peers"] = _peers(venv.absolute())
        _print_peers(document["peers"], weights, pools)
    elif RESULTS.exists():
        document["peers"] = json.loads(RESULTS.read_text()).get("peers")
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
    return {"model": row["model"], "tp": row["tp"], "engine": row["engine"]}


def _print_weights(found: list[dict[str, Any]]) -> None:
    print(f"{'weights per GPU, GiB':<28} {'engine':<8} {'measured':>9} {'planned':>9} {'error':>8}")
    for r in found:
        print(f"{_name(r):<28} {r['engine']:<8} {r['measured_gib']:>9.2f} {r['planned_gib']:>9.2f} {r['error']:>+8.2%}")
    errors = [abs(r["error"]) for r in found]
    within = sum(e <= 0.01 for e in errors)
    print(f"median {statistics.median(errors):.2%}, worst {max(errors):.2%}, {within} of {len(errors)} within 1 %")


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


def _peers(venv: Path) -> dict[str, dict[str, list[Said]]]:
    """Every peer on every row. Folders are made once a model."""
    said: dict[str, dict[str, list[Said]]] = {name: {"weights": [], "kv": []} for name in ("kvfit", "vramscout", "modelinfo")}
    with tempfile.TemporaryDirectory() as root, SparseHub(Path(root)) as hub:
        for kind in ("weights", "kv"):
            for row in rows(kind):
                if sum(g.count for g in checkpoint(row["model"]).tensor_groups) > PEER_TENSORS:
                    for answers in said.values():
                        answers[kind].append(Said())
                    continue
                if not (Path(root) / "org" / row["model"]).exists():
                    write_folder(checkpoint(row["model"]), Path(root) / "org" / row["model"] / "main")
                folder = Path(root) / "org" / row["model"] / "main"
                said["kvfit"][kind].append(_kvfit(venv, row, hub.url))
                said["vramscout"][kind].append(_vramscout(venv, row, folder))
                said["modelinfo"][kind].append(_modelinfo(venv, row, folder))
    return said


def write_folder(model: Checkpoint, folder: Path) -> None:
    """config.json and one sparse safetensors file with a correct header."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = dict(model.config, torch_dtype="bfloat16")
    config["architectures"] = model.architectures or [ARCHITECTURES.get(config["model_type"], "Unknown")]
    if model.quantization:
        config["quantization_config"] = {"quant_method": model.quantization.method, "ignore": model.quantization.ignore}
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = dict[str, Any](), 0
    for group in model.tensor_groups:
        size = int(math.prod(group.shape) * ELEMENT_BYTES[group.dtype])
        experts = range(group.count // max(len(group.layers), 1)) if "{expert}" in group.pattern else range(1)
        for layer in group.layers or [0]:
            for expert in experts:
                name = group.pattern.replace("{layer}", str(layer)).replace("{expert}", str(expert))
                header[name] = {"dtype": group.dtype, "shape": group.shape, "data_offsets": [offset, offset + size]}
                offset += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + offset)


def _run(argv: list[str]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(argv, capture_output=True, text=True, timeout=45, check=False).stdout
    return ""


def _kvfit(venv: Path, row: dict[str, Any], hub: str) -> Said:
    total, utilization = row.get("total_gib", 79.18), row.get("utilization", 0.9)
    argv = [str(venv / "bin" / "python"), "-c", KVFIT, hub, f"org/{row['model']}", "--hardware", KVFIT_GPUS.get(row["gpu"], "h100-80")]
    argv += ["--device-memory-gib", str(total), "--gpus", str(row["tp"]), "--nodes", "1", "--tp", str(row["tp"])]
    argv += ["--context", str(row.get("max_model_len", 8192)), "--utilization", str(utilization), "--kv-dtype", "bf16", "--json"]
    try:
        layout = json.loads(_run(argv))["concurrency"]["best_any_fabric"]["layout"]
        weights = float(layout["weights_per_rank_gib"])
    except (ValueError, KeyError, TypeError):
        return Said()
    return Said(weights, total * utilization - weights)


def _vramscout(venv: Path, row: dict[str, Any], folder: Path) -> Said:
    argv = [str(venv / "bin" / "vramscout"), str(folder), "--engine", "vllm", "--tp", str(row["tp"]), "--kv-dtype", "bf16", "--json"]
    argv += ["--vram-gib", str(row.get("total_gib", 79.18)), "--gpu-memory-utilization", str(row.get("utilization", 0.9))]
    try:
        found = json.loads(_run([*argv, "--context", str(min(row.get("max_model_len", 8192), 8192))]))
        parts = found["parts_gib"]
        return Said(float(parts["Model weights / rank"]), float(found["spare_gib"]) + float(parts["KV cache"]))
    except (ValueError, KeyError, TypeError):
        return Said()


def _modelinfo(venv: Path, row: dict[str, Any], folder: Path) -> Said:
    """One GPU only, and only the cards that it knows by name."""
    if row["tp"] > 1 or row["gpu"] not in ("h100", "h200", "rtx-4090", "rtx-3090"):
        return Said()
    argv = [str(venv / "bin" / "modelinfo"), str(folder / "model.safetensors"), "--vllm", "--gpu", row["gpu"].replace("-", "").upper()]
    lines = _run([*argv, "--gpu-util", str(row.get("utilization", 0.9))]).splitlines()
    weights = next((line.split("-")[-1].split()[0] for line in lines if "Static Weights" in line), None)
    pool = next((line.split("=")[-1].split()[0] for line in lines if "KV Pool" in line), None)
    return Said(float(weights) if weights else None, float(pool) if pool else None)


def _print_peers(peers: dict[str, dict[str, list[Said]]], weights: list[dict[str, Any]], pools: list[dict[str, Any]]) -> None:
    """Each peer on the rows that it answers, and firstlight on exactly those."""
    print(f"\n{'errors: median (worst), rows':<30} {'weights':>24} {'KV pool':>24}")
    for name, said in peers.items():
        theirs, ours = [], []
        for kind, index, measured in (("weights", 0, weights), ("kv", 1, pools)):
            pairs = [(s[index], r) for s, r in zip(said[kind], measured, strict=True) if s[index] is not None]
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
