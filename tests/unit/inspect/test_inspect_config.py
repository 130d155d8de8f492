"""config.json that is missing, broken or strange; names; nested configs; what the small files say."""

import json

import pytest
from inspect_made import codes, look, tiny, write_tiny

from firstlight.core.errors import InputError
from firstlight.inspect import config as reading
from firstlight.inspect.config import normalise
from firstlight.inspect.kv import attention_kind, kv_bytes_per_token, kv_cache_groups
from firstlight.inspect.text import license_of, template_from


def _finding(checkpoint, code):
    return next(f for f in checkpoint.findings if f.code == code)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "json-empty"),
        ("\x00" * 40, "json-empty"),
        ("{", "json-not-json"),
        ("<html>not found</html>", "json-not-json"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "lfs-pointer"),
        ("[" * 100_000, "json-not-json"),
        ("[1, 2]", "config-wrong-type"),
        ('"text"', "config-wrong-type"),
    ],
)
def test_config_that_is_none(tmp_path, content, code):
    """With weights beside it the checkpoint is still told from them; alone it is an error with the same code."""
    write_tiny(tmp_path / "with")
    (tmp_path / "with/config.json").write_text(content)
    found = look(tmp_path / "with")
    assert code in codes(found)
    assert found.tensor_count
    assert "config.json" in _finding(found, code).message
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/config.json").write_text(content)
    with pytest.raises(InputError) as error:
        look(tmp_path / "alone")
    assert error.value.code == code


def test_config_of_100_mb_is_not_read(tmp_path):
    write_tiny(tmp_path)
    with (tmp_path / "config.json").open("r+b") as f:
        f.truncate(100 << 20)
    assert "104,857,600" in _finding(look(tmp_path), "json-too-large").evidence[0]


def test_config_missing(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "config.json").unlink()
    found = look(tmp_path)
    assert "config-missing" in codes(found)
    assert found.tensor_count
    assert found.num_hidden_layers is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_hidden_layers", "61", "an integer"),
        ("hidden_size", 1.5, "an integer"),
        ("num_attention_heads", True, "an integer"),
        ("architectures", "Llama", "a list of strings"),
        ("layer_types", {"a": 1}, "a list"),
        ("quantization_config", "fp8", "an object"),
        ("model_type", 3, "a string"),
        ("vision_config", [], "an object"),
    ],
)
def test_wrong_type_in_a_field(tmp_path, key, value, expected):
    write_tiny(tmp_path, **{key: value})
    found = _finding(look(tmp_path), "config-wrong-type")
    assert key in found.message
    assert expected in found.evidence[0]


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 10**12), ("hidden_size", -1), ("vocab_size", 1 << 60)])
def test_absurd_numbers_are_unknown_and_cost_nothing(tmp_path, key, value):
    write_tiny(tmp_path, **{key: value})
    found = look(tmp_path)
    assert "config-absurd-value" in codes(found)
    assert getattr(found, key) is None


def test_infinity_is_read_as_python_writes_it(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny(time_step_limit=[0.0, float("inf")])))
    assert look(tmp_path).config["time_step_limit"] == [0.0, "inf"]


def test_unknown_architecture_is_said_with_what_can_be_told(tmp_path):
    write_tiny(tmp_path, architectures=["NobodyKnowsForCausalLM"], model_type="nobody")
    found = look(tmp_path)
    assert "NobodyKnowsForCausalLM" in _finding(found, "architecture-unknown").message
    assert found.kv_bytes_per_token["bf16"] == 2 * 2 * (16 + 16) * 2
    (tmp_path / "model.safetensors").unlink()
    assert {"weights-absent", "tensors-unknown"} <= set(codes(look(tmp_path)))


def test_nested_language_model_wins_and_keeps_the_outer_names():
    raw = {
        "architectures": ["Outer"], "model_type": "outer", "vocab_size": 5,
        "thinker_config": {"text_config": {"num_hidden_layers": 3, "n_routed_experts": 8, "vocab_size": 7, "architectures": ["Inner"]}},
    }  # fmt: skip
    fields = normalise(raw).fields
    assert (fields["num_hidden_layers"], fields["num_experts"], fields["vocab_size"]) == (3, 8, 7)
    assert fields["architectures"] == ["Outer"]


def test_quantization_is_found_where_it_is_nested():
    one = normalise({"text_config": {"quantization_config": {"quant_method": "fp8"}}})
    assert (one.quantization, one.quantization_path) == ({"quant_method": "fp8"}, "text_config.quantization_config")


KV = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
CASES = [
    ({"num_key_value_heads": 8}, "mha", [("full", 12)], 12 * 8 * 128 * 2),
    ({"num_key_value_heads": 1}, "mqa", [("full", 12)], 12 * 1 * 128 * 2),
    ({}, "gqa", [("full", 12)], 12 * 2 * 128 * 2),
    ({"model_type": "gemma3", "sliding_window": 1024}, "gqa", [("sliding-window", 10), ("full", 2)], 2 * 2 * 128 * 2),
    ({"model_type": "gemma2", "sliding_window": 4096}, "gqa", [("sliding-window", 6), ("full", 6)], 6 * 2 * 128 * 2),
    ({"model_type": "mistral", "sliding_window": 4096}, "gqa", [("sliding-window", 12)], None),
    ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "gqa", [("full", 12)], 12 * 512),
    ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 8}, "gqa",
     [("full", 8), ("sliding-window", 4)], 8 * 512),
    ({"num_kv_shared_layers": 4}, "gqa", [("full", 8), ("shared", 4)], 8 * 512),
    ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 3, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
     "hybrid", [("mamba", 9), ("full", 3)], 3 * 512),
    ({"full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
      "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4}, "hybrid", [("linear", 9), ("full", 3)], 3 * 512),
    ({"model_type": "minicpm3", "kv_lora_rank": 256, "qk_rope_head_dim": 32}, "gqa", [("full", 12)], 12 * 512),
    ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "gqa", [("chunked", 9), ("full", 3)], 3 * 512),
    ({"layer_types": ["conv", "full_attention"] * 6, "conv_L_cache": 3}, "hybrid", [("linear", 6), ("full", 6)], 6 * 512),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "attention", "kinds", "bf16"), CASES)
def test_cache_groups_by_family(extra, attention, kinds, bf16):
    fields = normalise({"model_type": "llama"} | KV | extra).fields
    groups = kv_cache_groups(fields)
    assert [(g.kind, len(g.layers)) for g in groups] == kinds
    assert sorted(layer for g in groups if g.kind != "indexer" for layer in g.layers) == list(range(12))
    assert attention_kind(fields, groups) == attention
    assert kv_bytes_per_token(groups)["bf16"] == bf16


def test_every_dtype_of_a_grouped_query_cache():
    sizes = kv_cache_groups(normalise(KV).fields)[0].bytes_per_token_per_layer
    assert sizes == {"bf16": 512, "fp8": 256, "nvfp4": 2 * 2 * (32 + 4), "int8_per_token_head": 256 + 16, "fp8_per_token_head": 256 + 16}


def test_gated_delta_state_is_convolution_and_recurrence():
    fields = normalise(KV | CASES[10][0] | {"mamba_ssm_dtype": "float32"}).fields
    assert kv_cache_groups(fields)[0].state_bytes_per_request == (2 * 64 + 128) * 3 * 2 + 4 * 32 * 32 * 4


def test_unknown_is_null_not_zero():
    assert kv_bytes_per_token(kv_cache_groups({})) == {"bf16": None, "fp8": None}
    assert attention_kind({}, []) is None


def test_small_files(tmp_path):
    write_tiny(tmp_path, auto_map={"AutoModel": "modeling_x.Model", "AutoConfig": "configuration_x.Config"})
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: some-license\n---\ntext")
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    (tmp_path / "chat_template.jinja").write_text("{% if tools %}{{ tools }}{% endif %}<think>")
    (tmp_path / "modeling_x.py").write_text("")
    found = look(tmp_path)
    assert found.license == "some-license"
    assert found.generation_config == {"temperature": 0.6}
    assert (found.chat_template.source, found.chat_template.tools, found.chat_template.reasoning) == ("chat_template.jinja", True, True)
    assert found.trust_remote_code.files == ["configuration_x.py", "modeling_x.py"]
    assert "configuration_x.py" in _finding(found, "remote-code-missing").evidence[0]
    assert (found.tokenizer.class_, found.tokenizer.files) == ("T", ["tokenizer.json", "tokenizer_config.json"])


def test_license_of_a_card_without_front_matter():
    assert license_of(b"# Model") is None
    assert license_of(b"---\nlicense: mit\n---\n") == "mit"


def test_a_plain_template_claims_nothing():
    one = template_from("{{ messages[0].content }}", "gguf")
    assert (one.tools, one.reasoning) == (False, False)


def test_paths_with_spaces_and_unicode(tmp_path):
    found = look(write_tiny(tmp_path / "мой model ü 模型"))
    assert found.name == "мой model ü 模型"
    assert codes(found) == []


def test_read_only_and_unchanged(tmp_path):
    folder = write_tiny(tmp_path)
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()}
    folder.chmod(0o555)
    look(folder)
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()} == before


@pytest.mark.parametrize("ref", ["./nothing", "/nowhere/at/all", "~/not-there", "../x"])
def test_path_that_is_not_there(ref):
    with pytest.raises(InputError) as error:
        look(ref)
    assert error.value.code == "model-not-found"


def test_folder_without_a_model(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError) as error:
        look(tmp_path)
    assert error.value.code == "not-a-checkpoint"
    assert "notes.txt" in error.value.evidence[1]


def test_folder_of_models_names_them(tmp_path):
    write_tiny(tmp_path / "one")
    with pytest.raises(InputError) as error:
        look(tmp_path)
    assert error.value.code == "not-a-checkpoint"
    assert error.value.hint == "name one of the folders inside: one"


def test_limits_are_above_what_is_published():
    assert reading.CONFIG_LIMIT > 3_087_083  # MiniMax-M3-NVFP4, the largest known config.json


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"quantization_config": {"quant_method": ["awq"]}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_algo": {"a": 1}}}, "quantization_config.quant_algo"),
        ({"quantization_config": {"ignore": {"a": 1}}}, "quantization_config.ignore"),
        ({"quantization_config": {"ignore": ["lm_head", None]}}, "quantization_config.ignore"),
        ({"quantization_config": {"config_groups": [1]}}, "quantization_config.config_groups"),
        ({"quantization_config": {"config_groups": {"g": 1}}}, "quantization_config.config_groups.g"),
        ({"quantization_config": {"config_groups": {"g": {"weights": [1]}}}}, "quantization_config.config_groups.g.weights"),
        ({"quantization_config": {"config_groups": {"g": {"format": 1}}}}, "quantization_config.config_groups.g.format"),
        ({"quantization_config": {"config_groups": {"g": {"targets": 3}}}}, "quantization_config.config_groups.g.targets"),
        ({"text_config": []}, "text_config"),
        ({"head_dim": []}, "head_dim"),
        ({"num_key_value_heads": ["8"]}, "num_key_value_heads"),
    ],
)  # fmt: skip
def test_a_wrong_type_anywhere_is_said_and_survived(tmp_path, change, where):
    method = {"quant_method": "compressed-tensors", "quant_algo": "NVFP4"}
    if "quantization_config" in change:
        change = {"quantization_config": method | change["quantization_config"]}
    write_tiny(tmp_path, **change)
    found = [f for f in look(tmp_path).findings if f.code == "config-wrong-type"]
    assert [f.message for f in found] == [f"config.json has a wrong type in {where}"]


@pytest.mark.parametrize("name", ["hf_quant_config.json", "tokenizer_config.json", "generation_config.json"])
def test_companions_that_are_no_objects(tmp_path, name):
    write_tiny(tmp_path)
    (tmp_path / name).write_text("[1]")
    assert next(f for f in look(tmp_path).findings if f.code == "config-wrong-type").message == f"{name} is not an object"


def test_a_wrong_body_in_hf_quant_config(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": 3}}')
    found = [f.message for f in look(tmp_path).findings if f.code == "config-wrong-type"]
    assert found == ["hf_quant_config.json has a wrong type in quantization.quant_algo"]
