"""Every published model of the table: attention, cache, quantization, tensors; and tensors come back from headers as derived."""

import pytest
from inspect_made import codes, expand, look, published, row, write_row, write_shard

from firstlight.core.checkpoint import Checkpoint
from firstlight.inspect.sums import group_parameters

ROWS = published()
# Counted by transformers 5.19 on the meta device from the same configs (without draft layers, which it does not build).
PARAMETERS = {
    "Qwen/Qwen3-8B": 8_190_735_360, "Qwen/Qwen3-30B-A3B": 30_532_122_624, "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696, "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032, "Qwen/Qwen3.5-27B": 27_356_728_560,
    "Qwen/Qwen3.5-35B-A3B": 35_107_181_936, "XiaomiMiMo/MiMo-V2-Flash": 308_778_768_832, "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "deepseek-ai/DeepSeek-V3.2": 671_877_929_216, "meta-llama/Meta-Llama-3.1-8B": 8_030_261_248,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "moonshotai/Kimi-K2.5": 1_026_879_353_328, "nvidia/Gemma-4-31B-IT-NVFP4": 31_273_086_512, "openai/gpt-oss-20b": 20_914_757_184,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344, "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120_668_687_360,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_968_960, "nvidia/Nemotron-H-56B-Base-8K": 56_324_350_464,
    "MiniMaxAI/MiniMax-M2.5": 228_689_748_992, "zai-org/GLM-5": 743_911_199_232, "zai-org/GLM-5.2": 743_377_000_704,
    "google/gemma-4-26B-A4B": 25_805_933_872, "deepseek-ai/DeepSeek-V4-Flash": 284_332_230_231,
}  # fmt: skip
# What the published checkpoints weigh (the index's total_size, or the sum of files), in bytes.
WEIGHTS = {
    "nvidia/Kimi-K2.5-NVFP4": 590.7e9, "nvidia/Kimi-K2.6-NVFP4": 595e9, "deepseek-ai/DeepSeek-V3": 688.6e9, "openai/gpt-oss-120b": 65.25e9,
    "openai/gpt-oss-20b": 13.76e9, "meta-llama/Meta-Llama-3.1-8B": 16.06e9, "meta-llama/Meta-Llama-3.1-70B": 141.1e9,
    "meta-llama/Meta-Llama-3.1-405B": 811.7e9, "mistralai/Mixtral-8x7B-v0.1": 93.4e9, "mistralai/Mixtral-8x22B-v0.1": 281.2e9,
    "Qwen/Qwen3-30B-A3B": 61.06e9, "Qwen/Qwen3-32B": 65.52e9, "Qwen/Qwen3-235B-A22B": 470.2e9, "Qwen/Qwen3-8B": 16.38e9,
    "nvidia/Llama-3.1-70B-Instruct-FP8": 72.7e9,
}  # fmt: skip


@pytest.mark.parametrize("one", ROWS, ids=lambda r: r["model"])
def test_every_published_config_is_read_right(one, tmp_path):
    found = look(write_row(tmp_path, one))
    want = one["expect"]
    assert found.format == "config-only"
    assert found.attention == want["attention"]
    assert found.kv_bytes_per_token == {"bf16": want["bf16"], "fp8": want["fp8"]}
    assert [_summary(g) for g in found.kv_cache_groups] == want["groups"]
    assert ([found.quantization.method, found.quantization.format] if found.quantization else None) == want["quant"]
    assert (found.kv_cache_quantization.dtype if found.kv_cache_quantization else None) == want["kv"]
    assert (found.tensor_count, found.tensor_bytes) == (want["tensors"], want["bytes"])
    assert codes(found) == ["weights-absent", "tensors-derived"]


def _summary(g):
    sizes = g.bytes_per_token_per_layer
    return [g.kind, len(g.layers), sizes.get("bf16"), sizes.get("fp8"), g.window, g.state_bytes_per_request]


@pytest.mark.parametrize("one", ROWS, ids=lambda r: r["model"])
def test_tensor_groups_share_no_tensor_and_count_whole_layers(one, tmp_path):
    seen = set()
    for g in look(write_row(tmp_path, one)).tensor_groups:
        places = {(g.pattern, layer) for layer in g.layers or [None]}
        assert not places & seen
        assert g.count % len(places) == 0
        seen |= places


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameters_equal_the_reference_implementation(model, tmp_path):
    found = look(write_row(tmp_path, row(model)))
    without_drafts = found.parameters.total - sum(group_parameters(g) for g in found.tensor_groups if g.role == "mtp")
    assert without_drafts == pytest.approx(PARAMETERS[model], rel=2e-5)


@pytest.mark.parametrize("model", WEIGHTS)
def test_bytes_of_a_config_alone_are_within_one_percent_of_the_published_files(model, tmp_path):
    assert look(write_row(tmp_path, row(model))).tensor_bytes == pytest.approx(WEIGHTS[model], rel=0.01)


@pytest.mark.parametrize("one", [r for r in ROWS if (r["expect"]["tensors"] or 0) < 4000], ids=lambda r: r["model"])
def test_tensors_read_from_headers_are_those_derived(one, tmp_path):
    derived = look(write_row(tmp_path, one))
    write_shard(tmp_path / "model.safetensors", expand(derived.tensor_groups))
    read = look(tmp_path)
    assert read.format == "safetensors"
    assert _by_tensor(read) == _by_tensor(derived)
    assert read.tensor_bytes == derived.tensor_bytes
    assert not {"quant-config-checkpoint-mismatch", "quant-ignore-overreach", "architecture-unknown"} & set(codes(read))


def _by_tensor(c: Checkpoint):
    """(pattern, role, dtype, shape) -> count and layers: groups may be cut differently by quantization."""
    result = {}
    for g in c.tensor_groups:
        count, layers = result.get((g.pattern, g.role, g.dtype, tuple(g.shape)), (0, frozenset()))
        result[g.pattern, g.role, g.dtype, tuple(g.shape)] = (count + g.count, layers | set(g.layers))
    return result


def test_kimi_k2_5_nvfp4_to_the_byte(tmp_path):
    """The deployment that started it: 61 layers x 576 x 2 bytes a token, 278,219 tensors."""
    found = look(write_row(tmp_path, row("nvidia/Kimi-K2.5-NVFP4")))
    assert found.kv_bytes_per_token == {"bf16": 70_272, "fp8": 35_136}
    assert (found.tensor_count, found.tensor_bytes) == (278_219, 590_779_957_656)
    assert found.kv_cache_quantization.sources == ["config.json:quantization_config.kv_cache_scheme"]
    assert (found.moe.num_experts, found.moe.num_experts_per_tok, found.moe.shared, found.moe.first_dense_layers) == (384, 8, 1, 1)
    assert found.modalities == ["text", "image", "video"]
    assert found.trust_remote_code.needed is False  # the table drops auto_map


def test_deepseek_v3_2_has_latent_and_indexer_caches(tmp_path):
    found = look(write_row(tmp_path, row("deepseek-ai/DeepSeek-V3.2")))
    assert found.kv_bytes_per_token["fp8"] == 61 * (656 + 132) == 48_068
    assert [g.kind for g in found.kv_cache_groups] == ["sparse-mla", "indexer"]


def test_gpt_oss_counts_only_full_layers(tmp_path):
    found = look(write_row(tmp_path, row("openai/gpt-oss-120b")))
    assert found.kv_bytes_per_token["bf16"] == 36_864
    assert {g.kind: g.window for g in found.kv_cache_groups} == {"sliding-window": 128, "full": None}


def test_layers_past_the_stack_are_drafts(tmp_path):
    found = look(write_row(tmp_path, row("deepseek-ai/DeepSeek-V3")))
    drafts = [g for g in found.tensor_groups if g.role == "mtp"]
    assert drafts
    assert {layer for g in drafts for layer in g.layers} == {61}


BASE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
MOE = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}
LINEAR = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
LATENT = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
# Small models of families that the table has no published config of; counted by transformers 5.19 on the meta device.
SMALL = [
    ("Gemma2ForCausalLM", {"model_type": "gemma2", "num_hidden_layers": 4}, 2_619_648),
    ("Gemma3ForCausalLM", {"model_type": "gemma3_text", "num_hidden_layers": 7}, 4_393_088),
    ("Qwen2MoeForCausalLM", MOE | {"num_hidden_layers": 2, "num_experts": 4, "shared_expert_intermediate_size": 256}, 2_089_728),
    ("Qwen3NextForCausalLM", MOE | LINEAR | {"num_hidden_layers": 4, "num_experts": 8, "shared_expert_intermediate_size": 128,
                                            "full_attention_interval": 4}, 17_055_680),
    ("DeepseekV2ForCausalLM", MOE | LATENT | {"num_hidden_layers": 3, "n_routed_experts": 8, "first_k_dense_replace": 1,
                                             "n_shared_experts": 2, "topk_method": "greedy"}, 5_876_992),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "parameters"), SMALL, ids=[s[0] for s in SMALL])
def test_small_models_have_the_reference_number_of_parameters(name, fields, parameters, tmp_path):
    found = look(write_row(tmp_path, {"config": BASE | fields | {"architectures": [name]}}))
    assert found.parameters.total == parameters
