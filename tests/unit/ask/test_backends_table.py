"""The table of kernels: what the first user needed to know, and how releases and GPUs that are not in it are answered."""

import importlib.util
import json
from pathlib import Path

import msgspec
import pytest

from firstlight.catalog import backends
from firstlight.catalog.backends import attention_layers, choose, first_release_with, lookup, release_for, rows
from firstlight.core.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("release", "sm", "layer", "dtype", "chosen"),
    [
        # No MLA backend takes FP8 on SM120 up to 0.17; TRITON_MLA does from 0.18 on.
        ("0.16.0", 120, "mla576", "auto", "TRITON_MLA"),
        ("0.16.0", 120, "mla576", "fp8", None),
        ("0.17.1", 120, "mla576", "fp8", None),
        ("0.18.1", 120, "mla576", "fp8", "TRITON_MLA"),
        ("0.24.0", 120, "mla576", "fp8", "TRITON_MLA"),
        # Sparse attention came to SM120 with 0.24.
        ("0.23.0", 120, "mla576+dsa", "auto", None),
        ("0.24.0", 120, "mla576+dsa", "auto", "FLASHINFER_MLA_SPARSE_SM120"),
        ("0.16.0", 90, "mla576", "fp8", "FLASHMLA"),
        ("0.16.0", 90, "gqa64+sink", "auto", "FLASH_ATTN"),
        ("0.16.0", 120, "gqa64+sink", "auto", "TRITON_ATTN"),
        ("0.28.0", 120, "gqa64+sink", "auto", "FLASHINFER"),
        ("0.33.0", 100, "gqa128", "auto", "FLASHINFER"),
        ("0.33.0", 80, "gqa128", "fp8", "FLASHINFER"),
    ],
)
def test_cells(release: str, sm: int, layer: str, dtype: str, chosen: str | None) -> None:
    found = lookup(release, sm, layer, dtype)
    assert found is not None
    assert (found.chosen, found.release, found.known_dtype) == (chosen, release, True)


@pytest.mark.parametrize(
    ("release", "sm", "layer", "chosen"),
    [
        # NVFP4 experts: emulated by Marlin before Blackwell, native after; gpt-oss' MXFP4 by generation.
        ("0.24.0", 90, "moe-nvfp4", "MARLIN"),
        ("0.24.0", 100, "moe-nvfp4", "FLASHINFER_TRTLLM"),
        ("0.16.0", 120, "moe-nvfp4", "FLASHINFER_CUTLASS"),
        ("0.24.0", 90, "moe-mxfp4", "TRITON"),
        ("0.24.0", 120, "moe-mxfp4", "MARLIN"),
        ("0.24.0", 120, "moe-fp8-block", "DEEPGEMM"),  # DeepGEMM on SM12x from 0.24 on
        ("0.23.0", 120, "moe-fp8-block", "TRITON"),
        ("0.25.1", 86, "linear-fp8", "MARLIN"),  # FP8 weights below 8.9: their kernel, not the hardware's
        ("0.25.1", 90, "linear-int4", "MacheteLinearKernel"),
    ],
)
def test_moe_and_linear_kernels_by_number_format(release: str, sm: int, layer: str, chosen: str) -> None:
    found = lookup(release, sm, layer)
    assert found is not None
    assert (found.chosen, found.kv_cache_dtype) == (chosen, backends.ANY)


def test_what_passes_the_selector_and_dies_in_the_builder_counts_as_refused() -> None:
    late = lookup("0.24.0", 120, "gqa128", "nvfp4")
    assert late is not None
    assert late.chosen is None
    assert late.late is not None
    assert "requires sm100f" in late.late
    assert lookup("0.24.0", 121, "gqa128", "nvfp4") == msgspec.structs.replace(late, sm=121)
    fine = lookup("0.24.0", 100, "gqa128", "nvfp4")
    assert fine is not None
    assert (fine.chosen, fine.late) == ("FLASHINFER", None)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("0.16.0rc2.dev313+g1234", "0.16.0"),
        ("0.20.1", "0.20.2"),
        ("v0.24.0", "0.24.0"),
        ("0.99.1", "0.33.0"),
        ("0.9.2", None),
        (None, None),
    ],
)
def test_releases_that_are_not_in_the_table(asked: str | None, answered: str | None) -> None:
    assert release_for(asked) == answered


def test_a_gpu_generation_is_answered_by_the_nearest_below_in_its_family() -> None:
    assert choose("0.24.0", 87, "gqa128") == choose("0.24.0", 86, "gqa128") == "FLASH_ATTN"
    assert lookup("0.24.0", 70, "gqa128") is None


def test_unknown_is_not_the_same_as_refused() -> None:
    assert lookup("0.24.0", 120, "gqa57") is None
    assert lookup("0.9.2", 120, "mla576") is None
    missing = lookup("0.16.0", 120, "gqa128", "nvfp4")
    assert missing is not None
    assert (missing.known_dtype, missing.chosen) == (False, None)


def test_an_upgrade_is_named_by_the_first_release_that_has_a_backend() -> None:
    assert first_release_with(120, "mla576", "fp8", after="0.16.0") == "0.18.1"
    assert first_release_with(120, "mla576+dsa", "auto", after="0.16.0") == "0.24.0"
    assert first_release_with(75, "mla576+dsa", "auto") is None


def test_every_release_has_every_cell_of_its_own_dtypes() -> None:
    table = backends.table()
    assert [r.version for r in table.releases] == sorted((r.version for r in table.releases), key=backends.version_key)
    assert len(table.releases) >= 20
    for release in table.releases:
        found = [r for r in rows(release.version, 120) if not backends.is_kernel(r.layer)]
        assert len(found) == 12 * len(release.kv_cache_dtypes)
        assert {r.kv_cache_dtype for r in found} == set(release.kv_cache_dtypes)


def test_the_file_is_small() -> None:
    import importlib.resources

    assert len(importlib.resources.files("firstlight.catalog").joinpath("engines/vllm/backends.json").read_bytes()) < 64_000


@pytest.mark.parametrize(
    ("config", "model_type", "layers"),
    [
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "deepseek_v3", ["mla576"]),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048}, "deepseek_v32", ["mla576+dsa"]),
        ({"head_dim": 64, "num_attention_heads": 64, "hidden_size": 2880}, "gpt_oss", ["gqa64+sink"]),
        ({"num_attention_heads": 32, "hidden_size": 4096}, "llama", ["gqa128"]),
        ({"head_dim": 256, "global_head_dim": 512}, "gemma4", ["gqa256", "gqa512"]),
        ({"head_dim": 512, "o_lora_rank": 1024, "index_topk": 512}, "deepseek_v4", []),
        ({}, "unknown", []),
    ],
)
def test_a_models_layers_in_the_tables_words(config: dict[str, int], model_type: str, layers: list[str]) -> None:
    assert attention_layers(Checkpoint(ref="m", format="config-only", config=config, model_type=model_type)) == layers


def test_the_generators_own_reading_of_the_file_is_the_catalogs() -> None:
    """What `--check` compares with, and what preflight and plan look up, are the same cells."""
    path = Path(__file__).parents[3] / "tools/generate_backends.py"
    spec = importlib.util.spec_from_file_location("generate_backends", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    document = json.loads(tool.TARGET.read_text())
    cells = tool.unpack(document)
    flat = {(v, sm, layer, dtype): chosen for (layer, dtype, sm), past in cells.items() for v, chosen in past.items()}
    assert flat == backends._cells()
    assert tool.compare(cells, document["late"], [r["version"] for r in document["releases"]], document) == 0
    changed = {**cells, ("gqa128", "auto", 90): {**cells["gqa128", "auto", 90], "0.24.0": "ANOTHER"}}
    assert tool.compare(changed, document["late"], ["0.24.0"], document) == 1


def test_kernels_are_known_for_every_release_and_generation() -> None:
    for release in backends.table().releases:
        for sm in backends.table().kernel_sms:
            known = [r.layer for r in rows(release.version, sm) if backends.is_kernel(r.layer)]
            assert len(known) == 13, (release.version, sm, known)
