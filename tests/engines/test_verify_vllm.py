"""Verify against vLLM on the CPU with the same real weights. Few starts, half a minute each; bench/verify.py runs the whole table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from corrupt import hf_folder
from corrupt.engines import vllm

from firstlight.bench.bench import run_bench
from firstlight.core.run import Endpoint
from firstlight.verify.claimed import claims_for
from firstlight.verify.session import Claims
from firstlight.verify.verify import save_reference, verify

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
BUDGET = 240.0
BY_EXAMPLE = Path(hf_folder.__file__).with_name("templates") / "by_example.jinja"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def healthy(demo_gguf: Path, vllm_python: str, folders: Path) -> Iterator[Endpoint]:
    with vllm(hf_folder.make(demo_gguf, folders, "healthy"), python=vllm_python) as endpoint:
        yield endpoint


async def test_the_healthy_model_passes_the_full_contract(healthy: Endpoint) -> None:
    verdict = await verify(healthy, profile="full", budget_seconds=BUDGET)
    assert [c for c in verdict.checks if not c.passed and not c.skipped] == []
    assert verdict.passed
    assert "refuses n = 2" in (next(c for c in verdict.checks if c.name == "n").note or "")


async def test_a_missing_tool_parser_is_named(healthy: Endpoint) -> None:
    verdict = await verify(healthy, checks=["tools"], claims=Claims(tools=True))
    tools = next(c for c in verdict.checks if c.name == "tools")
    assert not tools.passed
    assert tools.evidence[0].startswith("tool-parser-missing")


async def test_reasoning_and_tool_calls_of_a_models_own_text_come_parsed(demo_gguf: Path, vllm_python: str, folders: Path) -> None:
    """The demo is shown both by two answers before each question; vLLM's hermes and olmo3 parsers read what it writes. Those answers put
    end marks into the prompt, which olmo3 takes for this answer's own when it streams: known of vLLM, and told as that.
    """
    names = ["tools", "reasoning"]
    parsers = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "olmo3")
    flags = ("--chat-template", str(BY_EXAMPLE), *parsers)
    with vllm(hf_folder.make(demo_gguf, folders, "healthy"), python=vllm_python, extra=flags) as endpoint:
        verdict = await verify(endpoint, profile="full", checks=names, budget_seconds=BUDGET, claims=claims_for(None, flags))
    found = {c.name: c for c in verdict.checks if c.name in names}
    assert verdict.passed
    assert found["tools"].evidence[0] == 'called get_weather({"city": "Paris"})'
    assert "characters of reasoning, answer" in found["reasoning"].evidence[0]
    assert "known deviation: its olmo3 parser" in (found["reasoning"].note or "")


async def test_bench_reads_vllms_gauges(healthy: Endpoint) -> None:
    verdict = await verify(healthy, checks=["known-answers"])
    report = await run_bench(healthy, concurrency=2, verdict=verdict)
    assert report.points
    assert all(p.failed == 0 and p.preemptions == 0 for p in report.points)
    assert any(p.kv_cache_usage for p in report.points)


async def test_damage_is_found_gross_alone_and_mild_against_the_reference(
    healthy: Endpoint, demo_gguf: Path, vllm_python: str, folders: Path
) -> None:
    trusted = await save_reference(healthy)
    assert (await verify(healthy, checks=["reference"], trusted=trusted)).passed
    with vllm(hf_folder.make(demo_gguf, folders, "layer-scale-10pct"), python=vllm_python) as endpoint:
        mild = await verify(endpoint, checks=["known-answers"], trusted=trusted)
    assert {c.name for c in mild.checks if not c.passed and not c.skipped} == {"reference"}
    with vllm(hf_folder.make(demo_gguf, folders, "kv-swapped"), python=vllm_python) as endpoint:
        gross = await verify(endpoint, checks=["known-answers"])
    assert not gross.passed


async def test_transformers_on_the_cpu_gives_the_same_distributions(
    healthy: Endpoint, demo_gguf: Path, vllm_python: str, folders: Path
) -> None:
    from firstlight.verify.trusted import reference_of_folder

    trusted = reference_of_folder(str(hf_folder.make(demo_gguf, folders, "healthy")), vllm_python)
    verdict = await verify(healthy, checks=["reference"], trusted=trusted)
    assert verdict.passed
