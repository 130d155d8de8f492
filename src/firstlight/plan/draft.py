"""An external drafter beside the model: what `--speculative-config` names, as vLLM builds it on each rank of the last pipeline stage.

Sources (vLLM 0.25.1): config/speculative.py (`__post_init__`: which method; `_verify_and_get_draft_tp`), v1/spec_decode/draft_model.py (a
whole model with tables of its own), v1/spec_decode/llm_base_proposer.py (`_maybe_share_embeddings`, `_maybe_share_lm_head`: heads use the
target's tables where they have none or equal ones), models/llama_eagle.py, llama_eagle3.py, medusa.py; layers number on from the target's.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup, TensorGroup
from firstlight.core.figures import Figure
from firstlight.core.units import gib
from firstlight.plan.layouts import Layout
from firstlight.plan.numbers import number
from firstlight.plan.resident import Options, shard_bytes, weights_by_stage
from firstlight.plan.rope import rope_bytes

WITHOUT_MODEL = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class"})
HEADS = frozenset({"eagle", "eagle3", "dflash"})
COUNTED = HEADS | {"draft_model", "medusa"}
AUX_STATES = 3  # hidden states of the target that an EAGLE-3 head is given, where its config does not say
DERIVED_SPREAD, READ_SPREAD = 0.03, 0.005


class Draft(Struct, frozen=True, kw_only=True):
    """checkpoint: the drafter without what it surely shares; shared_perhaps: tables that vLLM drops if they equal the target's.

    kv_groups: as the drafter numbers its layers, from 0. derived: its tensors come from its config alone.
    """

    name: str
    method: str
    checkpoint: Checkpoint
    options: Options
    kv_groups: list[KvCacheGroup]
    shared_perhaps: list[TensorGroup] = []
    own_embedding: TensorGroup | None = None
    shares_rope: bool = False
    derived: bool = False

    @property
    def layers(self) -> int:
        """Layers that cache."""
        return max((n + 1 for g in self.kv_groups for n in g.layers), default=0)

    def weights(self, layout: Layout) -> Figure:
        """Bytes on a rank of the last stage, split over the target's tensor parallelism. The high end keeps what may be shared."""
        alone = msgspec.structs.replace(layout, pipeline_parallel_size=1)
        sure = self._stack(alone)
        if layout.pipeline_parallel_size > 1 and self.own_embedding is not None:
            sure += self._table(self.own_embedding, alone)  # the target's embedding is on another stage
        staged = layout.pipeline_parallel_size > 1
        perhaps = sum(self._table(g, alone) for g in self.shared_perhaps if not (staged and g.role == "embedding"))
        spread = DERIVED_SPREAD if self.derived else READ_SPREAD
        return Figure(low=round(sure * (1 - spread)), mid=round(sure), high=round((sure + perhaps) * (1 + spread)))

    def buffers(self, tokens: int) -> Figure:
        """Persistent inputs of the proposer and, for EAGLE-3, the target's hidden states kept for it: of `tokens` rows."""
        hidden = number(self.checkpoint.config, "hidden_size")
        rows = 1 + (AUX_STATES if self.method in ("eagle3", "dflash") else 0)
        return Figure(low=0, mid=tokens * hidden * 2 * rows, high=tokens * hidden * 2 * rows * 2)

    def about(self, layout: Layout) -> list[str]:
        """What was counted, and what was assumed for it."""
        weights = self.weights(layout)
        told = [f"{self.method}: {gib(weights.low)} to {gib(weights.high)} of weights a rank, {self.layers} layer(s) of KV cache"]
        told += ["split over the target's tensor parallelism"] if layout.tensor_parallel_size > 1 else []
        told += ["on the last pipeline stage only"] if layout.pipeline_parallel_size > 1 else []
        told += ["its tensors are derived from its config"] if self.derived else []
        if self.shared_perhaps:
            names = " and ".join(g.pattern for g in self.shared_perhaps)
            told.append(f"{names}: taken as equal to the target's, which vLLM then shares; the interval's high end keeps them")
        return told

    def _stack(self, layout: Layout) -> float:
        if self.method == "medusa":
            return sum(self._table(g, layout) for g in self.checkpoint.tensor_groups)
        stage = weights_by_stage(self.checkpoint, layout, self.options)[0]
        return stage.allocated - (rope_bytes(self.checkpoint.config, self.options.model_dtype_bytes) if self.shares_rope else 0)

    def _table(self, group: TensorGroup, layout: Layout) -> int:
        """Vocabulary tables are split, all else outside a stack is whole."""
        split = group.role in ("embedding", "lm_head") or group.shape[:1] == [number(self.checkpoint.config, "vocab_size")]
        return shard_bytes(group, "vocab" if split and group.shape else "replicate", {}, layout, self.options) * group.count


def external(spec: Mapping[str, Any] | None, target: Checkpoint) -> str | None:
    """The model that a speculative config names besides the target; None: it needs none."""
    model, method = (spec or {}).get("model"), str((spec or {}).get("method") or "")
    if not isinstance(model, str) or not model or method in WITHOUT_MODEL or model in WITHOUT_MODEL:
        return None
    if "." in model and "/" not in model:
        return None  # a Python class
    own = model in (target.ref, target.path, target.ref.removeprefix("hf://"))
    return None if own and (method == "dspark" or "mtp" in method) else model


def method_of(spec: Mapping[str, Any], draft: Checkpoint) -> str:
    """As vLLM finds it: named, else by the drafter's name, else a whole model."""
    method, name = str(spec.get("method") or "draft_model"), str(spec.get("model") or "").lower()
    if method in ("eagle", "eagle3", "dflash", "dspark"):
        return method
    for part, found in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")):
        if part in name:
            return found
    kind = draft.model_type or ""
    return "mtp" if "mtp" in kind or "mtp" in method else kind if kind in ("medusa", "mlp_speculator") else method


def draft_of(spec: Mapping[str, Any] | None, target: Checkpoint, draft: Checkpoint | None, options: Options) -> Draft | str | None:
    """The drafter as it is counted; a text: why it is not; None: nothing to count."""
    if not spec or (name := external(spec, target)) is None:
        dspark = str((spec or {}).get("method")) == "dspark"
        return "its layers ship inside the target, and no rule for them is known" if dspark else None
    if draft is None:
        return "nothing is known about it"
    method = method_of(spec, draft)
    if method not in COUNTED:
        return f"no rule is known for the method {method}"
    built = _head(draft, target, method) if method in HEADS else draft
    if built is None or not built.tensor_groups:
        return "neither its tensors nor a config that says their sizes"
    if method != "medusa" and not draft.kv_cache_groups:
        return "its config does not say what its layers cache"
    perhaps = [g for g in built.tensor_groups if method in HEADS and _equal_perhaps(g, target)]
    kept = [g for g in built.tensor_groups if g not in perhaps]
    lacks = method in HEADS and not any(g.role == "embedding" for g in kept)
    return Draft(
        name=name,
        method=method,
        checkpoint=msgspec.structs.replace(built, tensor_groups=kept),
        options=msgspec.structs.replace(options, draft=False),
        kv_groups=[] if method == "medusa" else [g for g in draft.kv_cache_groups if g.kind != "shared"],
        shared_perhaps=perhaps,
        own_embedding=_embedding(target) if lacks else None,
        shares_rope=_rope_key(draft.config) == _rope_key(target.config),
        derived=draft.format == "config-only" or built.format == "config-only",
    )


def _rope_key(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two cos/sin tables one."""
    width = number(config, "head_dim") or number(config, "hidden_size") // max(number(config, "num_attention_heads"), 1)
    rest = ("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "qk_rope_head_dim")
    return (width, *(config.get(key) for key in rest))


def _equal_perhaps(group: TensorGroup, target: Checkpoint) -> bool:
    """A table of the same shape as the target's: heads are trained with the target's own, frozen."""
    return group.role in ("embedding", "lm_head") and any(
        g.shape == group.shape for g in target.tensor_groups if g.role in ("embedding", "lm_head")
    )


def _embedding(target: Checkpoint) -> TensorGroup | None:
    return next((g for g in target.tensor_groups if g.role == "embedding" and len(g.shape) == 2), None)


def _head(draft: Checkpoint, target: Checkpoint, method: str) -> Checkpoint | None:
    """A head as the engine names it: `midlayer` is its first layer, `t2d` is not loaded. Without tensors: a Llama layer from its config."""
    if draft.format == "config-only" or not draft.tensor_groups:
        return _derived(draft, target, method)
    groups = [_renamed(g) for g in draft.tensor_groups if "t2d" not in g.pattern and "mask_hidden" not in g.pattern]
    return msgspec.structs.replace(draft, tensor_groups=groups, config=_untied(draft))


def _untied(draft: Checkpoint) -> dict[str, Any]:
    """A head's own lm_head is one, whatever the target's config, which it was copied from, says of its own."""
    return draft.config | {"tie_word_embeddings": False}


def _renamed(group: TensorGroup) -> TensorGroup:
    if "midlayer." not in group.pattern:
        return group
    return msgspec.structs.replace(group, pattern=group.pattern.replace("midlayer.", "layers.{layer}."), layers=[0])


def _derived(draft: Checkpoint, target: Checkpoint, method: str) -> Checkpoint | None:
    """EAGLE and EAGLE-3 heads of Llama's shape; None where the config lacks a size, or for another method."""
    c = draft.config
    hidden, inner, heads = (number(c, key) for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    if method not in ("eagle", "eagle3") or not (hidden and inner and heads and draft.num_hidden_layers) or c.get("kv_lora_rank"):
        return None
    width, kv = number(c, "head_dim") or hidden // heads, number(c, "num_key_value_heads") or heads
    given = hidden * 2 if method == "eagle3" else hidden
    joined = 2 * hidden if method == "eagle" else AUX_STATES * (number(target.config, "hidden_size") or hidden)
    shapes = {
        "self_attn.q_proj": [heads * width, given], "self_attn.k_proj": [kv * width, given], "self_attn.v_proj": [kv * width, given],
        "self_attn.o_proj": [hidden, heads * width], "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }  # fmt: skip
    layers = list(range(draft.num_hidden_layers))
    groups = [
        TensorGroup(
            pattern=f"layers.{{layer}}.{name}.weight",
            role="attention" if "attn" in name else "dense_mlp",
            dtype="BF16",
            shape=shape,
            count=len(layers),
            layers=layers,
        )
        for name, shape in shapes.items()
    ]
    groups.append(TensorGroup(pattern="fc.weight", role="other", dtype="BF16", shape=[hidden, joined], count=1))
    reduced = number(c, "draft_vocab_size")
    if method == "eagle3" and (rows := reduced or number(c, "vocab_size")):
        groups.append(TensorGroup(pattern="lm_head.weight", role="lm_head", dtype="BF16", shape=[rows, hidden], count=1))
        groups.append(TensorGroup(pattern="d2t", role="other", dtype="I64", shape=[rows], count=1))
    return msgspec.structs.replace(draft, format="config-only", tensor_groups=groups, config=_untied(draft))


def plus(one: Figure, more: Figure, because: str) -> Figure:
    """A part of the budget and what the drafter adds to it."""
    if not one.known:
        return one
    low, mid, high = ((a or 0) + (b or 0) for a, b in ((one.low, more.low), (one.mid, more.mid), (one.high, more.high)))
    return Figure(low=low, mid=mid, high=high, rung=one.rung, because=f"{one.because}; {because}" if one.because else because)
