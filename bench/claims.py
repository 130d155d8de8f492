"""What models and flags claim, on real engines: tool calls, reasoning, JSON schema, embeddings; a wrong parser is named.

    python bench/claims.py --source DEMO.gguf [--second CHAT.gguf] [--vllm-python PYTHON] [--work FOLDER] [--lock FILE] [--only START;...]

The demo knows neither tools nor reasoning: `tests/corrupt/templates/by_example.jinja` shows it both by two answers before each question,
so that what the engine's parsers get is a model's own text. Rows are kept in bench/results/claims.json as they come.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from alone import alone
from corrupt import engines, hf_folder

from firstlight.core.run import Endpoint
from firstlight.core.verdict import CheckResult
from firstlight.verify.claimed import claims_for
from firstlight.verify.session import Claims
from firstlight.verify.verify import verify

RESULTS = ROOT / "bench/results/claims.json"
TEMPLATE = ("--chat-template", str(ROOT / "tests/corrupt/templates/by_example.jinja"))
TEMPLATE_FILE = ("--chat-template-file", TEMPLATE[1])
HERMES = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
PASSED = "passed"
KINDS = {"embeddings": "embedding", "rewards": "reward"}


class Start(NamedTuple):
    """One start of an engine. model: source or second; flags: its claims; wanted: per check passed, skipped, or what must be named.
    folder: what of the model vLLM serves.
    """

    engine: str
    model: str
    flags: tuple[str, ...]
    wanted: dict[str, str]
    folder: str = "healthy"


STARTS = {
    "llama.cpp, by example": Start("llamacpp", "source", TEMPLATE_FILE, {"tools": PASSED, "reasoning": PASSED, "json-schema": PASSED}),
    "llama.cpp, reasoning left in": Start(
        "llamacpp", "source", (*TEMPLATE_FILE, "--reasoning-format", "none"), {"reasoning": "reasoning-parser-missing"}
    ),
    "llama.cpp, embeddings": Start("llamacpp", "source", ("--embeddings", "--pooling", "mean"), {"embeddings": PASSED}),
    "llama.cpp, Qwen2.5 Coder": Start("llamacpp", "second", (), {"tools": "tool-parser-missing", "json-schema": PASSED}),
    "vLLM, no parser": Start(
        "vllm",
        "source",
        TEMPLATE,
        {"tools": "tool-parser-missing", "reasoning": "reasoning-parser-missing", "json-schema": PASSED, "vision": "status 400"},
    ),
    "vLLM, hermes and olmo3": Start(
        "vllm", "source", (*TEMPLATE, *HERMES, "--reasoning-parser", "olmo3"), {"tools": PASSED, "reasoning": PASSED}
    ),
    "vLLM, pythonic and granite": Start(
        "vllm",
        "source",
        (*TEMPLATE, "--enable-auto-tool-choice", "--tool-call-parser", "pythonic", "--reasoning-parser", "granite"),
        {"tools": "tool-parser-model-mismatch", "reasoning": "reasoning-parser-model-mismatch"},
    ),
    "vLLM, embeddings": Start("vllm", "source", ("--runner", "pooling", "--convert", "embed"), {"embeddings": PASSED}),
    "vLLM, reward": Start("vllm", "source", ("--runner", "pooling", "--convert", "classify"), {"rewards": PASSED}, "reward"),
    "vLLM, Qwen2.5 Coder, hermes": Start("vllm", "second", HERMES, {"tools": "tool-parser-model-mismatch", "json-schema": PASSED}),
    "vLLM, Qwen2.5 Coder, hermes by example": Start("vllm", "second", (*TEMPLATE, *HERMES), {"tools": "skipped"}),
}


@contextmanager
def started(args: argparse.Namespace, start: Start) -> Iterator[Endpoint]:
    model = Path(getattr(args, start.model))
    if start.engine == "llamacpp":
        with engines.llamacpp(model, parallel=4, extra=start.flags) as found:
            yield found
        return
    folder = hf_folder.make(model, Path(args.work) / start.model / "hf", start.folder)
    log = Path(args.work) / "vllm-claims.log"
    with alone(args.lock), engines.vllm(folder, python=args.vllm_python, extra=start.flags, log=log) as found:
        yield found


def claims_of(start: Start) -> Claims:
    """As `verify RUN` reads them from the flags; what no flag claims is claimed by the user."""
    own = claims_for(None, start.flags)
    kind = next((k for name, k in KINDS.items() if name in start.wanted), None)
    said = {name.replace("-", "_"): True for name in start.wanted if name not in KINDS}
    parsers = {"tool_parser": own.tool_parser, "reasoning_parser": own.reasoning_parser}
    return Claims(kind=own.kind or kind, **said, **parsers)


async def judged(name: str, start: Start, found: Endpoint) -> list[dict[str, Any]]:
    verdict = await verify(found, profile="full", checks=list(start.wanted), claims=claims_of(start), budget_seconds=240)
    checks = {c.name: c for c in verdict.checks}
    return [row(name, start, wanted, checks[check]) for check, wanted in start.wanted.items()]


def row(name: str, start: Start, wanted: str, check: CheckResult) -> dict[str, Any]:
    told = [*check.evidence, *([check.note] if check.note else [])]
    state = "skipped" if check.skipped else PASSED if check.passed else "failed"
    right = state == wanted or (state == "failed" and any(wanted in line for line in told))
    flags = " ".join(Path(f).name if f.startswith("/") else f for f in start.flags)
    return {"start": name, "flags": flags, "check": check.name, "wanted": wanted, "state": state, "right": right, "evidence": told[:3]}


def keep(rows: list[dict[str, Any]]) -> None:
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    new = {(r["start"], r["check"]) for r in rows}
    all_rows = [r for r in kept if (r["start"], r["check"]) not in new] + rows
    RESULTS.write_text(json.dumps({"rows": sorted(all_rows, key=_order)}, indent=1, ensure_ascii=False) + "\n")


def _order(r: dict[str, Any]) -> int:
    return list(STARTS).index(r["start"]) if r["start"] in STARTS else len(STARTS)


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--source", "--second", "--vllm-python", "--lock", "--only"):
        parser.add_argument(flag)
    parser.add_argument("--work", default="/tmp/firstlight-claims")
    args = parser.parse_args()
    only = args.only.split(";") if args.only else list(STARTS)
    wrong = 0
    for name, start in STARTS.items():
        if name not in only or not getattr(args, start.model) or (start.engine == "vllm" and not args.vllm_python):
            continue
        with started(args, start) as found:
            rows = asyncio.run(judged(name, start, found))
        keep(rows)
        for r in rows:
            word = "as it should" if r["right"] else f"NOT {r['wanted']}"
            print(f"| {r['start']} | `{r['check']}` | {r['state']} | {word} | {r['evidence'][:1]}", flush=True)
        wrong += sum(not r["right"] for r in rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
