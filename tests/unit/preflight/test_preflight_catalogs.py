"""The tables behind the checks agree with each other and answer as releases do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from firstlight.catalog import vocabulary
from firstlight.catalog.backends import table
from firstlight.catalog.gpus import imagine
from firstlight.catalog.parsers import families, family_of
from firstlight.catalog.quirks import quirks
from firstlight.catalog.vocabulary import has, min_capability, names, requires, satisfies, since, until
from firstlight.preflight.cuda import capability, driver_for, toolkit_for, visible


def test_both_tables_are_made_from_the_same_releases() -> None:
    assert vocabulary.vocabulary().releases == [r.version for r in table().releases]


def test_names_by_release() -> None:
    assert has("architectures", "KimiK25ForConditionalGeneration", "0.14.1") is False
    assert has("architectures", "KimiK25ForConditionalGeneration", "0.16.0rc2.dev313+g1") is True
    assert has("architectures", "LlamaForCausalLM", "0.9.0") is None
    assert has("flags", "--swap-space", "0.17.0") is True, "an unlisted patch is answered by its minor version's last"
    assert (since("flags", "--swap-space"), until("flags", "--swap-space")) == ("0.14.1", "0.17.1")
    assert (since("flags", "--max-model-len"), until("flags", "--max-model-len")) == ("0.14.1", None)
    assert since("flags", "--never-was") is None
    assert "kimi_k2" in names("tool_parsers", "0.16.0")
    assert names("tool_parsers", "0.1.0") == []


def test_requirements_and_capabilities() -> None:
    assert requires("transformers", "0.16.0") == "<5,>=4.56.0"
    assert requires("torch", "0.16.0") == "==2.9.1"
    assert requires("transformers", None) is None
    assert min_capability("modelopt", "0.24.0") == 89
    assert min_capability("modelopt", "0.30.0") == 80
    assert min_capability("no-such-method", "0.24.0") is None


NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda n: ".".join(map(str, n)))
PARTS = st.tuples(st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]), NUMBERS).map("".join)


@given(NUMBERS, st.lists(PARTS, min_size=1, max_size=3))
def test_requirements_are_read_as_packaging_reads_them(version: str, parts: list[str]) -> None:
    specifier = ",".join(parts)
    assert satisfies(version, specifier) == SpecifierSet(specifier).contains(version)


@pytest.mark.parametrize("version", ["4.57.1", "5.0.2", "5.4.0", "5.5.0", "5.5.3", "5.19.0"])
@pytest.mark.parametrize("release", ["0.16.0", "0.20.2", "0.24.0", "0.31.0", "0.33.0"])
def test_the_releases_own_requirements(version: str, release: str) -> None:
    specifier = requires("transformers", release) or ""
    assert satisfies(version, specifier) == SpecifierSet(specifier).contains(version), specifier


def test_local_parts_do_not_matter() -> None:
    assert satisfies("2.13.0+cpu", "==2.13.0")


def test_every_parser_that_is_proposed_exists_in_some_release() -> None:
    known = vocabulary.vocabulary()
    for family in families():
        assert set(family.tool) <= set(known.tool_parsers), family.id
        assert set(family.reasoning) <= set(known.reasoning_parsers), family.id
        assert family.tool or family.reasoning, family.id


@pytest.mark.parametrize(
    ("model_type", "name", "family"),
    [
        ("kimi_k25", "nvidia/Kimi-K2.5-NVFP4", "kimi-k2"),
        ("deepseek_v3", "moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("deepseek_v3", "deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
        ("deepseek_v3", "deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek_v3", "deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek_v3", "somebody/tiny", None),
        ("glm4_moe", "zai-org/GLM-4.6", "glm-4.5"),
        ("glm4_moe", "zai-org/GLM-4.7", "glm-4.7"),
        ("qwen3_moe", "Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder"),
        ("qwen3_moe", "Qwen/Qwen3-235B-A22B", "qwen3"),
        ("llama", "meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        ("llama", "HuggingFaceTB/SmolLM2-135M-Instruct", None),
        ("gpt_oss", "openai/gpt-oss-120b", "gpt-oss"),
    ],
)
def test_families(model_type: str, name: str, family: str | None) -> None:
    found = family_of(model_type, [], name)
    assert (found.id if found else None) == family


def test_quirks_are_dated_and_have_a_source() -> None:
    for quirk in quirks():
        assert quirk.date.startswith("20"), quirk.code
        assert quirk.seen, quirk.code
        assert quirk.severity in ("blocker", "warning", "note"), quirk.code
        assert quirk.source, quirk.code
    assert any(q.covers((0, 24, 0)) for q in quirks())
    bounded = next(q for q in quirks() if q.since and q.until)
    assert not bounded.covers(()), "an unknown release lies within no bounds"


def test_devices_that_cuda_sees() -> None:
    gpus = imagine("4xh200").accelerators
    assert [g.index for g in visible(gpus, None)] == [0, 1, 2, 3]
    assert [g.index for g in visible(gpus, "2,0")] == [2, 0]
    assert [g.index for g in visible(gpus, "0,9,1")] == [0], "the first bad entry ends the list"
    assert visible(gpus, "") == []


def test_toolkits_and_drivers() -> None:
    assert [toolkit_for(sm) for sm in (80, 89, 90, 100, 121)] == [(11, 0), (11, 0), (11, 8), (12, 8), (12, 8)]
    assert (driver_for("12.8"), driver_for("13.0"), driver_for("99")) == ((525, 60), (580, 65), None)
    assert capability(121) == "12.1"
