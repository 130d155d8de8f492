"""The engine's own `vllm bench serve`, run in the engine's environment; its JSON read into the same report."""

import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from firstlight.bench.bench import promises, refuse_incoherent
from firstlight.bench.workload import Profile, input_tokens, levels, profile_named
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.plan import Candidate
from firstlight.core.run import Endpoint
from firstlight.core.verdict import BenchPoint, BenchReport, Percentiles, Verdict

REQUESTS_PER_USER = 4
_FRESH = random.SystemRandom()
SECONDS = 900.0


class Tool(Struct, frozen=True, kw_only=True):
    """How the tool is run. python: of the environment that has vLLM; tokenizer: the model's folder; goodput: limits as `ttft:500`."""

    python: str
    tokenizer: str
    api_key: str | None = None
    goodput: tuple[str, ...] = ()


def run_vllm_bench(
    endpoint: Endpoint,
    *,
    tool: Tool,
    profile: str = "quick",
    concurrency: int | None = None,
    candidate: Candidate | None = None,
    verdict: Verdict | None = None,
    force: bool = False,
    requests: int | None = None,
    only: int | None = None,
) -> BenchReport:
    """One run of `vllm bench serve` a concurrency. only: this level instead of the sweep.

    Raises FirstlightError `vllm-bench-failed` with the tool's last lines.
    """
    refuse_incoherent(verdict, force)
    chosen, started = profile_named(profile), time.perf_counter()
    points = []
    for level in [only] if only else levels(concurrency or chosen.concurrency):
        count = requests or level * REQUESTS_PER_USER
        points.append(read_result(_run(endpoint, tool, chosen, level, count), level))
    single = next((p for p in points if p.concurrency == 1), None)
    rate = single.tokens_per_second_per_user if single else None
    return BenchReport(
        endpoint=endpoint.base_url,
        model=endpoint.model,
        tool="vllm bench serve",
        profile=profile,
        points=points,
        promises=promises(points, candidate),
        forced=force,
        verdict_passed=verdict.passed if verdict else None,
        headline=f"{rate:.0f} tok/s single stream, by vllm bench serve" if rate else None,
        seconds=time.perf_counter() - started,
    )


def command(endpoint: Endpoint, tool: Tool, profile: Profile, level: int, count: int, folder: str) -> list[str]:
    """The tool's command line: random prompts of the profile's lengths, closed loop of `level` users, greedy as the built-in bench asks.

    The tool's own seed is 0: without another one every run sends the prompts of the last, which the prefix cache then holds.
    """
    argv = [tool.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"]
    argv += ["--base-url", endpoint.base_url.removesuffix("/v1"), "--model", endpoint.model, "--served-model-name", endpoint.model]
    argv += ["--tokenizer", tool.tokenizer, "--dataset-name", "random", "--random-input-len", str(input_tokens(profile, endpoint))]
    argv += ["--random-prefix-len", str(profile.shared_tokens)] if profile.shared_tokens else []
    argv += ["--random-output-len", str(profile.output_tokens), "--ignore-eos", "--num-prompts", str(count)]
    argv += ["--max-concurrency", str(level), "--request-rate", "inf", "--percentile-metrics", "ttft,tpot,itl,e2el"]
    argv += ["--temperature", "0", "--seed", str(_FRESH.randrange(1 << 31))]
    argv += ["--goodput", *tool.goodput] if tool.goodput else []
    return [*argv, "--metric-percentiles", "50,90,99", "--save-result", "--result-dir", folder, "--result-filename", "result.json"]


def _run(endpoint: Endpoint, tool: Tool, profile: Profile, level: int, count: int) -> dict[str, Any]:
    if not Path(tool.python).exists():
        raise UsageError("no-engine-python", f"{tool.python} does not exist", hint="--engine-python PATH, of an environment with vLLM")
    own = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **({"OPENAI_API_KEY": tool.api_key} if tool.api_key else {})}
    with tempfile.TemporaryDirectory() as folder:
        argv = command(endpoint, tool, profile, level, count, folder)
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **own}, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise FirstlightError("vllm-bench-failed", "vllm bench serve did not run to its end", evidence=(str(e),)) from None
        result = Path(folder) / "result.json"
        if done.returncode or not result.exists():
            last = tuple((done.stderr or done.stdout).strip().splitlines()[-6:])
            raise FirstlightError("vllm-bench-failed", f"vllm bench serve ended with {done.returncode}", evidence=last)
        loaded: dict[str, Any] = json.loads(result.read_text())
        return loaded


def read_result(result: dict[str, Any], concurrency: int) -> BenchPoint:
    """The tool's JSON (milliseconds) as a point (seconds)."""
    seconds = float(result["duration"])
    tpot = _percentiles(result, "tpot")
    return BenchPoint(
        concurrency=concurrency,
        requests=result["completed"] + result.get("failed", 0),
        failed=result.get("failed", 0),
        seconds=seconds,
        prompt_tokens=result["total_input_tokens"],
        output_tokens=result["total_output_tokens"],
        ttft=_percentiles(result, "ttft"),
        tpot=tpot,
        itl=_percentiles(result, "itl"),
        e2el=_percentiles(result, "e2el"),
        tokens_per_second_total=result["output_throughput"],
        tokens_per_second_per_user=1 / tpot.p50 if tpot.p50 else None,
        goodput=result.get("request_goodput"),
    )


def _percentiles(result: dict[str, Any], name: str) -> Percentiles:
    def seconds(key: str) -> float | None:
        value = result.get(f"{key}_{name}_ms")
        return None if value is None else value / 1000

    return Percentiles(p50=seconds("p50") or seconds("median"), p90=seconds("p90"), p99=seconds("p99"), mean=seconds("mean"))
