"""The built-in bench beside `vllm bench serve` on vLLM, and beside llama.cpp's own timings of the very same requests.

    python bench/bench_agreement.py --source DEMO.gguf [--vllm-python PYTHON --folder MODEL_FOLDER] [--rounds N]

On vLLM both tools take turns on one server with requests of one kind (/completions, random words, equal lengths): what differs between two
rounds of one tool is the machine's noise, and the tools must not differ by more. llama.cpp tells its own clock with each answer, so that no
second run is needed. Writes bench/results/bench_agreement.json.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")  # not this folder: its inspect.py would shadow the standard library's

import argparse
import asyncio
import json
import statistics
import subprocess
from typing import Any

from corrupt import engines

from firstlight.bench import bench
from firstlight.bench.vllm_tool import run_vllm_bench
from firstlight.bench.workload import PROFILES, Profile
from firstlight.core.run import Endpoint
from firstlight.core.schema import decode
from firstlight.core.verdict import BenchPoint, BenchReport

RESULTS = ROOT / "bench/results/bench_agreement.json"
LEVELS = (1, 4)
SENT = Profile(name="agreement", input_tokens=64, output_tokens=64, seconds=6.0, concurrency=4)
SAME_REQUESTS = 0.01
FIGURES = ("ttft", "tpot", "itl", "e2el")


def row(engine: str, tool: str, round_: int, p: BenchPoint) -> dict[str, Any]:
    found: dict[str, Any] = {f"{name}_p50_ms": _ms(getattr(p, name).p50) for name in FIGURES}
    found |= {"engine_tpot_p50_ms": _ms(p.engine_tpot_p50)} if p.engine_tpot_p50 else {}
    rate = p.output_tokens / p.seconds if p.seconds else 0.0
    counted = {"requests": p.requests, "failed": p.failed, "prompt_tokens": p.prompt_tokens // max(1, p.requests)}
    named = {"engine": engine, "tool": tool, "round": round_, "users": p.concurrency}
    return {**named, **counted, **found, "tokens_per_second": round(rate, 1)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


async def ours(endpoint: Endpoint, level: int) -> BenchPoint:
    """One level of the built-in sweep, in the form that `vllm bench serve` sends: /completions."""
    bench.FORMS = (("/completions", True),)
    report = await bench.run_bench(endpoint, profile=SENT.name, concurrency=level, force=True)
    return report.points[-1]


def beside_vllm(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with engines.vllm(Path(args.folder), python=args.vllm_python) as endpoint:
        print(f"firstlight bench --tool vllm: {by_command(args, endpoint).headline}", flush=True)
        for round_ in range(args.rounds):
            for level in LEVELS:
                asked = run_vllm_bench(
                    endpoint,
                    python=args.vllm_python,
                    tokenizer=args.folder,
                    profile=SENT.name,
                    concurrency=level,
                    force=True,
                    requests=24 * level,
                    only=level,
                )
                for tool, p in (("vllm bench serve", asked.points[-1]), ("firstlight", asyncio.run(ours(endpoint, level)))):
                    rows.append(shown(row("vllm", tool, round_, p)))
    return rows


def by_command(args: argparse.Namespace, endpoint: Endpoint) -> BenchReport:
    """The adapter as a user calls it: the engine's own tool, its JSON in the same report."""
    argv = [sys.executable, "-m", "firstlight", "bench", endpoint.base_url, "--tool", "vllm", "--engine-python", args.vllm_python]
    argv += ["--tokenizer", args.folder, "--concurrency", "1", "-o", "json"]
    return decode(subprocess.run(argv, capture_output=True, check=True).stdout, BenchReport)


def beside_llamacpp(args: argparse.Namespace) -> list[dict[str, Any]]:
    with engines.llamacpp(Path(args.source), parallel=4) as endpoint:
        pairs = [(r, level) for r in range(args.rounds) for level in LEVELS]
        return [shown(row("llamacpp", "firstlight", r, asyncio.run(ours(endpoint, level)))) for r, level in pairs]


def shown(found: dict[str, Any]) -> dict[str, Any]:
    figures = "  ".join(f"{k.removesuffix('_ms')} {v}" for k, v in found.items() if k.endswith("_ms"))
    print(f"{found['engine']:9} {found['tool']:17} {found['users']} users  {figures}  {found['tokens_per_second']} tok/s", flush=True)
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per figure and level: the median of each tool, their ratio, and how far one tool's own rounds are apart. llama.cpp's clock ran over
    the same requests: there is no noise between two runs, and 1 % is what is allowed.
    """
    found: list[dict[str, Any]] = []
    for level in LEVELS:
        mine = [r for r in rows if r["engine"] == "vllm" and r["tool"] == "firstlight" and r["users"] == level]
        theirs = [r for r in rows if r["engine"] == "vllm" and r["tool"] != "firstlight" and r["users"] == level]
        for name in (*(f"{f}_p50_ms" for f in FIGURES), "tokens_per_second") if mine and theirs else ():
            a, b = ([r[name] for r in side] for side in (mine, theirs))
            noise = max(max(side) / min(side) - 1 for side in (a, b))
            found.append(_pair("vllm", level, name, statistics.median(a), statistics.median(b), noise))
        own = [r for r in rows if r["engine"] == "llamacpp" and r["users"] == level and "engine_tpot_p50_ms" in r]
        if own:
            a, b = ([r[n] for r in own] for n in ("tpot_p50_ms", "engine_tpot_p50_ms"))
            found.append(_pair("llamacpp", level, "tpot_p50_ms", statistics.median(a), statistics.median(b), SAME_REQUESTS))
    return found


def _pair(engine: str, level: int, figure: str, ours: float, theirs: float, noise: float) -> dict[str, Any]:
    difference = round(ours / theirs - 1, 4)
    names = {"engine": engine, "users": level, "figure": figure, "firstlight": round(ours, 3), "other": round(theirs, 3)}
    return {**names, "difference": difference, "rounds_differ": round(noise, 4), "within_noise": abs(difference) <= noise}


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--source", "--vllm-python", "--folder"):
        parser.add_argument(name)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    PROFILES[SENT.name] = SENT
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [r for r in kept if not (args.source and r["engine"] == "llamacpp") and not (args.vllm_python and r["engine"] == "vllm")]
    rows += beside_llamacpp(args) if args.source else []
    rows += beside_vllm(args) if args.vllm_python else []
    found = summary(rows)
    RESULTS.write_text(json.dumps({"sent": "64 tokens in, 64 out, closed loop", "agreement": found, "rows": rows}, indent=1) + "\n")
    print("\n| engine | users | figure | firstlight | the other | difference | rounds differ by | within noise |\n" + "|---" * 8 + "|")
    for f in found:
        word = "yes" if f["within_noise"] else "**no**"
        print(
            f"| {f['engine']} | {f['users']} | {f['figure']} | {f['firstlight']} | {f['other']} | {f['difference']:+.1%} "
            f"| {f['rounds_differ']:.1%} | {word} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
