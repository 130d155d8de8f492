"""Every quantization method on tensors of any rank, derived or read from headers: inspect never ends in a traceback."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspect_made import codes, look, tiny, tiny_tensors, write_shard

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.schema import decode, encode
from firstlight.inspect.derive.quantized import _WRITERS, Scheme

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "num_local_experts": 4}
FAMILIES = {
    "llama": ("LlamaForCausalLM", {}), "mixtral": ("MixtralForCausalLM", MOE), "qwen3_moe": ("Qwen3MoeForCausalLM", MOE),
    "gpt_oss": ("GptOssForCausalLM", MOE), "llama4": ("Llama4ForCausalLM", MOE), "gemma4": ("Gemma4ForCausalLM", MOE),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        MOE | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
               "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "shared_expert_intermediate_size": 96},
    ),
    "step3": ("Step3p5ForCausalLM", MOE), "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        MOE | {"n_routed_experts": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
               "v_head_dim": 16, "n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
}  # fmt: skip
METHODS = ["awq", "awq_marlin", "gptq", "gptq_marlin", "gptqmodel", "auto-round", "fp8", "fbgemm_fp8", "mxfp4", "bitsandbytes", "modelopt",
           "modelopt_fp4", "compressed-tensors", "hqq"]  # fmt: skip
COUNT = st.none() | st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 2**70]) | st.booleans() | st.text(max_size=3)
WEIGHTS = st.fixed_dictionaries(
    {},
    optional={
        "num_bits": COUNT, "type": st.sampled_from(["int", "float", "integer"]), "group_size": COUNT,
        "strategy": st.sampled_from(["block", "group", "channel"]), "block_structure": st.lists(COUNT, min_size=1, max_size=2),
    },
)  # fmt: skip
GROUPS = st.dictionaries(
    st.just("group_0"),
    st.fixed_dictionaries(
        {"targets": st.sampled_from([["Linear"], ["re:.*experts.*"], ["model.layers.0.mlp"], []])},
        optional={"weights": WEIGHTS, "input_activations": WEIGHTS},
    ),
)
QUANT = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(METHODS)},
    optional={
        "bits": COUNT, "w_bit": COUNT, "group_size": COUNT, "q_group_size": COUNT, "zero_point": st.booleans(),
        "quant_algo": st.sampled_from(["NVFP4", "FP8", "FP8_PB_WO", "MXFP8", "W4A16_AWQ", "INT8_SQ", "?"]),
        "weight_block_size": st.lists(COUNT, max_size=2), "load_in_4bit": st.booleans(), "config_groups": GROUPS,
        "format": st.sampled_from(["pack-quantized", "int-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized"]),
        "modules_to_not_convert": st.lists(st.sampled_from(["lm_head", "model.layers.0", "gate", "re:.*q_proj"]), max_size=2),
    },
)  # fmt: skip
LEAVES = ["qweight", "qzeros", "scales", "g_idx", "weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "absmax"]
MODULES = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.experts.3.w1", "mlp.experts", "mlp.gate_proj", "self_attn.q_proj"]
DTYPES = ["I32", "I64", "U8", "I8", "F16", "BF16", "F32", "F8_E4M3", "F8_E8M0", "F4", "BOOL"]
TENSORS = st.dictionaries(
    st.builds(lambda m, leaf: f"model.layers.1.{m}.{leaf}", st.sampled_from(MODULES), st.sampled_from(LEAVES)),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.sampled_from([0, 1, 2, 4, 16]), max_size=5)),
    min_size=1,
    max_size=8,
)


def looked_at(config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]] | None = None) -> Checkpoint:
    with TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(config))
        if tensors:
            write_shard(Path(name) / "model.safetensors", tensors)
        return look(name)


def whole(checkpoint: Checkpoint) -> None:
    """Survives JSON, and no size is negative."""
    assert decode(encode(checkpoint), Checkpoint) == checkpoint
    assert all(n >= 0 for g in checkpoint.tensor_groups for n in g.shape)
    assert (checkpoint.tensor_bytes or 0) >= 0


def test_awq_with_experts_in_one_tensor_is_stored_expert_by_expert():
    name, fields = FAMILIES["qwen3_5_moe"]
    quant = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    found = looked_at(tiny(architectures=[name], model_type="qwen3_5_moe", quantization_config=quant, **fields))
    down = next(g for g in found.tensor_groups if g.pattern.endswith("experts.{expert}.down_proj.qweight"))
    assert (down.dtype, down.shape, down.count) == ("I32", [96, 64 // 8], 2 * 4)
    assert {g.dtype for g in found.tensor_groups if g.role == "routed_experts"} == {"I32", "F16"}
    assert "quant-config-checkpoint-mismatch" not in codes(found)


def test_a_group_size_of_minus_one_is_the_whole_row():
    quant = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    found = looked_at(tiny(quantization_config=quant))
    scales = next(g for g in found.tensor_groups if g.pattern.endswith("down_proj.scales"))
    assert scales.shape == [1, 64]


@pytest.mark.parametrize("style", sorted(_WRITERS))
@settings(deadline=None)
@given(
    st.sampled_from(["nvfp4", "int4", "int3", "int8", "mxfp4", "mxfp8", "fp8", "fp8-block", "fp4"]),
    st.lists(st.integers(1, 512), min_size=2, max_size=5),
    st.sampled_from([0, 16, 32, 128]),
)
def test_any_rank_keeps_its_front(style: str, form: str, shape: list[int], group: int):
    """What stands before out and in (experts, and whatever else) stands before what is stored for them."""
    form, group = ("int4" if style == "gptq" else form), group or (0 if style in ("fp8", "awq", "gptq", "compressed-tensors") else 16)
    for _leaf, _dtype, stored in _WRITERS[style](tuple(shape), Scheme(style, form, group)):
        assert all(n >= 0 for n in stored)
        assert len(stored) <= 1 or stored[: len(shape) - 2] == tuple(shape[:-2])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), QUANT)
def test_no_method_and_no_family_ends_in_a_traceback(family: str, quant: dict[str, Any]):
    name, fields = FAMILIES[family]
    whole(looked_at(tiny(architectures=[name], model_type=family, quantization_config=quant, **fields)))


@settings(max_examples=150, deadline=None)
@given(QUANT, TENSORS)
def test_stored_tensors_of_any_rank_and_dtype(quant: dict[str, Any], tensors: dict[str, tuple[str, list[int]]]):
    whole(looked_at(tiny(quantization_config=quant, **MOE), tiny_tensors() | tensors))
