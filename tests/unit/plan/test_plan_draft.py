"""An external drafter: counted as vLLM 0.25.1 builds it, on small configs that nobody published."""

import json
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_models import inspected

from firstlight.app.cli.plan import command
from firstlight.app.drafting import Drafter, with_reason
from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint, TensorGroup
from firstlight.core.findings import Finding
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Machine
from firstlight.core.plan import Candidate, EngineRef, PlanSet
from firstlight.core.saved import SavedPlan
from firstlight.core.schema import decode
from firstlight.core.units import GIB
from firstlight.plan.plan import plan
from firstlight.plan.speculation import speculation

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 64000, "max_position_embeddings": 65536,
    "rope_theta": 500000.0,
}  # fmt: skip
SMALL = LLAMA | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
GEMMA: dict[str, Any] = LLAMA | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 2,
}  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
FAKED = "1xh100-80gb-sxm"


def model(config: dict[str, Any], name: str = "org/target") -> Checkpoint:
    return inspected(name, config)


def spec(method: str | None = None, name: str = "org/small", **more: Any) -> dict[str, Any]:
    return {"model": name, "num_speculative_tokens": 3, **({"method": method} if method else {}), **more}


def planned(
    wanted: dict[str, Any] | None, draft: Checkpoint | None, target: Checkpoint | None = None, where: str | Machine = FAKED, **pins: Any
) -> PlanSet:
    machine = imagine(where) if isinstance(where, str) else where
    found = target or model(LLAMA)
    pins = {"tensor_parallel_size": 1, "max_model_len": 32768} | pins
    intent = Intent(model=found.ref, pins=Pins(speculative_config=wanted, **pins))
    return plan(found, machine, intent, engine=EngineRef(name="vllm", version="0.25.1"), draft=draft)


def best(found: PlanSet) -> Candidate:
    assert found.best is not None
    assert found.best.per_gpu is not None
    return found.best


def added(found: PlanSet, part: str, target: Checkpoint | None = None, **pins: Any) -> tuple[float, float]:
    """(middle, high end) that the drafter adds to a part of the budget."""
    one, other = (getattr(best(p).per_gpu, part) for p in (found, planned(None, None, target, **pins)))
    return one.mid - other.mid, one.high - other.high


def said(found: PlanSet, code: str) -> list[Finding]:
    return [f for f in found.findings if f.code == code]


def stored(name: str, config: dict[str, Any], tensors: dict[str, list[int]]) -> Checkpoint:
    """A head whose tensors are known by name; `embed_tokens` and `lm_head` have the roles that inspect gives them."""
    roles = {"embed_tokens": "embedding", "lm_head": "lm_head", "self_attn": "attention", "mlp": "dense_mlp"}
    groups = [
        TensorGroup(
            pattern=n,
            role=next((r for part, r in roles.items() if part in n), "other"),
            dtype="I64" if n == "d2t" else "BOOL" if n == "t2d" else "BF16",
            shape=shape,
            count=1,
        )
        for n, shape in tensors.items()
    ]
    return msgspec.structs.replace(model(config, name), format="safetensors", tensor_groups=groups)


def eagle3(**tables: list[int]) -> Checkpoint:
    """One layer that reads 2 x 2048 numbers, three hidden states joined, a vocabulary of 8,000."""
    tensors = {
        "midlayer.self_attn.q_proj.weight": [2048, 4096], "midlayer.self_attn.k_proj.weight": [512, 4096],
        "midlayer.self_attn.v_proj.weight": [512, 4096], "midlayer.self_attn.o_proj.weight": [2048, 2048],
        "midlayer.mlp.gate_proj.weight": [8192, 2048], "midlayer.mlp.up_proj.weight": [8192, 2048],
        "midlayer.mlp.down_proj.weight": [2048, 8192], "fc.weight": [2048, 6144], "d2t": [8000], "t2d": [64000],
        "lm_head.weight": [8000, 2048],
    }  # fmt: skip
    config = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 8000}
    return stored("org/eagle3-head", config, tensors | {f"{n}.weight": shape for n, shape in tables.items()})


HEAD_BYTES = 2 * (2048 * 4096 + 2 * 512 * 4096 + 2048 * 2048 + 3 * 8192 * 2048 + 2048 * 6144 + 8000 * 2048)


def test_a_draft_model_is_counted_whole_with_its_own_tables() -> None:
    draft = model(SMALL, "org/small")
    found = planned(spec(), draft)
    weights, _ = added(found, "weights")
    tensors = sum(2 * g.count * prod(g.shape) for g in draft.tensor_groups)
    assert weights == pytest.approx(tensors, rel=0.01)  # its RoPE table is the target's: heads of one width, positions of one kind
    assert best(found).kv_bytes_per_token == 2 * 2 * (16 * 8 * 64 + 4 * 4 * 64)
    assert [f.severity for f in said(found, "draft-counted")] == ["note"]
    assert not said(found, "draft-not-counted")


def test_a_drafters_kv_cache_makes_the_longest_request_shorter() -> None:
    pins = {"kv_cache_memory_bytes": 4 * GIB}
    without, with_it = planned(None, None, **pins), planned(spec(), model(SMALL, "org/small"), **pins)
    alone, both = (best(p).kv_tokens.mid or 0 for p in (without, with_it))
    assert both / alone == pytest.approx(16 * 8 / (16 * 8 + 4 * 4), rel=0.001)


def test_an_eagle_head_without_tables_uses_the_targets() -> None:
    found = planned(spec("eagle3", "org/eagle3-head"), eagle3())
    weights, high = added(found, "weights")
    assert weights == pytest.approx(HEAD_BYTES + 8 * 8000, rel=0.01)
    assert high == pytest.approx(weights, rel=0.02)
    assert best(found).kv_bytes_per_token == 2 * 2 * 17 * 8 * 64
    activation, _ = added(found, "activation_peak")
    assert activation == best(found).max_num_batched_tokens * 2048 * 2 * 4  # type: ignore[operator]


def test_a_table_like_the_targets_is_an_interval() -> None:
    found = planned(spec("eagle3", "org/eagle3-head"), eagle3(embed_tokens=[64000, 2048]))
    weights, high = added(found, "weights")
    assert weights == pytest.approx(HEAD_BYTES + 8 * 8000, rel=0.01)
    assert high - weights == pytest.approx(64000 * 2048 * 2, rel=0.03)
    assert "embed_tokens" in " ".join(said(found, "draft-counted")[0].evidence)


def test_a_head_of_which_only_the_config_is_there_is_derived() -> None:
    config = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 8000}
    read, derived = (planned(spec("eagle3", "org/eagle3-head"), d) for d in (eagle3(), model(config, "org/eagle3-head")))
    assert added(derived, "weights")[0] == pytest.approx(added(read, "weights")[0], rel=0.001)
    assert any("derived" in line for line in said(derived, "draft-counted")[0].evidence)


def test_the_layer_of_a_head_joins_the_like_layers_of_a_hybrid_target() -> None:
    """8 sliding and 8 + 1 full layers are two groups of 9: 9 pages a block, not groups of one."""
    target = model(GEMMA, "org/gemma")
    found = planned(spec("eagle3", "org/eagle3-head"), eagle3(), target, kv_cache_memory_bytes=4 * GIB)
    without = planned(None, None, target, kv_cache_memory_bytes=4 * GIB)
    assert (best(found).kv_tokens.mid or 0) / (best(without).kv_tokens.mid or 1) == pytest.approx(8 / 9, rel=0.01)


def test_tensor_parallelism_splits_a_drafter_and_pipelines_hold_it_once() -> None:
    draft = model(SMALL, "org/small")
    one, two = (added(planned(spec(), draft, where="2xh100-80gb-sxm", **p), "weights", **p, where="2xh100-80gb-sxm")[0]
                for p in ({"tensor_parallel_size": 1}, {"tensor_parallel_size": 2}))  # fmt: skip
    assert two < one * 0.6
    staged = best(planned(spec(), draft, where="2xh100-80gb-sxm", pipeline_parallel_size=2))
    plain = best(planned(None, None, where="2xh100-80gb-sxm", pipeline_parallel_size=2))
    more = [(a.per_gpu.weights.mid or 0) - (b.per_gpu.weights.mid or 0) for a, b in zip(staged.ranks, plain.ranks, strict=True)]
    assert more[0] == 0
    assert more[1] > 0


@pytest.mark.parametrize(
    ("more", "draft"), [({"draft_tensor_parallel_size": 1}, SMALL), ({}, SMALL | {"vocab_size": 32000})], ids=["its own tp", "vocabulary"]
)
def test_what_vllm_refuses_of_a_drafter_is_refused(more: dict[str, Any], draft: dict[str, Any]) -> None:
    found = planned(spec(**more), model(draft, "org/small"), where="2xh100-80gb-sxm", tensor_parallel_size=2)
    assert found.verdict == "blocked"
    assert said(found, "speculative-config-invalid")


def test_ngram_needs_no_drafter_and_changes_nothing() -> None:
    found = planned(NGRAM, None)
    assert not said(found, "draft-not-counted")
    assert best(found).per_gpu == best(planned(None, None)).per_gpu


def test_the_models_own_multi_token_prediction_is_weights_and_a_layer_of_cache() -> None:
    """Its tensors ship in the model, each depth caches as the model's last layer does, and no drafter is asked for."""
    config = LLAMA | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_nextn_predict_layers": 1,
                      "num_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
                      "n_shared_experts": 1, "kv_lora_rank": 512, "q_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                      "v_head_dim": 64, "first_k_dense_replace": 1}  # fmt: skip
    target = model(config)
    own = {"method": "mtp", "num_speculative_tokens": 1}
    found, alone = planned(own, None, target), best(planned(None, None, target))
    assert added(found, "weights", target)[0] > 0
    latent_and_rope = 2 * (512 + 32)
    assert (best(found).kv_bytes_per_token or 0) - (alone.kv_bytes_per_token or 0) == latent_and_rope
    assert not [f for f in found.findings if f.code.startswith("draft-")]
    assert best(found).per_gpu == best(planned(own | {"model": target.ref}, None, target)).per_gpu


HYBRID = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "head_dim": 128, "num_experts": 0, "mtp_num_hidden_layers": 2,
}  # fmt: skip


def test_drafts_of_a_hybrid_hold_states_and_its_own_prediction_caches_like_full_attention() -> None:
    """Each request keeps one more state for each drafted token, whoever drafts it; the prediction's layers page with the full ones."""
    target = model(HYBRID)
    alone, guessed, own = (best(planned(wanted, None, target)) for wanted in (None, NGRAM, {"method": "mtp", "num_speculative_tokens": 3}))
    assert guessed.kv_bytes_per_token == alone.kv_bytes_per_token
    full = next(g for g in target.kv_cache_groups if g.kind == "full")
    assert (own.kv_bytes_per_token or 0) - (alone.kv_bytes_per_token or 0) == 2 * full.bytes_per_token_per_layer["bf16"]
    plain, more = (speculation(target, w, None).states for w in (None, NGRAM))
    assert (plain, more) == (0, 3)
    assert (guessed.max_concurrency.mid or 0) < (alone.max_concurrency.mid or 0)


def test_what_cannot_be_counted_says_why() -> None:
    unread = with_reason(planned(spec(), None), Drafter(unread="not-a-checkpoint: nothing there"))
    assert said(unread, "draft-not-counted")[0].evidence[0] == "not-a-checkpoint: nothing there"
    odd = planned(spec("mlp_speculator"), model(SMALL, "org/small"))
    assert "mlp_speculator" in said(odd, "draft-not-counted")[0].message
    assert best(odd).per_gpu == best(planned(None, None)).per_gpu


def test_a_cpu_holds_the_drafter_too_and_its_flag_reaches_the_engine() -> None:
    machine = Machine(hostname="host", memory_total_bytes=64 * GIB, memory_available_bytes=60 * GIB)
    alone, both = (best(planned(w, d, where=machine)) for w, d in ((None, None), (spec(), model(SMALL, "org/small"))))
    assert "--speculative-config" in both.args
    assert (both.per_gpu.weights.mid or 0) > (alone.per_gpu.weights.mid or 0)  # type: ignore[union-attr]
    assert (both.kv_bytes_per_token or 0) - (alone.kv_bytes_per_token or 0) == 2 * 2 * 4 * 4 * 64


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(1, 12), st.sampled_from([1, 2]), st.integers(8, 30), st.sampled_from([LLAMA, GEMMA]))
def test_a_larger_drafter_never_leaves_room_for_more(layers: int, more: int, tp: int, size: int, target: dict[str, Any]) -> None:
    machine = imagine(f"{tp}xl40s")
    gpus = [msgspec.structs.replace(a, cuda_total_bytes=size * GIB) for a in machine.accelerators]
    machine = msgspec.structs.replace(machine, accelerators=gpus)
    pins = {"tensor_parallel_size": tp, "max_num_seqs": 64, "kv_cache_dtype": "bfloat16"}  # the plan's own FP8 cache would hold more
    drafts = [None, *(model(LLAMA | {"num_hidden_layers": n}, "org/small") for n in (layers, layers + more))]
    found = [best(planned(spec() if d else None, d, model(target), machine, **pins)) for d in drafts]
    lengths = [c.max_model_len_that_fits.mid or 0 for c in found]
    assert lengths[0] >= lengths[1] >= lengths[2]
    for c in found:
        assert c.per_gpu is not None
        assert (c.per_gpu.weights.low or 0) <= (c.per_gpu.weights.mid or 0) <= (c.per_gpu.weights.high or 0)


def test_the_engines_own_line_of_a_start_with_a_draft_model() -> None:
    """vLLM 0.32.0 on a CPU, 1 GiB of KV space: `KV cache size: 419,328 tokens, Maximum concurrency for 4,096 tokens: 102.38x`."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32, "vocab_size": 1024}
    target, small = (
        model(LLAMA | sizes | {"num_hidden_layers": n, "num_key_value_heads": n, "max_position_embeddings": 4096}, f"org/{n}")
        for n in (4, 2)
    )
    machine = Machine(hostname="host", memory_total_bytes=32 * GIB, memory_available_bytes=20 * GIB)
    found = best(planned(spec(name="org/2"), small, target, machine, max_model_len=4096, kv_cache_memory_bytes=GIB))
    assert (found.kv_tokens.mid, found.max_concurrency.mid) == (419_328, 102.38)


def _folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_plan_reads_the_drafter_and_saves_it(tmp_path: Path) -> None:
    target, draft = _folder(tmp_path / "target", LLAMA), _folder(tmp_path / "small", SMALL)
    saved = tmp_path / "plan.json"
    wanted = json.dumps({"model": draft, "num_speculative_tokens": 3})
    args = [target, "--gpu", FAKED, "--engine", "vllm@0.25.1", "--speculative-config", wanted, "-o", "json", "--save", str(saved)]
    result = CliRunner().invoke(command, args, standalone_mode=False)
    assert result.exception is None, result.output
    document = decode(saved.read_bytes(), SavedPlan)
    assert document.draft is not None
    assert document.draft.num_hidden_layers == 4
    assert said(document.plan, "draft-counted")


def test_a_drafter_that_is_not_there_leaves_the_plan_and_a_reason(tmp_path: Path) -> None:
    target, saved = _folder(tmp_path / "target", LLAMA), tmp_path / "plan.json"
    wanted = json.dumps({"model": str(tmp_path / "none"), "num_speculative_tokens": 3})
    args = [target, "--gpu", FAKED, "--engine", "vllm@0.25.1", "--speculative-config", wanted, "--save", str(saved), "-o", "json"]
    result = CliRunner().invoke(command, args, standalone_mode=False)
    assert result.exception is None, result.output
    document = decode(saved.read_bytes(), SavedPlan)
    assert document.draft is None
    assert "none" in said(document.plan, "draft-not-counted")[0].evidence[0]
