"""Resident bytes against what engines reported, and the rules that make them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_measured import promise
from plan_models import checkpoint, rows

from firstlight.core.checkpoint import QuantSpec, TensorGroup
from firstlight.core.units import GIB, MIB
from firstlight.plan.allocator import allocated_bytes
from firstlight.plan.layouts import Layout, stage_layers
from firstlight.plan.resident import Options, Resident, weights_by_stage
from firstlight.plan.rope import rope_bytes


@pytest.mark.parametrize("row", rows("weights"), ids=lambda r: f"{r['model']}-tp{r['tp']}-{r['engine']}")
def test_weights_are_within_the_tolerance_of_what_the_engine_reported(row: dict[str, Any]) -> None:
    found = promise(row)
    assert found.measured_weights is not None
    assert (found.weights.mid or 0) / found.measured_weights == pytest.approx(1, abs=row["tolerance"])


def test_the_first_users_model_to_the_printed_digit() -> None:
    stage = weights_by_stage(checkpoint("kimi-k2.5-nvfp4"), Layout(tensor_parallel_size=8), Options())[0]
    assert round(stage.allocated / GIB, 2) == 70.81


def test_a_data_parallel_encoder_is_whole_on_every_gpu() -> None:
    layout, model = Layout(tensor_parallel_size=8), checkpoint("kimi-k2.5-nvfp4")
    split, whole, none = (
        weights_by_stage(model, layout, options)[0].tensors
        for options in (Options(), Options(encoder_data_parallel=True), Options(language_model_only=True))
    )
    assert (whole - split) / GIB == pytest.approx(0.67, abs=0.02)
    assert (split - none) / GIB == pytest.approx(0.207, abs=0.01)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    at = {tp: Resident(checkpoint("qwen3-235b-a22b-fp8"), Options()).stages(Layout(tensor_parallel_size=tp))[0] for tp in (4, 8)}
    assert at[8].by_role["attention"] > at[4].by_role["attention"] / 2


def test_experts_take_the_same_bytes_split_by_slice_or_whole() -> None:
    model = checkpoint("deepseek-v3")
    by_slice, whole = (
        weights_by_stage(model, Layout(tensor_parallel_size=8, enable_expert_parallel=ep), Options())[0].by_role["routed_experts"]
        for ep in (False, True)
    )
    assert whole == pytest.approx(by_slice, rel=1e-3)


def test_data_parallel_attention_keeps_attention_whole_and_shares_experts() -> None:
    model = checkpoint("deepseek-v3")
    tp = weights_by_stage(model, Layout(tensor_parallel_size=8), Options())[0].by_role
    dp = weights_by_stage(model, Layout(data_parallel_size=8, enable_expert_parallel=True), Options())[0].by_role
    assert dp["routed_experts"] == pytest.approx(tp["routed_experts"], rel=1e-3)
    assert dp["attention"] > 2 * tp["attention"]


def test_mxfp4_padding_follows_the_backend() -> None:
    sizes = {
        backend: weights_by_stage(checkpoint("gpt-oss-120b"), Layout(), Options(mxfp4=backend, mxfp4_keeps_scales=keeps))[0].allocated / GIB
        for backend, keeps in (("exact", False), ("triton", True), ("marlin", False))
    }
    assert sizes["exact"] < 61 < 64 < sizes["triton"] < sizes["marlin"] < 66.1


def test_tritons_scales_are_kept_twice_up_to_0_24() -> None:
    """gpt-oss-120b: 64.38 GiB on 0.14.1; gpt-oss-20b: 13.02 on 0.25.1, which drops the scales as loaded."""
    twice, once = (
        weights_by_stage(checkpoint("gpt-oss-120b"), Layout(), Options(mxfp4="triton", mxfp4_keeps_scales=keeps))[0].allocated / GIB
        for keeps in (True, False)
    )
    assert twice == pytest.approx(64.38, rel=0.001)
    assert twice - once == pytest.approx(3.33, abs=0.02)


def test_tied_heads_are_stored_once_and_again_on_the_last_stage() -> None:
    whole = weights_by_stage(checkpoint("qwen3-0.6b"), Layout(), Options())[0]
    first, last = weights_by_stage(checkpoint("qwen3-0.6b"), Layout(pipeline_parallel_size=2), Options())
    assert first.by_role["embedding"] == last.by_role["embedding"] == whole.by_role["embedding"]
    assert "lm_head" not in whole.by_role


def test_multi_token_prediction_layers_load_only_as_a_drafter() -> None:
    base = checkpoint("deepseek-v3")
    extra = TensorGroup(
        pattern="model.layers.{layer}.mlp.down_proj.weight", role="mtp", dtype="BF16", shape=[7168, 2048], count=1, layers=[61]
    )
    import msgspec

    model = msgspec.structs.replace(base, tensor_groups=[*base.tensor_groups, extra])
    without, with_draft = (weights_by_stage(model, Layout(), Options(draft=draft))[0].tensors for draft in (False, True))
    assert with_draft - without == 7168 * 2048 * 2


def test_nvfp4_scales_are_padded_for_swizzling() -> None:
    quant = QuantSpec(method="modelopt", format="nvfp4", group_size=16)
    import msgspec

    group = TensorGroup(
        pattern="model.layers.{layer}.mlp.down_proj.weight_scale", role="dense_mlp", dtype="F8_E4M3", shape=[100, 6], count=1, layers=[0]
    )
    model = msgspec.structs.replace(
        checkpoint("llama-3.1-8b"), format="safetensors", quantization=quant, tensor_groups=[group], num_hidden_layers=1, config={}
    )
    assert weights_by_stage(model, Layout(), Options())[0].tensors == 128 * 8


def test_multimodal_rope_tables_are_four_times_as_long() -> None:
    config = {"max_position_embeddings": 1000, "head_dim": 128, "hidden_size": 1, "rope_scaling": {"mrope_section": [1, 1, 1]}}
    assert rope_bytes(config) == 4 * rope_bytes(config | {"rope_scaling": None}) == 4 * 1000 * 128 * 2


GEMMA = {"model_type": "gemma3_text", "max_position_embeddings": 1000, "head_dim": 128}
LATENT = {"max_position_embeddings": 1000, "qk_rope_head_dim": 64, "head_dim": 128}


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (GEMMA, 1000 * 128),  # two equal tables are one
        (GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 8000 * 128 + 1000 * 128),
        (LATENT | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}}, 2000 * 64),
        (LATENT | {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 100}}, 1100 * 64),
        ({"max_position_embeddings": 1000, "head_dim": 256, "partial_rotary_factor": 0.25}, 1000 * 64),
        ({"max_position_embeddings": 1000, "head_dim": 128, "rotary_dim": 64}, 1000 * 64),
        ({"max_position_embeddings": 1000, "head_dim": 128, "model_type": "nemotron_h"}, 0),
        ({"max_position_embeddings": 1000, "hidden_size": 512, "num_attention_heads": 0}, 0),
        ({"max_position_embeddings": float("nan"), "head_dim": "wide", "rope_scaling": [1]}, 0),
        (
            {
                "max_position_embeddings": 1000,
                "head_dim": 256,
                "global_head_dim": 512,
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            1000 * 512 + 1000 * 256,
        ),
    ],
)
def test_rope_tables_are_as_long_and_as_wide_as_the_engine_makes_them(config: dict[str, object], numbers: int) -> None:
    assert rope_bytes(config) == 2 * numbers


@pytest.mark.parametrize(("layers", "stages", "sizes"), [(61, 2, [31, 30]), (92, 3, [31, 31, 30]), (62, 4, [15, 16, 16, 15]), (8, 1, [8])])
def test_uneven_stages_are_cut_as_the_engine_cuts_them(layers: int, stages: int, sizes: list[int]) -> None:
    assert [len(r) for r in stage_layers(layers, stages)] == sizes


def test_the_allocator_keeps_unsplit_remainders() -> None:
    assert allocated_bytes([21 * MIB]) == 22 * MIB
    assert allocated_bytes([int(10.5 * MIB)]) == int(10.5 * MIB)
    assert allocated_bytes([100]) == 512
    assert allocated_bytes([21 * MIB], expandable=True) == 21 * MIB


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 28), max_size=40))
def test_the_allocator_never_counts_less_than_was_asked_and_little_more(sizes: list[int]) -> None:
    wanted = sum(sizes)
    assert wanted <= allocated_bytes(sizes) <= wanted + len(sizes) * (2 * MIB)
    assert allocated_bytes(sizes, expandable=True) <= allocated_bytes(sizes) + len(sizes) * 512


@settings(deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from(["kimi-k2.5-nvfp4", "qwen3-32b", "glm-4.6-fp8"]))
def test_ranks_sum_to_the_model_plus_what_is_replicated(tp: int, pp: int, name: str) -> None:
    """Nothing is lost: the ranks together hold the model at least once, and at most once a rank."""
    model = checkpoint(name)
    one = weights_by_stage(model, Layout(), Options())[0].tensors
    stages = weights_by_stage(model, Layout(tensor_parallel_size=tp, pipeline_parallel_size=pp), Options())
    together = sum(stage.tensors for stage in stages) * tp
    assert one <= together * (1 + 1e-6)
    assert together <= one * tp * pp
