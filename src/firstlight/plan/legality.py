"""Which layouts a model's shapes and an engine's release allow; each refusal with the engine's reason and the legal alternatives."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from firstlight.catalog import backends
from firstlight.core.checkpoint import Checkpoint, TensorGroup
from firstlight.plan.kv import dtype_key
from firstlight.plan.layouts import Layout
from firstlight.plan.numbers import experts_of
from firstlight.plan.situation import Situation

_BLOCKED = frozenset({"fp8-block"})
OWN_SELECTOR = "(v4)"  # DeepSeek V4 picks its own backend: the general selector's answer does not count


class Refusal(Struct, frozen=True, kw_only=True):
    """code: as diagnosis names the failure that it would become."""

    code: str
    because: str


def refusal_of(layout: Layout, situation: Situation) -> Refusal | None:
    """The first reason against a layout, memory aside; None: it may be built."""
    return next(_refusals(layout, situation), None)


def _refusals(layout: Layout, s: Situation) -> Iterator[Refusal]:
    config, tp = s.checkpoint.config, layout.tensor_parallel_size
    if layout.world > s.world:
        yield Refusal(code="too-few-gpus", because=f"{layout} takes {layout.world} GPUs; there are {s.world}")
    yield from _heads(config, tp)
    layers = s.checkpoint.num_hidden_layers or 0
    if layout.pipeline_parallel_size > max(layers, 1):
        yield Refusal(code="pp-more-than-layers", because=f"{layout.pipeline_parallel_size} stages, {layers} layers")
    if layout.enable_expert_parallel and not experts_of(config):
        yield Refusal(code="ep-without-experts", because="the model has no experts to spread")
    if layout.decode_context_parallel_size > 1:
        yield from _context_parallel(layout, s)
    if problem := quant_block_problem(layout, s):
        yield problem
    yield from _drafter(layout, s)


def _heads(config: dict[str, Any], tp: int) -> Iterator[Refusal]:
    heads = config.get("num_attention_heads")
    kv = config.get("num_key_value_heads") or heads
    if heads and heads % tp:
        legal = [t for t in (1, 2, 4, 8, 16, 32) if heads % t == 0]
        yield Refusal(code="tp-heads-not-divisible", because=f"{heads} attention heads are no multiple of {tp}; legal: {_listed(legal)}")
    elif kv and not config.get("kv_lora_rank") and kv % tp and tp % kv:
        yield Refusal(code="tp-heads-not-divisible", because=f"{kv} KV heads neither divide nor are divided by {tp}")
    linear = config.get("linear_num_key_heads")
    if linear and linear % tp:
        yield Refusal(code="tp-heads-not-divisible", because=f"{linear} linear-attention key heads are no multiple of {tp}")


def _drafter(layout: Layout, s: Situation) -> Iterator[Refusal]:
    """What vLLM asks of a drafter (config/speculative.py, v1/spec_decode/draft_model.py; 0.25.1)."""
    spec, draft, tp = s.wish.pins.speculative_config or {}, s.draft, layout.tensor_parallel_size
    wanted = spec.get("draft_tensor_parallel_size")
    if draft is None:
        return
    if wanted is not None and wanted != tp and (draft.method == "draft_model" or wanted != 1):
        yield Refusal(code="speculative-config-invalid", because=f"draft_tensor_parallel_size {wanted} beside {tp} of the target")
    own, theirs = draft.checkpoint.config.get("vocab_size"), s.checkpoint.config.get("vocab_size")
    if draft.method == "draft_model" and own and theirs and own != theirs and not spec.get("use_heterogeneous_vocab"):
        yield Refusal(code="speculative-config-invalid", because=f"the drafter's vocabulary has {own:,} tokens, the target's {theirs:,}")


def _context_parallel(layout: Layout, s: Situation) -> Iterator[Refusal]:
    config, tp, dcp = s.checkpoint.config, layout.tensor_parallel_size, layout.decode_context_parallel_size
    kv = 1 if config.get("kv_lora_rank") else int(config.get("num_key_value_heads") or 1)
    if tp % dcp or dcp > tp // kv:
        yield Refusal(
            code="dcp-tp-le-kv-heads",
            because=f"context parallelism of {dcp} needs {dcp} copies of the KV heads; tp {tp} over {kv} makes {max(tp // kv, 1)}",
        )
    elif any(g.kind in ("sliding-window", "chunked") for g in s.checkpoint.kv_cache_groups):
        yield Refusal(code="dcp-sliding-window", because="sliding-window layers cannot be split over context")


def quant_block_problem(layout: Layout, s: Situation) -> Refusal | None:
    """Block-quantized FP8 shards must be whole blocks, up to 0.28; vLLM 0.29 builds the rest too."""
    checkpoint, groups = s.checkpoint, s.resident.groups
    quant = checkpoint.quantization
    if quant is None or quant.format not in _BLOCKED or not s.terms.quant_block_must_divide:
        return None
    found = _undivided(checkpoint, groups, layout)
    if found is None:
        return None
    legal = [t for t in (1, 2, 4, 8, 16) if t <= s.world and not _undivided(checkpoint, groups, Layout(tensor_parallel_size=t))]
    with_experts = Layout(tensor_parallel_size=layout.tensor_parallel_size, enable_expert_parallel=True)
    other = [f"--tensor-parallel-size {_listed(legal)}"] if legal else []
    if experts_of(checkpoint.config) and not layout.enable_expert_parallel and not _undivided(checkpoint, groups, with_experts):
        other.append(f"--tensor-parallel-size {layout.tensor_parallel_size} --enable-expert-parallel")
    name, size, part, block = found
    return Refusal(
        code="tp-quant-block-not-divisible",
        because=f"{name}: {size} / {size // part} = {part} is no multiple of the quantization block {block}; legal: "
        + (" or ".join(other) or "none on this machine")
        + ", or vLLM 0.29 and later",
    )


def _undivided(checkpoint: Checkpoint, groups: Sequence[TensorGroup], layout: Layout) -> tuple[str, int, int, int] | None:
    """(module, dimension, shard, block) of the first linear whose shard is no whole number of blocks."""
    size = checkpoint.quantization.group_size if checkpoint.quantization else None
    block_n, block_k = size if isinstance(size, list) and len(size) == 2 else (128, 128)
    tp, kv = layout.tensor_parallel_size, int(checkpoint.config.get("num_key_value_heads") or 1)
    for group in groups:
        if group.dtype != "F8_E4M3" or len(group.shape) < 2 or not group.pattern.endswith("weight"):
            continue
        name = group.pattern.rsplit(".", 2)[-2]
        out, inner = group.shape[-2:]
        ways = tp
        if group.role == "routed_experts":
            ways = 1 if layout.enable_expert_parallel else layout.expert_ways
        elif name in ("k_proj", "v_proj"):
            ways = min(tp, kv)
        elif name in ("q_a_proj", "kv_a_proj_with_mqa") or group.role in ("indexer", "router", "vision", "projector"):
            continue
        row = name in ("o_proj", "down_proj", "out_proj", "w2")
        size_, block = (inner, block_k) if row else (out, block_n)
        if ways > 1 and size_ % ways == 0 and (size_ // ways) % block:
            return name, size_, size_ // ways, block
    return None


def kv_dtype_refusal(s: Situation, dtype: str) -> Refusal | None:
    """No attention backend of this release takes this KV dtype on this GPU; None: one does, or the table does not know."""
    if s.sm is None:
        return None
    for layer in backends.attention_layers(s.checkpoint):
        if layer.endswith(OWN_SELECTOR):
            continue
        cell = backends.lookup(s.engine.version, s.sm, layer, dtype)
        if cell is None or cell.chosen is not None:
            continue
        first = backends.first_release_with(s.sm, layer, dtype, after=s.engine.version)
        return Refusal(
            code="attn-backend-unsupported-kv-dtype",
            because=f"vLLM {s.engine.version} has no attention backend for {layer} with a {dtype} KV cache on compute capability "
            f"{s.sm / 10:.1f}" + (f"; {first} has one" if first else ""),
        )
    return None


def attention_backend(s: Situation, dtype: str) -> str | None:
    """What the release's own selector picks; None where the table does not know."""
    layers = backends.attention_layers(s.checkpoint)
    if s.sm is None or not layers:
        return None
    return backends.choose(s.engine.version, s.sm, layers[0], "auto" if dtype_key(dtype) == "bf16" else dtype)


def _listed(sizes: list[int]) -> str:
    return "|".join(map(str, sizes))
