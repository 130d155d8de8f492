"""A context that arithmetic refutes, and what yields to a constraint."""

import pytest

from firstlight.app.stages.fitting import shorter_context
from firstlight.app.stages.yielding import without_flags
from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, TensorGroup
from firstlight.core.intent import Intent, Pins
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.plan.plan import plan

LAYERS = list(range(32))


def checkpoint() -> Checkpoint:
    """Small weights, a large KV cache."""
    q_proj = TensorGroup(
        pattern="model.layers.{layer}.self_attn.q_proj.weight", role="attention", dtype="BF16", shape=[4096, 4096], count=32, layers=LAYERS
    )
    group = TensorGroup(pattern="model.embed_tokens.weight", role="embedding", dtype="BF16", shape=[32000, 4096], count=1)
    kv = KvCacheGroup(
        kind="full", layers=LAYERS, bytes_per_token_per_layer={"bf16": 4096, "fp8": 2048}, kv_heads=8, head_dim=128, head_dim_v=128
    )
    return Checkpoint(
        ref="m",
        format="safetensors",
        path="/m",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        config={"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 32},
        num_hidden_layers=32,
        hidden_size=4096,
        attention="gqa",
        max_position_embeddings=4_000_000,
        vocab_size=32000,
        tensor_count=33,
        tensor_bytes=32000 * 4096 * 2 + 32 * 4096 * 4096 * 2,
        tensor_groups=[group, q_proj],
        kv_cache_groups=[kv],
        kv_bytes_per_token={"bf16": 131072, "fp8": 65536},
    )


def plan_with(context: int | None) -> PlanSet:
    intent = Intent(model="m", pins=Pins(max_model_len=context, tensor_parallel_size=1))
    return plan(checkpoint(), imagine("1xrtx-4090"), intent, engine=EngineRef(name="vllm", version="0.32.0"))


def test_the_longest_context_that_surely_fits_is_planned_instead() -> None:
    refuted = plan_with(4_000_000)
    assert refuted.verdict == "does-not-fit"
    constraint = shorter_context(refuted)
    assert constraint is not None
    assert constraint.field == "max_model_len"
    assert constraint.value % 1024 == 0
    assert "4,000,000" in constraint.because
    assert plan_with(constraint.value).verdict == "fits"


def test_a_plan_that_fits_needs_none() -> None:
    assert shorter_context(plan_with(8192)) is None


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        (["--max-model-len", "9", "--seed", "1"], ["--seed", "1"]),
        (["--max_model_len=9", "--seed", "1"], ["--seed", "1"]),
        (["--seed", "1", "--max-model-len", "-1"], ["--seed", "1"]),
        (["--enforce-eager", "--max-model-len", "9", "-O3"], ["--enforce-eager", "-O3"]),
    ],
)
def test_a_flag_that_is_replaced_yields_in_any_spelling(args: list[str], kept: list[str]) -> None:
    assert without_flags(args, {"max_model_len"}) == kept
