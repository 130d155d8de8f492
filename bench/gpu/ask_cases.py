"""Asks the engine itself about every measured case, without a GPU: the release's Python files in an asking environment, the GPU spoofed.

    python ask_cases.py --models FOLDER --python ASKING_PYTHON [--wheels FOLDER] [--release 0.25.1] [--gpu h200-141gb-sxm]

Answers are kept by case in results/asked.json; a case that has one is passed over. `python models.py FOLDER` makes the model folders.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from firstlight.app.places import cache_folder

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from ask import put  # noqa: E402

NUMBERS = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
}


def fields_of(args: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {NUMBERS[word]: int(args[i + 1]) for i, word in enumerate(args) if word in NUMBERS}
    if "--kv-cache-dtype" in args:
        found["kv_cache_dtype"] = args[args.index("--kv-cache-dtype") + 1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--wheels", default=str(cache_folder() / "ask/wheels"))
    parser.add_argument("--release", default="0.25.1")
    parser.add_argument("--gpu", default="h200-141gb-sxm")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "asked.json")
    given = parser.parse_args()
    kept = json.loads(given.results.read_text()) if given.results.exists() else {}
    for line in (HERE / "results" / "h200.jsonl").read_text().splitlines():
        row = json.loads(line)
        folder = given.models / row["model"]
        if row["case"] in kept or not folder.exists():
            continue
        fields, quant = fields_of(row["args"]), folder / "hf_quant_config.json"
        world = fields.get("tensor_parallel_size", 1) * fields.get("pipeline_parallel_size", 1)
        answer, spent = put(
            json.loads((folder / "config.json").read_text()),
            given.release,
            f"{world}x{given.gpu}",
            fields,
            python=given.python,
            wheels=given.wheels,
            hf_quant=quant.read_text() if quant.exists() else None,
        )
        if answer.per_gpu is None:
            print(f"{row['case']}: {answer.refusal or [f.message for f in answer.findings]}", flush=True)
            continue
        weights = answer.per_gpu.weights.mid
        kept[row["case"]] = {"weights": weights, "seconds": spent["seconds"]}
        given.results.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{row['case']}: {(weights or 0) / 2**30:.3f} GiB, measured {row['figures'].get('weights_gib')}", flush=True)


if __name__ == "__main__":
    main()
