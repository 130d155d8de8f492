"""Verify against llama.cpp with real weights: healthy ones pass, damaged ones do not, mild damage shows against a reference."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from corrupt import gguf_models
from corrupt.engines import liar, llamacpp

from firstlight.app.cli.verify import command
from firstlight.bench.bench import run_bench
from firstlight.core.run import Endpoint
from firstlight.core.verdict import Verdict
from firstlight.verify.blame import Knob, find_culprit
from firstlight.verify.session import Claims
from firstlight.verify.verify import save_reference, verify

pytestmark = pytest.mark.llamacpp
BUDGET = 120.0


@pytest.fixture(scope="module")
def demo(demo_gguf: Path) -> Iterator[Endpoint]:
    with llamacpp(demo_gguf) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def failed(verdict: Verdict) -> set[str]:
    return {c.name for c in verdict.checks if not c.passed and not c.skipped}


async def test_the_demo_passes_with_its_engines_deviations_shown(demo: Endpoint) -> None:
    verdict = await verify(demo, budget_seconds=BUDGET, claims=Claims(json_schema=True))
    assert failed(verdict) == set()
    assert verdict.passed
    notes = {c.name: c.note or "" for c in verdict.checks}
    assert notes["errors"].startswith("known deviation: ")
    assert all(not c.skipped for c in verdict.checks if c.group != "claims")


async def test_options_and_json_schema_hold_on_the_demo(demo: Endpoint) -> None:
    names = ["n", "seed", "unicode-borders", "long-request", "json-schema", "prefix-cache"]
    verdict = await verify(demo, profile="full", checks=names, budget_seconds=BUDGET, claims=Claims(json_schema=True))
    assert failed(verdict) == set()
    assert {c.name for c in verdict.checks if not c.skipped} >= set(names)


BY_EXAMPLE = Path(gguf_models.__file__).with_name("templates") / "by_example.jinja"


async def test_reasoning_and_tool_calls_of_a_models_own_text_come_parsed(demo_gguf: Path) -> None:
    """The demo is shown both by two answers before each question; llama.cpp's own parsers read what it writes."""
    names = ["tools", "reasoning"]
    with llamacpp(demo_gguf, extra=("--chat-template-file", str(BY_EXAMPLE))) as endpoint:
        verdict = await verify(endpoint, profile="full", checks=names, budget_seconds=BUDGET, claims=Claims(tools=True, reasoning=True))
    found = {c.name: c for c in verdict.checks if c.name in names}
    assert verdict.passed
    assert found["tools"].evidence[0] == 'called get_weather({"city": "Paris"})'
    assert "streamed as well" in found["reasoning"].evidence[0]


async def test_reasoning_that_is_left_in_the_answer_is_named(demo_gguf: Path) -> None:
    with llamacpp(demo_gguf, extra=("--chat-template-file", str(BY_EXAMPLE), "--reasoning-format", "none")) as endpoint:
        verdict = await verify(endpoint, checks=["reasoning"], claims=Claims(reasoning=True))
    reasoning = next(c for c in verdict.checks if c.name == "reasoning")
    assert reasoning.evidence[0].startswith("reasoning-parser-missing")


async def test_embeddings_of_the_embedded_server(demo_gguf: Path) -> None:
    with llamacpp(demo_gguf, extra=("--embeddings", "--pooling", "mean")) as endpoint:
        verdict = await verify(endpoint, claims=Claims(kind="embedding"))
    assert verdict.passed
    assert "576 dimensions" in next(c for c in verdict.checks if c.name == "embeddings").evidence[0]


@pytest.mark.parametrize("name", ["kv-swapped", "tokenizer-off-by-one", "template-llama3"])
async def test_gross_damage_fails_coherence(name: str, demo_gguf: Path, made: Path) -> None:
    with llamacpp(gguf_models.make(demo_gguf, made, name)) as endpoint:
        verdict = await verify(endpoint, checks=["known-answers"])
    assert "known-answers" in failed(verdict)
    answers = next(c for c in verdict.checks if c.name == "known-answers")
    if name.startswith("template"):
        assert answers.note
        assert "chat template of another family" in answers.note
    else:
        assert "trivial-continuations" in failed(verdict)


@pytest.mark.parametrize(("kind", "check"), [("garble", "prefill-against-decode"), ("crossed", "parallel")])
async def test_a_spoiling_proxy_is_found(kind: str, check: str, demo: Endpoint) -> None:
    with liar(kind, upstream=demo) as endpoint:
        verdict = await verify(endpoint, checks=[check], budget_seconds=BUDGET)
    assert check in failed(verdict)


async def test_mild_damage_is_found_against_a_reference_and_not_without(demo: Endpoint, demo_gguf: Path, made: Path) -> None:
    trusted = await save_reference(demo)
    again = await verify(demo, checks=["reference"], trusted=trusted)
    assert again.passed
    with llamacpp(gguf_models.make(demo_gguf, made, "layer-scale-10pct")) as endpoint:
        verdict = await verify(endpoint, checks=["known-answers"], trusted=trusted)
    assert failed(verdict) == {"reference"}


async def test_blame_names_a_template_that_was_set(demo: Endpoint, demo_gguf: Path, tmp_path: Path) -> None:
    template = tmp_path / "wrong.jinja"
    template.write_text(gguf_models.LLAMA3_TEMPLATE)
    with llamacpp(demo_gguf, extra=("--chat-template-file", str(template))) as wrong:
        verdict = await verify(wrong, checks=["known-answers"])
    assert "known-answers" in failed(verdict)

    async def relaunch(knob: Knob) -> Endpoint | None:
        return demo if any(c.field == "--chat-template-file" for c in knob.constraints) else None

    async def ask(endpoint: Endpoint, names: object) -> Verdict:
        return await verify(endpoint, checks=list(names))  # type: ignore[call-overload]

    (blame,) = await find_culprit(verdict, relaunch, ask, engine="llamacpp")
    assert (blame.knob, blame.culprit) == ("chat-template", True)
    assert "5 facts hold" in " ".join(blame.evidence) or "facts hold" in " ".join(blame.evidence)


def test_the_command_gives_a_verdict_document(demo: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "trusted.json"
    args = [demo.base_url, "--checks", "known-answers", "--save-reference", str(file), "-o", "json"]
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["kind"] == "Verdict"
    assert document["passed"] is True
    assert {"name", "passed", "skipped", "evidence", "seconds"} <= set(document["checks"][0])
    assert json.loads(file.read_text())["kind"] == "Reference"


async def test_bench_agrees_with_llama_cpps_own_timings(demo: Endpoint) -> None:
    """The same requests by two clocks, so that a busy machine makes no difference."""
    verdict = await verify(demo, checks=["known-answers"])
    report = await run_bench(demo, profile="quick", concurrency=2, verdict=verdict)
    assert not report.forced
    for p in report.points:
        assert p.tpot.p50
        assert p.engine_tpot_p50
        assert p.tpot.p50 == pytest.approx(p.engine_tpot_p50, rel=0.05)
