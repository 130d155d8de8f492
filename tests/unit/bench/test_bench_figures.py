"""Figures from time stamps, gauges from text, the tool's JSON, comparisons, refusals: the pure parts of bench."""

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from firstlight.app.benching import slo_of
from firstlight.bench import metrics
from firstlight.bench.bench import headline, promises, refuse_incoherent
from firstlight.bench.client import Record, Target
from firstlight.bench.compare import compare
from firstlight.bench.figures import Slo, e2el, itl, missed, percentile, point, tpot, ttft
from firstlight.bench.metrics import Sampler, pause, read_gauges
from firstlight.bench.vllm_tool import Tool, command, read_result
from firstlight.bench.workload import PROFILES, Prompts, levels, profile_named
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import Candidate, EngineRef, Predicted
from firstlight.core.run import Endpoint
from firstlight.core.verdict import BenchPoint, BenchReport, CheckResult, Percentiles, Verdict


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share * 100)), rel=1e-9, abs=1e-9)


def record(started: float, times: list[float], tokens: int | None = None, error: str | None = None) -> Record:
    end = times[-1] if times else started + 1
    return Record(started=started, times=times, finished=end, output_tokens=tokens, prompt_tokens=10, error=error)


def test_the_fields_latencies_by_their_definitions() -> None:
    r = record(1.0, [1.5, 1.6, 1.8, 2.0], tokens=6)
    assert ttft(r) == pytest.approx(0.5)
    assert tpot(r) == pytest.approx(0.1), "0.5 s over the 5 tokens after the first, by the server's count"
    assert itl(r) == pytest.approx([0.1, 0.2, 0.2])
    assert e2el(r) == pytest.approx(1.0)


def test_a_level_counts_failures_apart_and_rates_over_its_whole_time() -> None:
    records = [record(0.0, [0.2, 0.4, 0.6], tokens=3), record(0.0, [0.3, 1.0, 2.0], tokens=3), record(0.5, [], error="status 500")]
    p = point(records, 2, slo=Slo(ttft=0.25))
    assert (p.requests, p.failed, p.output_tokens, p.prompt_tokens) == (3, 1, 6, 20)
    assert p.error == "status 500"
    assert p.seconds == pytest.approx(2.0)
    assert p.tokens_per_second_total == pytest.approx(3.0)
    assert p.goodput == pytest.approx(0.5), "one of three kept the limit, in two seconds"
    assert missed(p, Slo(ttft=0.25))
    assert not missed(p, Slo(ttft=0.3))


def test_an_empty_level_is_unknown_not_zero() -> None:
    p = point([record(0.0, [], error="x")], 1)
    assert p.ttft.p50 is None
    assert p.tokens_per_second_per_user is None
    assert headline([record(0.0, [], error="x")]) is None


def test_the_first_users_line() -> None:
    times = [0.5 + i / 60 for i in range(107)]
    assert headline([record(0.0, times, tokens=107)]) == "107 tokens in 2.3 s, 60 tok/s single stream"


async def test_looks_at_gauges_are_as_far_apart_as_the_level_is_old_and_then_take_a_hundredth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0

    async def slow(target: Target, path: str) -> tuple[int, str]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.03)
        return 200, "vllm:kv_cache_usage_perc 0.5\n"

    monkeypatch.setattr(metrics, "plain_get", slow)
    monkeypatch.setattr(metrics, "EVERY_SECONDS", 0.05)
    async with Sampler(Target.of("http://127.0.0.1:1/v1")) as gauges:
        await asyncio.sleep(0.5)
    assert reads <= 5, "before, at 0.05, 0.16 and 0.38 s, and after"
    assert gauges.kv in (0.5, None)
    monkeypatch.undo()
    assert [pause(took, 60.0) for took in (0.0, 0.0005, 0.03)] == [0.25, 0.25, pytest.approx(3.0)]
    assert [pause(0.03, elapsed) for elapsed in (0.1, 0.5, 2.0)] == [0.25, 0.5, 2.0]


def test_levels_are_powers_of_two_up_to_the_planned_one() -> None:
    assert [levels(n) for n in (1, 2, 4, 6, 8)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_prompts_share_only_what_the_profile_says() -> None:
    for name, shared in (("quick", False), ("agents", True)):
        prompts = Prompts(profile_named(name), "m", chat=False, input_tokens=64, seed=1)
        a, b = prompts.body(), prompts.body()
        assert (a[:400] == b[:400]) is shared
        assert a != b
    assert {p.name for p in PROFILES.values()} == set(PROFILES)


VLLM = """# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="demo"} 2.0
vllm:num_preemptions_total{engine="1",model_name="demo"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="demo"} 0.75
"""


def test_gauges_of_both_engines() -> None:
    assert read_gauges(VLLM) == (5, 0.75)
    assert read_gauges("llamacpp:requests_processing 1\nllamacpp:kv_cache_usage_ratio 0.5\n") == (None, 0.5)
    assert read_gauges("nothing here") == (None, None)


def verdict(**checks: bool) -> Verdict:
    results = [CheckResult(name=n, group="coherence", passed=ok, evidence=["why"]) for n, ok in checks.items()]
    return Verdict(passed=all(checks.values()), endpoint="e", checks=results)


def test_speed_without_sense_is_refused_with_exit_6() -> None:
    refuse_incoherent(verdict(a=True), force=False)
    refuse_incoherent(None, force=True)
    for bad, code in ((None, "not-verified"), (verdict(a=True, b=False), "not-coherent"), (verdict(), "not-coherent")):
        with pytest.raises(FirstlightError) as error:
            refuse_incoherent(bad, force=False)
        assert (error.value.code, error.value.exit_code) == (code, Exit.VERIFICATION_FAILED)


def test_figures_of_a_model_that_is_not_served_are_refused() -> None:
    sense = CheckResult(name="known-answers", group="coherence", passed=True)
    absent = CheckResult(name="models", group="contract", passed=False, evidence=["1 listed: other"])
    with pytest.raises(FirstlightError) as error:
        refuse_incoherent(Verdict(passed=False, endpoint="e", checks=[sense, absent]), force=False)
    assert error.value.evidence == ("models: 1 listed: other",)


def test_promises_stand_next_to_what_was_measured() -> None:
    bound = Figure(low=90, mid=100, high=110, rung=Rung.COMPUTED)
    seconds = Figure.exact(1.0, Rung.COMPUTED)
    predicted = Predicted(load_seconds=seconds, decode_tokens_per_second_upper_bound=bound, ready_seconds=seconds)
    candidate = Candidate(engine=EngineRef(name="vllm"), predicted=predicted)
    measured = point([record(0.0, [0.1 + i * 0.0125 for i in range(9)], tokens=9)], 1)
    (promise,) = promises([measured], candidate)
    assert promise.promised is bound
    assert promise.measured.rung is Rung.MEASURED
    assert promise.measured.mid == pytest.approx(80)
    assert promise.because == "80% of the roofline"
    assert promises([measured], None) == []


RESULT = {
    "duration": 4.0,
    "completed": 4,
    "failed": 1,
    "total_input_tokens": 256,
    "total_output_tokens": 128,
    "output_throughput": 32.0,
    **{f"{k}_{m}_ms": v for m in ("ttft", "tpot", "itl", "e2el") for k, v in (("mean", 20.0), ("p50", 10.0), ("p90", 30.0), ("p99", 40.0))},
}


def test_vllm_bench_serves_json_becomes_a_point_in_seconds() -> None:
    p = read_result(RESULT, 2)
    assert (p.concurrency, p.requests, p.failed, p.tokens_per_second_total) == (2, 5, 1, 32.0)
    assert (p.tpot.p50, p.e2el.p99, p.ttft.mean) == (0.01, 0.04, 0.02)
    assert p.tokens_per_second_per_user == pytest.approx(100)


def test_vllm_bench_is_called_in_its_own_environment_with_the_profiles_lengths() -> None:
    tool = Tool(python="/env/bin/python", tokenizer="/models/m", goodput=("ttft:500", "tpot:50"))
    argv = command(Endpoint(base_url="http://h:1/v1", model="m", max_model_len=4096), tool, profile_named("quick"), 4, 16, "/out")
    assert argv[:6] == ["/env/bin/python", "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend"]
    pairs = dict(pairwise(argv))
    assert pairs["--base-url"] == "http://h:1"
    assert pairs["--max-concurrency"] == "4"
    assert pairs["--random-output-len"] == str(PROFILES["quick"].output_tokens)
    assert pairs["--temperature"] == "0"
    assert "--random-prefix-len" not in pairs
    assert argv[argv.index("--goodput") + 1 :][:3] == ["ttft:500", "tpot:50", "--metric-percentiles"]


def test_vllm_bench_gets_shared_beginnings_and_shares_of_the_context_as_the_built_in_bench_sends_them() -> None:
    endpoint, tool = Endpoint(base_url="http://h:1/v1", model="m", max_model_len=4096), Tool(python="python", tokenizer="/models/m")
    agents, long = (dict(pairwise(command(endpoint, tool, profile_named(n), 1, 4, "/out"))) for n in ("agents", "long-context"))
    assert (agents["--random-prefix-len"], agents["--random-input-len"]) == ("1536", "512")
    assert long["--random-input-len"] == "2048"
    assert "--goodput" not in long


def test_vllm_bench_sends_other_prompts_each_time() -> None:
    """With its own seed, which is always 0, a second run would be answered from the prefix cache."""
    endpoint = Endpoint(base_url="http://h:1/v1", model="m")
    tool = Tool(python="python", tokenizer="/models/m")
    runs = [dict(pairwise(command(endpoint, tool, profile_named("quick"), 4, 16, "/out"))) for _ in range(2)]
    assert runs[0]["--seed"] != runs[1]["--seed"]


def report(rate: float, **more: Any) -> BenchReport:
    p = Percentiles(p50=1 / rate)
    at = BenchPoint(
        concurrency=1, requests=1, failed=0, seconds=1, prompt_tokens=1, output_tokens=1, ttft=p, tpot=p, itl=p, e2el=p,
        tokens_per_second_total=rate, tokens_per_second_per_user=rate,
    )  # fmt: skip
    return BenchReport(endpoint="e", model="m", tool="builtin", profile="quick", **{"points": [at], **more})


def test_compare_says_better_worse_or_equal_within_noise() -> None:
    by_name = {c.figure: c for c in compare(report(100), report(120)).changes}
    assert by_name["tokens_per_second_total"].better is True
    assert by_name["tpot_p50"].better is True
    assert by_name["tokens_per_second_total"].ratio == pytest.approx(1.2)
    assert {c.better for c in compare(report(100), report(101)).changes} == {None}
    few = "1 users: 1 and 1 requests: so few differ by chance"
    assert compare(report(100), report(100, forced=True)).differs == [few, "B was measured without passed coherence"]
    assert compare(report(100), report(100, points=[])).differs == ["no number of users was measured in both"]


def test_a_comparison_tells_of_requests_that_failed() -> None:
    whole = report(100)
    broken = structs.replace(whole, points=[structs.replace(whole.points[0], requests=8, failed=3)])
    assert "B, 1 users: 3 of 8 requests failed" in compare(whole, broken).differs


def test_goodput_limits_are_read_as_vllm_reads_them() -> None:
    assert slo_of(("ttft:500", "tpot:50")) == Slo(ttft=0.5, tpot=0.05)
    assert slo_of(()) is None
    with pytest.raises(UsageError):
        slo_of(("latency:5",))
    with pytest.raises(UsageError):
        slo_of(("ttft:²",))
