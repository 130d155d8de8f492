"""The table of damages x checks, on real engines with real weights: what is caught, by which check, and that no healthy endpoint fails.

    python bench/verify.py --source DEMO.gguf [--base GEMMA.gguf] [--vllm-python PYTHON] [--work FOLDER] [--only NAME,...] [--table]

Damaged models are made once into --work. Gross damage is judged black box (quick profile), mild damage against a reference of the healthy
model on the same engine. Rows are kept in bench/results/verify.json as they come; --table prints them as Markdown and starts nothing.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")  # not this folder: its inspect.py would shadow the standard library's

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corrupt import engines, gguf_models, hf_folder

from firstlight.core.reference import Reference
from firstlight.core.run import Endpoint
from firstlight.core.schema import decode, encode
from firstlight.verify.session import Claims
from firstlight.verify.verify import save_reference, verify

RESULTS = ROOT / "bench/results/verify.json"
LIARS, PROXIES = ("bang", "echo", "canned", "stall"), ("garble", "crossed")
HEALTHY = ("as shipped (4-bit)", *(n for n in gguf_models.HEALTHY if n != "experts-q8_0"))
BUDGET = 240.0


def rows_wanted(engine: str, base: bool) -> list[tuple[str, str]]:
    """(expectation, name) of every row of one engine."""
    if engine == "vllm":
        gross = list(gguf_models.GROSS)
        return [("healthy", "healthy"), *(("gross", n) for n in gross), *(("mild", n) for n in gguf_models.MILD if "expert" not in n)]
    healthy = [("healthy", n) for n in (*HEALTHY, "experts-q8_0", *(["gemma-3-270m base"] if base else []))]
    return [*healthy, *(("gross", n) for n in (*gguf_models.GROSS, *LIARS, *PROXIES)), *(("mild", n) for n in gguf_models.MILD)]


@contextmanager
def endpoint(args: argparse.Namespace, engine: str, name: str) -> Iterator[Endpoint]:
    source, work = Path(args.source), Path(args.work)
    if engine == "vllm":
        with engines.vllm(hf_folder.make(source, work / "hf", name), python=args.vllm_python, log=work / f"vllm-{name}.log") as found:
            yield found
    elif name in LIARS:
        with engines.liar(name) as found:
            yield found
    elif name in PROXIES:
        with engines.llamacpp(source) as upstream, engines.liar(name, upstream=upstream) as found:
            yield found
    else:
        made = {"as shipped (4-bit)": source, "gemma-3-270m base": Path(args.base or "")}
        with engines.llamacpp(made.get(name) or gguf_models.make(source, work, name)) as found:
            yield found


def trusted_name(engine: str, name: str) -> str:
    return "experts-q8_0" if "expert" in name else "healthy" if engine == "vllm" else "q8_0"


def reference_file(args: argparse.Namespace, engine: str, name: str) -> Path:
    return Path(args.work) / f"reference-{engine}-{trusted_name(engine, name)}.json"


async def judge(args: argparse.Namespace, engine: str, expected: str, name: str, found: Endpoint) -> dict[str, Any]:
    file = reference_file(args, engine, name)
    trusted = decode(file.read_bytes(), Reference) if expected == "mild" else None
    claims = Claims(kind="base") if "base" in name else Claims()
    verdict = await verify(found, claims=claims, trusted=trusted, budget_seconds=BUDGET)
    if name == trusted_name(engine, name) and verdict.passed:
        file.write_bytes(encode(await save_reference(found)))
    failed = [c for c in verdict.checks if not c.passed and not c.skipped]
    compared = next((c.evidence[0] for c in verdict.checks if c.name == "reference" and c.evidence), None)
    return {
        "engine": engine,
        "expected": expected,
        "name": name,
        "passed": verdict.passed,
        "failed": [c.name for c in failed],
        "evidence": compared or (failed[0].evidence[:2] if failed else []),
        "ran": sum(not c.skipped for c in verdict.checks),
        "seconds": round(verdict.seconds, 1),
    }


def as_expected(row: dict[str, Any]) -> bool:
    return bool(row["passed"]) == (row["expected"] == "healthy")


def keep(row: dict[str, Any]) -> None:
    rows = [r for r in load() if (r["engine"], r["name"]) != (row["engine"], row["name"])]
    RESULTS.write_text(json.dumps({"rows": [*rows, row]}, indent=1, ensure_ascii=False) + "\n")


def load() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []


def table() -> None:
    print("| engine | model or server | expected | verdict | caught by |\n|---|---|---|---|---|")
    for r in sorted(load(), key=lambda r: (("healthy", "gross", "mild").index(r["expected"]), r["engine"])):
        verdict = "passed" if r["passed"] else "failed"
        odd = "" if as_expected(r) else " **(not as expected)**"
        by = ", ".join(f"`{n}`" for n in r["failed"]) or f"{r['ran']} checks ran"
        measure = f": {r['evidence'].partition(' over ')[0]}" if r["expected"] == "mild" and isinstance(r["evidence"], str) else ""
        print(f"| {r['engine']} | {r['name']} | {r['expected']} | {verdict}{odd} | {by}{measure} |")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source")
    parser.add_argument("--base")
    parser.add_argument("--vllm-python")
    parser.add_argument("--work", default="/tmp/firstlight-damaged")
    parser.add_argument("--only")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        table()
        return 0
    engine = "vllm" if args.vllm_python else "llamacpp"
    only = args.only.split(",") if args.only else None
    for expected, name in rows_wanted(engine, bool(args.base)):
        if only and name not in only:
            continue
        began = time.perf_counter()
        with endpoint(args, engine, name) as found:
            row = asyncio.run(judge(args, engine, expected, name, found))
        keep(row)
        word = "as expected" if as_expected(row) else "NOT AS EXPECTED"
        print(f"{engine:9} {expected:8} {name:22} {word:16} {', '.join(row['failed'])} ({time.perf_counter() - began:.0f} s)", flush=True)
    return 0 if all(as_expected(r) for r in load()) else 1


if __name__ == "__main__":
    sys.exit(main())
