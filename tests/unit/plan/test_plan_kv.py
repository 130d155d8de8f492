"""KV pages, blocks and lengths against figures that vLLM itself printed, and the pool against measured starts."""

import statistics

import msgspec
import pytest
from plan_measured import logged_tokens, promise
from plan_models import checkpoint, inspected, rows

from firstlight.core.checkpoint import KvCacheGroup
from firstlight.core.units import GIB
from firstlight.plan.kv import dtype_key, kv_plan, token_bytes
from firstlight.plan.layouts import Layout


def test_an_mla_cache_is_not_split_by_tensor_parallelism() -> None:
    kimi = checkpoint("kimi-k2.5-nvfp4")
    assert token_bytes(kimi, "bf16", 8) == token_bytes(kimi, "bf16", 1) == 70272
    assert token_bytes(kimi, "fp8", 8) == 35136


def test_the_first_users_pool_in_tokens() -> None:
    plan = kv_plan(checkpoint("kimi-k2.5-nvfp4"), Layout(tensor_parallel_size=8), "bf16")
    assert plan.longest(11.7 * GIB, 262144) == pytest.approx(178_000, rel=0.005)
    assert plan.needed_bytes(262144) / GIB == pytest.approx(17.16, abs=0.01)


def test_the_engines_own_estimate_of_the_longest_request() -> None:
    """vLLM on CPU: 131,072 tokens need 4.29 GiB, 1 GiB holds 30,528 (one block is never handed out)."""
    plan = kv_plan(checkpoint("kimi-k2.5-nvfp4"), Layout(tensor_parallel_size=8), "fp8", null_blocks=1)
    assert plan.needed_bytes(131072) / GIB == pytest.approx(4.29, abs=0.005)
    assert plan.longest(1 * GIB, 131072) == 30528


def test_context_parallelism_multiplies_what_a_latent_cache_holds() -> None:
    one, eight = (
        kv_plan(checkpoint("kimi-k2.5-nvfp4"), Layout(tensor_parallel_size=8, decode_context_parallel_size=dcp), "fp8") for dcp in (1, 8)
    )
    assert one.concurrency(12 * GIB, 131072) == pytest.approx(2.80, abs=0.005)
    assert eight.concurrency(12 * GIB, 131072) == pytest.approx(22.38, abs=0.005)


def test_sliding_layers_are_grouped_as_the_engine_groups_them() -> None:
    plan = kv_plan(checkpoint("gemma-3-27b"), Layout(tensor_parallel_size=2), "bf16")
    assert sorted(len(g.layers) for g in plan.groups) == [8, 8, 9, 9, 9, 9, 10]
    assert plan.blocks(30 * GIB) == 49152


def test_nearly_equal_kinds_make_one_group_each() -> None:
    plan = kv_plan(checkpoint("gpt-oss-120b"), Layout(), "bf16")
    assert [(g.kind, len(g.layers)) for g in plan.groups] == [("sliding-window", 18), ("full", 18)] or len(plan.groups) == 2


def test_attention_blocks_grow_to_a_state_page() -> None:
    assert kv_plan(checkpoint("qwen3.8-27b-fp8"), Layout(), "fp8", block_size=64).block_size == 1600


def test_releases_before_hybrid_groups_keep_the_whole_context_everywhere() -> None:
    """Llama 4 Scout on vLLM 0.9: 10,485,760 tokens needed 240 GiB, 88.38 GiB held 3,861,424."""
    plan = kv_plan(checkpoint("llama-4-scout"), Layout(tensor_parallel_size=8), "bf16", hybrid=False)
    assert plan.needed_bytes(10_485_760) / GIB == pytest.approx(240.0)
    assert plan.longest(88.38 * GIB, 10_485_760) == pytest.approx(3_861_424, abs=500)


def test_pipeline_stages_hold_their_own_layers() -> None:
    whole, halves = (kv_plan(checkpoint("qwen3-coder-30b-a3b-fp8"), Layout(pipeline_parallel_size=pp), "bf16") for pp in (1, 2))
    assert whole.needed_bytes(262144) / GIB == pytest.approx(24.0)
    assert halves.block_bytes * 2 == whole.block_bytes


def test_the_size_line_changed_its_meaning_in_0_20() -> None:
    plan = kv_plan(checkpoint("gemma-3-27b"), Layout(tensor_parallel_size=2), "bf16")
    old, new = (plan.logged_tokens(30 * GIB, 32768, version) for version in ((0, 19, 1), (0, 20, 2)))
    assert old == 49152 // 7 * 16
    assert new == plan.capacity(30 * GIB, 32768) > old


def test_tokens_never_exceed_the_bytes() -> None:
    plan = kv_plan(checkpoint("llama-3.1-8b"), Layout(), "bf16")
    assert plan.capacity(10 * GIB, 8192) * 131072 <= 10 * GIB


def test_the_pool_on_the_half_that_was_not_fitted() -> None:
    """What the plan promises: covered on 90 % of rows, half-width under 10 %, median error under 6 %."""
    held_out = [promise(row) for row in rows("kv")[1::2]]
    assert sum(p.covered for p in held_out) / len(held_out) >= 0.9
    assert statistics.median(p.half_width for p in held_out) < 0.10
    assert statistics.median(abs(p.pool_error) for p in held_out) < 0.06


def test_the_first_users_pool_in_bytes() -> None:
    row = next(r for r in rows("kv") if r["model"] == "kimi-k2.5-nvfp4")
    found = promise(row)
    assert found.covered
    assert abs(found.pool_error) < 0.04


SPARSE = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840,
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 61 * (1152 + 132)), ("fp8", 61 * (656 + 132)), ("fp8_ds_mla", 61 * (656 + 132))])
def test_sparse_attention_caches_the_latent_and_the_indexers_key(dtype: str, size: int) -> None:
    """DeepSeek-V3.2: 48,068 bytes a token with the packed FP8 latent."""
    assert token_bytes(inspected("sparse", SPARSE), dtype_key(dtype), 8) == size


def test_nvfp4_caches_take_half_a_byte_and_a_scale_for_sixteen() -> None:
    model = checkpoint("gpu/llama8b")
    assert token_bytes(model, dtype_key("nvfp4"), 1) == 32 * 8 * 2 * (128 // 2 + 128 // 16)
    assert token_bytes(model, dtype_key("nvfp4"), 8) * 8 == token_bytes(model, dtype_key("nvfp4"), 1)


def test_layers_that_share_anothers_cache_take_none() -> None:
    base = checkpoint("llama-3.1-8b")
    own, shared = base.kv_cache_groups[0].layers[:16], base.kv_cache_groups[0].layers[16:]
    full = msgspec.structs.replace(base.kv_cache_groups[0], layers=own)
    sharing = msgspec.structs.replace(base, kv_cache_groups=[full, KvCacheGroup(kind="shared", layers=shared)])
    whole, half = (kv_plan(model, Layout(), "bf16") for model in (base, sharing))
    assert half.block_bytes * 2 == whole.block_bytes


def test_a_pipeline_stage_holds_neither_anothers_sampler_nor_communication_for_tensors() -> None:
    """Two H200s, Llama-3.1-8B: PP2 left 120.15 GiB for the cache, TP2 119.70."""
    rows_ = {row["case"].split(": ")[-1]: promise(row) for row in rows("kv") if "case" in row}
    pipeline, tensor = rows_["llama8b-pp2-eager"], rows_["llama8b-tp2-eager"]
    assert pipeline.covered
    assert tensor.covered
    assert (pipeline.pool.mid or 0) > (tensor.pool.mid or 0)


def test_every_start_that_was_measured_on_a_gpu_is_a_row() -> None:
    import subprocess
    import sys
    from pathlib import Path

    tool = Path(__file__).parents[3] / "tools" / "feed_rows.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("row", [r for r in rows("kv") if "kv_tokens" in r], ids=lambda r: str(r["case"]))
def test_the_engines_size_line_to_the_hundredth_of_a_gib_that_it_prints(row: dict[str, float]) -> None:
    """Full, latent, sliding, linear layers, FP8 caches and pipeline stages on real GPUs; the line's GiB are rounded to 0.01."""
    assert logged_tokens(row) == pytest.approx(row["kv_tokens"], rel=0.006 / row["kv_gib"])
