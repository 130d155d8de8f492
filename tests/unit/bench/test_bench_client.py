"""The streaming client and the sweep against real servers on loopback."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from corrupt.engines import free_port, process

from firstlight.app.cli.bench import command
from firstlight.bench.bench import run_bench
from firstlight.bench.client import Record, Target, User
from firstlight.bench.workload import PROFILES
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.run import Endpoint
from firstlight.core.schema import decode, encode
from firstlight.core.verdict import BenchPoint, BenchReport

SERVER = Path(__file__).with_name("bench_stream.py")


@contextmanager
def stream(chunks: int, apart: float, kind: str = "plain") -> Iterator[Endpoint]:
    port = free_port()
    with process([sys.executable, str(SERVER), str(port), str(chunks), str(apart), kind], port):
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="demo")


async def ask(endpoint: Endpoint, count: int = 1) -> list[Record]:
    user = User(Target.of(endpoint.base_url))
    records = [await user.send("/chat/completions", b'{"stream": true}', seconds=20) for _ in range(count)]
    user.close()
    return records


@pytest.mark.parametrize("kind", ["plain", "split", "counted", "closing"])
async def test_every_framing_gives_the_same_record(kind: str) -> None:
    with stream(20, 0.001, kind) as endpoint:
        records = await ask(endpoint, 2)
    for r in records:
        assert r.error is None
        assert len(r.times) == 20
        assert r.times == sorted(r.times)
        assert (r.prompt_tokens, r.output_tokens, r.finish_reason) == (7, 40, "stop")
        assert r.started < r.times[0] <= r.times[-1] <= r.finished


async def test_time_stamps_are_the_servers_pace() -> None:
    with stream(10, 0.05) as endpoint:
        (r,) = await ask(endpoint)
    gaps = [b - a for a, b in zip(r.times, r.times[1:], strict=False)]
    assert len(gaps) == 9
    assert 0.045 < sorted(gaps)[4] < 0.12


async def test_failures_are_in_the_record() -> None:
    with stream(9, 0.01, "dying") as endpoint:
        (r,) = await ask(endpoint)
    assert r.error
    assert "connection lost" in r.error
    with stream(9, 0.01, "refusing") as endpoint:
        (r,) = await ask(endpoint)
    assert r.error
    assert r.error.startswith("status 503")
    (r,) = await ask(Endpoint(base_url=f"http://127.0.0.1:{free_port()}/v1", model="x"))
    assert r.error
    assert "ConnectionRefusedError" in r.error


async def test_a_request_that_does_not_end_in_time_is_cut() -> None:
    with stream(1000, 0.02) as endpoint:
        user = User(Target.of(endpoint.base_url))
        r = await user.send("/chat/completions", b'{"stream": true}', seconds=0.3)
    assert r.error == "no end within 0 s"
    assert len(r.times) > 3


async def test_the_sweep_goes_up_to_the_planned_concurrency_and_reads_the_gauges() -> None:
    shown: list[BenchPoint] = []
    with stream(5, 0.01) as endpoint:
        report = await run_bench(endpoint, force=True, concurrency=4, on_point=shown.append)
    assert [p.concurrency for p in report.points] == [1, 2, 4]
    assert shown == report.points
    assert all(p.failed == 0 and p.preemptions == 0 and p.kv_cache_usage == 0.5 for p in report.points)
    assert report.forced
    assert report.headline
    assert report.headline.startswith("10 tokens in 0.")
    assert report.client_cost["chunks"] == sum(p.requests for p in report.points) * 5
    assert report.seconds < 3 * PROFILES["quick"].seconds + 3
    assert decode(encode(report), BenchReport) == report


async def test_an_endpoint_that_gives_no_stream_is_an_error() -> None:
    with stream(5, 0.01, "refusing") as endpoint, pytest.raises(FirstlightError) as error:
        await run_bench(endpoint, force=True)
    assert error.value.code == "bench-no-answer"


def test_the_command_writes_a_report_and_compares_two(tmp_path: Path) -> None:
    with stream(5, 0.005) as endpoint:
        args = [endpoint.base_url, "--model", "demo", "--force", "--concurrency", "1"]
        result = CliRunner().invoke(command, [*args, "-o", "json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["kind"], document["forced"]) == ("BenchReport", True)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(result.stdout)
    result = CliRunner().invoke(command, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 0
    assert "equal" in result.stdout
    assert "without passed coherence" in result.stdout


def test_a_level_of_which_nothing_came_ends_the_sweep_and_is_exit_5() -> None:
    with stream(5, 0.005, "tiring") as endpoint:
        result = CliRunner().invoke(command, [endpoint.base_url, "--model", "demo", "--force", "--concurrency", "4"], standalone_mode=False)
    assert result.return_value == Exit.ENGINE_FAILED
    assert "failed: status 503: " in result.stdout
    levels = [line.split()[0] for line in result.stdout.splitlines() if line[:5].strip().isdigit()]
    assert levels == ["1", "2"]


async def test_a_server_that_does_not_know_ignore_eos_is_measured_all_the_same() -> None:
    with stream(5, 0.005, "strict") as endpoint:
        report = await run_bench(endpoint, force=True, concurrency=1)
    assert report.points[0].failed == 0
