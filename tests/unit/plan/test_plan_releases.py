"""What each release of vLLM does by default, as its sources say."""

import pytest

from firstlight.catalog.engines import ModelKind, memory_terms, newest, parse_version, runs_v2
from firstlight.catalog.serving import parsers_for
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.units import GIB


@pytest.mark.parametrize(
    ("text", "release"),
    [("0.16", (0, 16, 0)), ("v0.16.0rc2.dev313+g1a2b", (0, 16, 0)), ("0.20.2.post1", (0, 20, 2)), ("main", (0, 0, 0))],
)
def test_a_release_is_read_off_any_build_string(text: str, release: tuple[int, ...]) -> None:
    assert parse_version(text) == release


def test_short_and_long_versions_are_one_release() -> None:
    assert memory_terms("0.16") == memory_terms("0.16.0")


@pytest.mark.parametrize(("version", "utilization"), [("0.8.5", 0.9), ("0.19.1", 0.9), ("0.20.2", 0.92), ("0.33.0", 0.92)])
def test_the_default_utilization(version: str, utilization: float) -> None:
    assert memory_terms(version).gpu_memory_utilization == utilization


@pytest.mark.parametrize(("version", "tokens"), [("0.27.1", 8192), ("0.28.0", 16384)])
def test_very_large_gpus_got_larger_batches_in_0_28(version: str, tokens: int) -> None:
    terms = memory_terms(version)
    assert terms.max_num_batched_tokens[terms.gpu_class(178 * GIB, "B200")] == tokens


def test_an_a100_keeps_the_small_defaults() -> None:
    assert memory_terms("0.16.0").gpu_class(79 * GIB, "A100 80GB SXM4") == "small"
    assert memory_terms("0.16.0").gpu_class(79 * GIB, "H100 80GB SXM5") == "large"


LLAMA = ModelKind(architectures=["LlamaForCausalLM"])
MOE = ModelKind(architectures=["Qwen3MoeForCausalLM"], moe=True)


@pytest.mark.parametrize(
    ("version", "model", "v2"),
    [
        ("0.22.1", LLAMA, False),
        ("0.23.0", LLAMA, True),
        ("0.23.0", ModelKind(architectures=["LlamaForCausalLM"], quantized=True), False),
        ("0.24.0", ModelKind(architectures=["LlamaForCausalLM"], quantized=True), True),
        ("0.25.1", ModelKind(architectures=["GemmaForCausalLM"]), True),
        ("0.25.1", MOE, False),
        ("0.25.1", ModelKind(architectures=["Qwen3_5ForConditionalGeneration"], hybrid=True), False),
        ("0.28.0", MOE, False),
        ("0.29.0", MOE, True),
    ],
)
def test_which_models_run_on_the_second_model_runner(version: str, model: ModelKind, v2: bool) -> None:
    assert runs_v2(parse_version(version), model) is v2


def test_the_second_runner_holds_less_of_the_sampler() -> None:
    assert (
        memory_terms("0.25.1", LLAMA).sampler_bytes < memory_terms("0.25.1", MOE).sampler_bytes < memory_terms("0.15.1", MOE).sampler_bytes
    )


def test_releases_outside_the_data_say_so() -> None:
    assert not memory_terms("0.13.0").known
    assert memory_terms("0.14.1").known
    assert memory_terms("0.33.4").known
    assert not memory_terms("0.34.0").known
    assert memory_terms(None) == memory_terms(newest())


def test_parsers_come_with_the_release_that_has_them() -> None:
    kimi = Checkpoint(ref="k", format="config-only", architectures=["KimiK25ForConditionalGeneration"])
    found = parsers_for(kimi, (0, 16, 0))
    assert found is not None
    assert (found.tool_call_parser, found.reasoning_parser) == ("kimi_k2", "kimi_k2")
    gemma = Checkpoint(ref="g", format="config-only", model_type="gemma4")
    assert parsers_for(gemma, (0, 16, 0)) is None
    assert parsers_for(gemma, (0, 20, 2)) is not None
    assert parsers_for(Checkpoint(ref="m", format="config-only", model_type="llama"), (0, 32, 0)) is None
