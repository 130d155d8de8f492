"""Which models, layouts and releases can be asked: `python bench/ask_coverage.py --python ASKING_PYTHON --configs FOLDER [WORD …]`.

FOLDER holds published config.json files as ORG__NAME.json. Words keep only the rows that name them. Prints a table and puts the
rows into bench/results/ask_coverage.json; exit 1: a question ended in an exception of ours.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ask import ROOT, SHAPES, put

from firstlight.app.places import cache_folder
from firstlight.catalog.backends import table
from firstlight.core.answer import EngineAnswer
from firstlight.core.units import GIB

TP8, EP = {"tensor_parallel_size": 8}, {"enable_expert_parallel": True}
# Qwen3-Next-80B-A3B, the shape as published.
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "moe_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512,
    "full_attention_interval": 4, "decoder_sparse_step": 1, "norm_topk_prob": True, "partial_rotary_factor": 0.25, "rope_theta": 10000000,
    "vocab_size": 151936, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "mlp_only_layers": [], "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("meta-llama__Meta-Llama-3.1-70B", {"tensor_parallel_size": 4}),
    ("google__gemma-4-26B-A4B", {}),
    ("MiniMaxAI__MiniMax-M2.5", {"tensor_parallel_size": 4}),
    ("MiniMaxAI__MiniMax-M2.5", TP8),
    ("openai__gpt-oss-120b", {"tensor_parallel_size": 2}),
    ("Qwen3-Next-80B-A3B", {"tensor_parallel_size": 4}),
    ("Qwen__Qwen3.5-397B-A17B", TP8),
    ("nvidia__Nemotron-H-56B-Base-8K", {"tensor_parallel_size": 4, "max_model_len": 8192}),
    ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {}),
    ("deepseek-ai__DeepSeek-V3.2", TP8 | EP),
    ("zai-org__GLM-5-FP8", TP8),
    ("nvidia__Kimi-K2.5-NVFP4", TP8),
]
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("meta-llama__Meta-Llama-3.1-70B", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    ("nvidia__Kimi-K2.5-NVFP4", TP8 | {"decode_context_parallel_size": 8}),
    ("nvidia__Kimi-K2.5-NVFP4", TP8 | EP),
    ("Qwen__Qwen3.5-397B-A17B", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, **EP}),
]


def questions() -> list[tuple[str, str, dict[str, Any]]]:
    """(model, release, layout): one model on every release, every family and layout on two."""
    releases = [r.version for r in table().releases]
    pairs = [(name, release, fields) for release in ("0.25.1", releases[-1]) for name, fields in [*FAMILIES, *LAYOUTS]]
    return [*pairs, *(("llama-3.1-8b", release, {}) for release in releases)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--configs", required=True)
    parser.add_argument("--wheels", default=str(cache_folder() / "ask/wheels"))
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    wanted = [q for q in questions() if not args.words or any(w in (*q[:2], *q[2]) for w in args.words)]
    rows = [ask_one(model, release, fields, args) for model, release, fields in wanted]
    keep(rows)
    return 1 if any(r["outcome"] == "exception" for r in rows) else 0


def keep(rows: list[dict[str, Any]]) -> None:
    """Rows replace those of the same question in the results' file."""
    file = ROOT / "bench/results/ask_coverage.json"
    kept = {_question(r): r for r in json.loads(file.read_text())} if file.exists() else {}
    kept |= {_question(r): r for r in rows}
    file.write_text("[\n" + ",\n".join(" " + json.dumps(kept[q]) for q in sorted(kept)) + "\n]\n")


def _question(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["release"], row["layout"]


def ask_one(model: str, release: str, fields: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    config = QWEN3_NEXT if model.startswith("Qwen3-Next") else json.loads(_config(model, args.configs).read_text())
    row: dict[str, Any] = {"model": model.partition("__")[2] or model, "release": release, "layout": layout(fields)}
    asked = {"max_model_len": 32768, "kv_cache_memory_bytes": 20 * GIB, **fields}
    try:
        answer, spent = put(config, release, "8xh200", asked, python=args.python, wheels=args.wheels)
        row.update(outcome(answer) | spent)
    except Exception as e:
        row.update({"outcome": "exception", "why": f"{type(e).__name__}: {e}"[:300]})
    shown = f"{row.get('weights_gib') or '':>8} {row.get('kv_tokens') or '':>10} {row.get('kernels') or row.get('why') or ''}"
    print(f"{row['model'][:40]:40} {release:7} {row['layout']:14} {row['outcome']:10} {shown}"[:180], flush=True)
    return row


def _config(model: str, folder: str) -> Path:
    own = SHAPES / f"{model}.json"
    return own if own.exists() else Path(folder, f"{model}.json")


def outcome(answer: EngineAnswer) -> dict[str, Any]:
    """answered: bytes, kernels and KV cache; refused: in the engine's words; degraded: a finding says what is missing."""
    found = {
        "weights_gib": round(answer.parameter_bytes / GIB, 3) if answer.parameter_bytes else None,
        "kv_tokens": answer.kv_tokens,
        "kernels": " ".join(dict.fromkeys(b.chosen for b in answer.backends if b.chosen)),
    }
    if answer.refusal:
        return {"outcome": "refused", "why": answer.refusal.strip()[:300], **found}
    if answer.findings:
        return {"outcome": "degraded", "why": " | ".join([answer.findings[0].code, *answer.findings[0].evidence])[:400], **found}
    return {"outcome": "answered", **found}


def layout(fields: dict[str, Any]) -> str:
    short = {"tensor_parallel_size": "TP", "pipeline_parallel_size": "PP", "decode_context_parallel_size": "DCP"}
    parts = [f"{short[k]}{v}" for k, v in fields.items() if k in short] + (["EP"] if fields.get("enable_expert_parallel") else [])
    return " ".join(parts) or "1 GPU"


if __name__ == "__main__":
    sys.exit(main())
