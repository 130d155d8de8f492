"""The built-in bench beside `vllm bench serve` on vLLM, and beside llama.cpp's own timings of the very same requests.

    python bench/bench_agreement.py [--source DEMO.gguf] [--vllm-python PYTHON --folder MODEL_FOLDER [--endpoint URL --model NAME]]
        [--rounds N] [--users 1 4] [--requests-a-user 5] [--looks] [--lock FILE] [--results FILE]

On vLLM both tools take turns on one server with requests of one kind (/completions, greedy, fresh random words, equal lengths), and change
who begins from round to round: what differs between two rounds of one tool is the machine's noise, and the tools must not differ by more.
llama.cpp tells its own clock with each answer, so that no second run is needed. --lock is held while one pair is measured. --looks: what
reading vLLM's gauges at the same time costs, also measured in turns. --endpoint: a vLLM that serves already, instead of one started here on
the CPU. Writes bench/results/bench_agreement.json, or --results.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import argparse
import asyncio
import json
import statistics
import subprocess
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from alone import alone
from corrupt import engines

from firstlight.bench import bench, metrics
from firstlight.bench.vllm_tool import Tool, run_vllm_bench
from firstlight.bench.workload import PROFILES, Profile
from firstlight.core.run import Endpoint
from firstlight.core.schema import decode
from firstlight.core.verdict import BenchPoint, BenchReport

RESULTS = ROOT / "bench/results/bench_agreement.json"
SENT = Profile(name="agreement", input_tokens=64, output_tokens=64, seconds=12.0, concurrency=4)
SAME_REQUESTS = 0.01
FIGURES = ("ttft", "tpot", "itl", "e2el")
# way -> seconds between two looks at least, and the share of the time that looking may take.
LOOKS = {
    "none": (1e9, 1.0),
    "as shipped": (metrics.EVERY_SECONDS, metrics.LARGEST_SHARE),
    "4 a second": (0.25, 1.0),
    "20 a second": (0.05, 1.0),
}


def row(engine: str, tool: str, round_: int, p: BenchPoint) -> dict[str, Any]:
    found: dict[str, Any] = {f"{name}_p50_ms": _ms(getattr(p, name).p50) for name in FIGURES}
    found |= {"engine_tpot_p50_ms": _ms(p.engine_tpot_p50)} if p.engine_tpot_p50 else {}
    rate = p.output_tokens / p.seconds if p.seconds else 0.0
    counted = {"requests": p.requests, "failed": p.failed, "prompt_tokens": p.prompt_tokens // max(1, p.requests)}
    named = {"engine": engine, "tool": tool, "round": round_, "users": p.concurrency}
    return {**named, **counted, **found, "tokens_per_second": round(rate, 1)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def ours(args: argparse.Namespace, endpoint: Endpoint, level: int) -> BenchPoint:
    """One level of the built-in sweep, in the form that `vllm bench serve` sends: /completions."""
    bench.FORMS = (("/completions", True),)
    bench.levels = lambda planned: [planned]
    report = asyncio.run(bench.run_bench(endpoint, profile=SENT.name, concurrency=level, force=True))
    return report.points[-1]


def theirs(args: argparse.Namespace, endpoint: Endpoint, level: int) -> BenchPoint:
    count = args.requests_a_user * level
    tool = Tool(python=args.vllm_python, tokenizer=args.folder)
    return run_vllm_bench(endpoint, tool=tool, profile=SENT.name, concurrency=level, force=True, requests=count, only=level).points[-1]


def served(args: argparse.Namespace) -> AbstractContextManager[Endpoint]:
    if not args.endpoint:
        return engines.vllm(Path(args.folder), python=args.vllm_python)
    return nullcontext(Endpoint(base_url=args.endpoint, model=args.model, engine="vllm", max_model_len=None))


def beside_vllm(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    tools = [("firstlight", ours), ("vllm bench serve", theirs)]
    with served(args) as endpoint:
        rows += beside_itself(args, endpoint) if args.looks else []
        if not args.endpoint:
            print(f"firstlight bench --tool vllm: {by_command(args, endpoint).headline}", flush=True)
        for round_ in range(args.rounds):
            for level in args.users:
                with alone(args.lock):
                    rows += [shown(row("vllm", tool, round_, measure(args, endpoint, level))) for tool, measure in tools]
            tools.reverse()
    return rows


def beside_itself(args: argparse.Namespace, endpoint: Endpoint) -> list[dict[str, Any]]:
    """The built-in bench with four users and other ways of looking at the gauges, the order turned by one from round to round."""
    rows, ways, level = [], list(LOOKS), args.users[-1]
    own = metrics.EVERY_SECONDS, metrics.LARGEST_SHARE
    ours(args, endpoint, level)
    for round_ in range(args.rounds):
        for way in ways:
            metrics.EVERY_SECONDS, metrics.LARGEST_SHARE = LOOKS[way]
            with alone(args.lock):
                rows.append(shown(row("vllm", f"looks: {way}", round_, ours(args, endpoint, level))))
        ways.append(ways.pop(0))
    metrics.EVERY_SECONDS, metrics.LARGEST_SHARE = own
    return rows


def by_command(args: argparse.Namespace, endpoint: Endpoint) -> BenchReport:
    """The adapter as a user calls it: the engine's own tool, its JSON in the same report."""
    argv = [sys.executable, "-m", "firstlight", "bench", endpoint.base_url, "--tool", "vllm", "--engine-python", args.vllm_python]
    argv += ["--tokenizer", args.folder, "--concurrency", "1", "-o", "json"]
    return decode(subprocess.run(argv, capture_output=True, check=True).stdout, BenchReport)


def beside_llamacpp(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with engines.llamacpp(Path(args.source), parallel=4) as endpoint:
        for round_, level in ((r, level) for r in range(args.rounds) for level in args.users):
            with alone(args.lock):
                rows.append(shown(row("llamacpp", "firstlight", round_, ours(args, endpoint, level))))
    return rows


def shown(found: dict[str, Any]) -> dict[str, Any]:
    figures = "  ".join(f"{k.removesuffix('_ms')} {v}" for k, v in found.items() if k.endswith("_ms"))
    print(f"{found['engine']:9} {found['tool']:17} {found['users']} users  {figures}  {found['tokens_per_second']} tok/s", flush=True)
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per figure and level: the median of each tool, how far its own rounds are apart, and the difference of the two. llama.cpp's clock ran
    over the same requests: there is no noise between two runs, and 1 % is what is allowed.
    """
    found: list[dict[str, Any]] = []
    for level in sorted({r["users"] for r in rows}):
        mine = [r for r in rows if r["engine"] == "vllm" and r["tool"] == "firstlight" and r["users"] == level]
        other = [r for r in rows if r["engine"] == "vllm" and r["tool"] == "vllm bench serve" and r["users"] == level]
        for name in (*(f"{f}_p50_ms" for f in FIGURES), "tokens_per_second") if mine and other else ():
            found.append(_pair("vllm", level, name, [r[name] for r in mine], [r[name] for r in other]))
        own = [r for r in rows if r["engine"] == "llamacpp" and r["users"] == level and "engine_tpot_p50_ms" in r]
        if own:
            a, b = ([r[n] for r in own] for n in ("tpot_p50_ms", "engine_tpot_p50_ms"))
            found.append(_pair("llamacpp", level, "tpot_p50_ms", a, b, allowed=SAME_REQUESTS))
    return found


def _pair(engine: str, level: int, figure: str, ours: list[float], theirs: list[float], allowed: float | None = None) -> dict[str, Any]:
    mine, other = statistics.median(ours), statistics.median(theirs)
    spread = [round(max(side) / min(side) - 1, 4) for side in (ours, theirs)]
    difference = round(mine / other - 1, 4)
    names = {"engine": engine, "users": level, "figure": figure, "firstlight": round(mine, 3), "other": round(other, 3)}
    noise = {"firstlight_rounds_differ": spread[0], "other_rounds_differ": spread[1]}
    return {**names, "difference": difference, **noise, "within_noise": abs(difference) <= (allowed or max(spread))}


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--source", "--vllm-python", "--folder", "--endpoint", "--model", "--lock"):
        parser.add_argument(name)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requests-a-user", type=int, default=5, help="of vllm bench serve; the built-in bench sends for 12 s")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--looks", action="store_true")
    args = parser.parse_args()
    PROFILES[SENT.name] = SENT
    kept = json.loads(args.results.read_text())["rows"] if args.results.exists() else []
    rows = [r for r in kept if not (args.source and r["engine"] == "llamacpp") and not (args.vllm_python and r["engine"] == "vllm")]
    rows += beside_llamacpp(args) if args.source else []
    rows += beside_vllm(args) if args.vllm_python else []
    found = summary(rows)
    args.results.write_text(json.dumps({"sent": "64 tokens in, 64 out, closed loop", "agreement": found, "rows": rows}, indent=1) + "\n")
    head = "engine | users | figure | firstlight | the other | difference | rounds of firstlight | of the other | within noise"
    for way in LOOKS:
        mine = [r for r in rows if r["tool"] == f"looks: {way}"]
        medians = {n: statistics.median(r[n] for r in mine) for n in ("tpot_p50_ms", "itl_p50_ms", "tokens_per_second")} if mine else {}
        print(f"looks: {way:12} {medians}  rounds {[r['tpot_p50_ms'] for r in mine]}")
    print(f"\n| {head} |\n" + "|---" * 9 + "|")
    for f in found:
        cells = [f["engine"], f["users"], f["figure"], f["firstlight"], f["other"], f"{f['difference']:+.1%}"]
        cells += [f"{f[n]:.1%}" for n in ("firstlight_rounds_differ", "other_rounds_differ")]
        print("|", " | ".join(map(str, cells)), "|", "yes" if f["within_noise"] else "**no**", "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
