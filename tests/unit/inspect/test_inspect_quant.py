"""Quantization as each producer writes it, the list of exceptions as each reader reads it, and configs that the tensors belie."""

import json

import pytest
from inspect_made import codes, look, tiny, tiny_tensors, write_shard, write_tiny

from firstlight.core.checkpoint import QuantSpec, TensorGroup
from firstlight.inspect.config import normalise
from firstlight.inspect.derive.derive import expected_groups
from firstlight.inspect.ignore import Caught, Ignored, Layer, vllm_layers, vllm_rule
from firstlight.inspect.quant import kv_quantization, quant_spec

LINEAR = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}


def _ct(weights, acts=None, form=""):
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": acts}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "method", "form", "bits", "group"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", "nvfp4", 4, 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", "fp8", 8, None),
        ({"quant_algo": "FP8"}, "modelopt", "fp8", 8, None),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "modelopt", "int4", 4, 128),
        (_ct({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4, "type": "float"}), "compressed-tensors", "nvfp4", 4, 16),
        (_ct({"num_bits": 4, "type": "float", "group_size": 32}, form="mxfp4-pack-quantized"), "compressed-tensors", "mxfp4", 4, 32),
        (_ct({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float"}), "compressed-tensors", "fp8", 8, None),
        (_ct({"num_bits": 8, "type": "float", "strategy": "block"}), "compressed-tensors", "fp8-block", 8, None),
        (_ct({"num_bits": 4, "type": "int", "group_size": 128}), "compressed-tensors", "int4", 4, 128),
        (_ct({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}), "compressed-tensors", "int8", 8, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "fp8-block", 8, [128, 128]),
        ({"quant_method": "fp8"}, "fp8", "fp8", 8, None),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["x"]}, "fbgemm_fp8", "fp8", 8, None),
        ({"quant_method": "mxfp4"}, "mxfp4", "mxfp4", 4, 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", "int4", 4, 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "dynamic": {"-:.*down": {}}}, "gptq", "int8", 8, 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes", "nf4", 4, 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", "int8", 8, None),
        ({"quant_method": "aqlm", "nbits": 2}, "aqlm", None, 2, None),
    ],
)  # fmt: skip
def test_methods_and_formats(config, method, form, bits, group):
    spec = quant_spec(config, None)
    assert (spec.method, spec.format, spec.bits, spec.group_size) == (method, form, bits, group)


def test_two_groups_are_mixed():
    config = _ct({"num_bits": 8, "type": "float"})
    config["config_groups"]["group_1"] = {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    spec = quant_spec(config, None)
    assert (spec.format, spec.layers) == ("mixed", {"Linear": "fp8", "re:.*experts.*": "nvfp4"})


EARLY = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}


def test_modelopt_body_inside_config_json():
    config = {"quant_method": "modelopt", "quantization": EARLY}
    spec = quant_spec(config, None)
    assert (spec.method, spec.format, spec.ignore, spec.activation) == ("modelopt", "nvfp4", ["lm_head"], "nvfp4")
    assert kv_quantization(config, "q", None).sources == ["config.json:q.quantization.kv_cache_quant_algo"]


def test_config_that_names_modelopt_and_leaves_the_rest_to_its_own_file():
    spec = quant_spec({"quant_method": "modelopt"}, {"quantization": EARLY})
    assert (spec.format, spec.ignore) == ("nvfp4", ["lm_head"])


def test_compressed_tensors_without_groups():
    spec = quant_spec({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": ["lm_head"]}, None)
    assert (spec.format, spec.bits, spec.ignore) == ("dense", None, ["lm_head"])


def test_hf_quant_config_alone_and_what_it_adds():
    body = {"producer": {"name": "modelopt", "version": "0.41.0"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    spec = quant_spec(None, body)
    assert (spec.method, spec.format, spec.ignore, spec.producer) == ("modelopt", "nvfp4", ["lm_head"], "modelopt 0.41.0")


@pytest.mark.parametrize(
    ("config", "hf", "dtype", "sources"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, None, "fp8", ["config.json:q.kv_cache_scheme"]),
        ({"kv_cache_scheme": "FP8"}, None, "fp8", ["config.json:q.kv_cache_scheme"]),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, None, "nvfp4", ["config.json:q.kv_cache_scheme"]),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None, "int8", ["config.json:q.kv_cache_scheme"]),
        (None, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8", ["hf_quant_config.json:quantization.kv_cache_quant_algo"]),
        ({"kv_cache_scheme": {"num_bits": 8}}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8",
         ["config.json:q.kv_cache_scheme", "hf_quant_config.json:quantization.kv_cache_quant_algo"]),
    ],
)  # fmt: skip
def test_kv_cache_quantization_names_every_key_that_sets_it(config, hf, dtype, sources):
    found = kv_quantization(config, "q", hf)
    assert (found.dtype, found.sources) == (dtype, sources)


@pytest.mark.parametrize("value", [None, "", "none", "auto"])
def test_no_kv_cache_quantization(value):
    assert kv_quantization({"kv_cache_scheme": value}, "q", {"quantization": {"kv_cache_quant_algo": value}}) is None


@pytest.mark.parametrize(
    ("pattern", "module", "left_out"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "language_model.lm_head", True),
        ("model.layers.0.mlp.gate", "model.layers.0.mlp.gate", True),
        ("model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("re:.*self_attn.*", "model.layers.3.self_attn.o_proj", True),
        ("re:.*mlp\\.(gate|up)_proj.*", "model.layers.3.mlp.down_proj", False),
        ("re:[", "model.layers.3.mlp.down_proj", False),
        ("re:(a+)+$", "a" * 60 + "!", False),  # would take longer than the universe
        ("re:(?:.*)*x", "a" * 60, False),
        ("model.*.mlp?", "model.layers.3.mlp2", True),
    ],
)
def test_what_the_producer_left_out(pattern, module, left_out):
    assert Ignored([pattern])(module) is left_out


@pytest.mark.parametrize(
    ("pattern", "module", "substring", "left_out"),
    [
        ("self_attn", "model.layers.3.self_attn.q_proj", False, True),
        ("layers.3", "model.layers.3.self_attn.q_proj", False, True),
        ("layers.3", "model.layers.33.self_attn.q_proj", False, False),
        ("attn", "model.layers.3.self_attn.q_proj", False, False),
        ("attn", "model.layers.3.self_attn.q_proj", True, True),
        ("-:.*self_attn.*", "model.layers.3.self_attn.q_proj", False, True),
    ],
)
def test_names_that_stand_in_the_middle(pattern, module, substring, left_out):
    assert Ignored([pattern], substring=substring)(module) is left_out


LAYER = "model.layers.0.mlp."
QKV = [f"model.layers.0.self_attn.{p}_proj" for p in "qkv"]
GATE_UP = [LAYER + "gate_proj", LAYER + "up_proj"]


@pytest.mark.parametrize(
    ("method", "patterns", "modules", "caught"),
    [
        ("modelopt", ["model.layers.0.mlp.gate"], GATE_UP, "all"),  # a part of gate_up_proj: the load fails
        ("modelopt", ["model.layers.1"], ["model.layers.10.mlp.down_proj"], "all"),
        ("modelopt", ["model.layers.0.self_attn*"], QKV, "all"),
        ("modelopt", ["model.layers.0.mlp.shared_experts"], [LAYER + "experts.3.up_proj"], None),
        ("modelopt", [LAYER + "experts.7.up_proj"], [LAYER + "experts.3.up_proj"], "all"),  # one expert's name stands for all of them
        ("modelopt", QKV[:1], QKV, "part"),
        ("modelopt", ["lm_head", "model.layers.?.mlp*"], GATE_UP, "all"),
        ("fp8", ["model.layers.0.mlp.gate"], GATE_UP, None),
        ("fp8", [LAYER + "down_proj"], [LAYER + "down_proj"], "all"),
        ("fp8", QKV, QKV, "all"),
        ("fp8", QKV[:2], QKV, "part"),
        ("fp8", QKV[:1], QKV[:1], "all"),  # nothing is joined where only one is there (MLA without a query latent)
        ("fbgemm_fp8", GATE_UP, GATE_UP, "all"),
        ("compressed-tensors", ["re:.*mlp.gate"], GATE_UP, "all"),
        ("compressed-tensors", ["re:.*mlp.gate$"], GATE_UP, None),
        ("compressed-tensors", ["re:.*up_proj$"], GATE_UP, "all"),  # the joined name ends like that, too
        ("compressed-tensors", ["re:.*gate_proj$"], GATE_UP, "part"),
        ("compressed-tensors", GATE_UP, GATE_UP, "all"),
        ("compressed-tensors", ["model.layers.0.mlp.gate"], GATE_UP, None),
        ("compressed-tensors", ["re:.*experts.0.up_proj"], [LAYER + "experts.0.up_proj"], "all"),
        ("awq", ["mlp.gate"], GATE_UP, "all"),
        ("awq", ["q_proj"], QKV, "part"),
        ("awq", ["k_proj", "q_proj", "v_proj"], QKV, "all"),
        ("awq_marlin", ["mlp.experts"], [LAYER + "experts.0.up_proj"], "all"),
        ("gptq", ["-:.*mlp.*"], GATE_UP, "all"),
        ("gptq", ["-:.*gate_proj"], GATE_UP, None),
        ("mxfp4", ["model.layers.0.mlp.gate"], GATE_UP, None),
    ],
)  # fmt: skip
def test_what_vllm_leaves_out(method, patterns, modules, caught):
    rule = vllm_rule(method, patterns)
    found = {rule(layer) for layer in vllm_layers(modules, method).values()}
    assert {None if f is None else "part" if f.partly else "all" for f in found} == {caught}


def test_layers_as_vllm_builds_them():
    layers = vllm_layers([*GATE_UP, LAYER + "down_proj"])
    assert layers[GATE_UP[0]] == layers[GATE_UP[1]] == Layer(LAYER + "gate_up_proj", tuple(GATE_UP))
    assert layers[LAYER + "down_proj"] == Layer(LAYER + "down_proj")
    assert vllm_rule("fp8", GATE_UP)(layers[GATE_UP[0]]) == Caught(GATE_UP[0])
    assert vllm_rule("quark", GATE_UP) is None


def test_a_part_of_a_joined_layer(tmp_path):
    found = _quantized(tmp_path, FP8 | {"modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]})
    finding = next(f for f in found.findings if f.code == "quant-ignore-overreach")
    assert finding.evidence == [
        "model.layers.0.self_attn.q_proj catches a part of model.layers.0.self_attn.qkv_proj, which vLLM builds as one: it refuses"
    ]


def test_gptq_leaves_out_by_expression(tmp_path):
    found = _quantized(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {"-:.*self_attn.*": {}}})
    assert codes(found) == []
    assert found.bytes_by_role["attention"] == 2 * sum(
        2 * t[1][0] * t[1][1] for n, t in tiny_tensors().items() if "layers.0.self_attn" in n and "norm" not in n
    )


def _quantized(tmp_path, config, tensors=None):
    write_tiny(tmp_path, quantization_config=config)
    fields = normalise(tiny(quantization_config=config))
    groups, _ = expected_groups(fields.fields, quant_spec(fields.quantization, None), fields.quantization)
    from inspect_made import expand

    write_shard(tmp_path / "model.safetensors", tensors or expand(groups))
    return look(tmp_path)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*"]}


def test_config_and_tensors_agree(tmp_path):
    found = _quantized(tmp_path, NVFP4)
    assert codes(found) == []
    assert found.bytes_by_dtype["U8"] == 2 * 3 * 64 * 128 // 2


def test_config_says_quantized_and_tensors_are_not(tmp_path):
    found = _quantized(tmp_path, NVFP4, tiny_tensors())
    assert codes(found) == ["quant-config-checkpoint-mismatch"]
    assert "U8" in found.findings[0].evidence[0]


def test_plain_tensors_are_as_said_where_the_exceptions_name_every_matrix(tmp_path):
    kv_only = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    found = _quantized(tmp_path, kv_only, tiny_tensors())
    assert codes(found) == []
    assert found.kv_cache_quantization.dtype == "fp8"


def test_tensors_quantized_and_no_config_says_so(tmp_path):
    _quantized(tmp_path, NVFP4)
    (tmp_path / "config.json").write_text(json.dumps(tiny()))
    found = look(tmp_path)
    assert "quant-config-checkpoint-mismatch" in codes(found)
    assert found.quantization.format == "nvfp4"


def test_an_exception_that_is_not_listed(tmp_path):
    found = _quantized(tmp_path, NVFP4)
    shorter = NVFP4 | {"ignore": ["lm_head", "model.layers.0.self_attn*"]}
    (tmp_path / "config.json").write_text(json.dumps(tiny(quantization_config=shorter)))
    found = look(tmp_path)
    assert "model.layers.1.self_attn.q_proj" in next(f for f in found.findings if f.code == "quant-config-checkpoint-mismatch").evidence


def test_an_exception_that_catches_too_much_in_vllm(tmp_path):
    """FIELD: `mlp.gate` also matched `mlp.gate_up_proj`, the layer was built unquantized, the load died with a KeyError on input_scale."""
    wide = NVFP4 | {"ignore": [*NVFP4["ignore"], "model.layers.0.mlp.gate"]}
    found = _quantized(tmp_path, wide)
    finding = next(f for f in found.findings if f.code == "quant-ignore-overreach")
    assert "model.layers.0.mlp.gate also catches model.layers.0.mlp.gate_up_proj (stored quantized)" in finding.evidence


@pytest.mark.parametrize(
    ("config", "leaf", "dtype", "shape"),
    [
        (NVFP4, "weight_scale", "F8_E4M3", [128, 4]),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv", "F32", [1, 1]),
        (_ct({"num_bits": 4, "type": "int", "group_size": 32}), "weight_packed", "I32", [128, 8]),
        (_ct({"num_bits": 4, "type": "float", "group_size": 16}), "weight_packed", "U8", [128, 32]),
        (_ct({"num_bits": 8, "type": "float", "strategy": "channel"}), "weight_scale", "BF16", [128, 1]),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "qweight", "I32", [64, 16]),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "qweight", "I32", [8, 128]),
    ],
)  # fmt: skip
def test_tensors_that_each_method_stores(config, leaf, dtype, shape):
    one = normalise(tiny(quantization_config=config))
    groups, reason = expected_groups(one.fields, quant_spec(config, None), config)
    assert reason is None
    found = next(g for g in groups if g.pattern == f"model.layers.{{layer}}.mlp.up_proj.{leaf}")
    assert (found.dtype, found.shape, found.layers) == (dtype, shape, [0, 1])


def test_plain_scales_without_a_config_are_recognised():
    groups = [
        TensorGroup(pattern="a.weight", role="attention", dtype="F8_E4M3", shape=[4, 4], count=1),
        TensorGroup(pattern="a.weight_scale_inv", role="attention", dtype="F32", shape=[1, 1], count=1),
    ]
    assert quant_spec(None, None, groups) == QuantSpec(method="unknown", format="fp8-block", bits=8)
    assert quant_spec(None, None, []) is None
