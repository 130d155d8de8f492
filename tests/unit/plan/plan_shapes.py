"""Tensor groups from a config alone, by hand: an oracle for the planner that does not come from inspect.

Names and shapes follow the published checkpoints of each family. Unknown architectures give no groups rather than wrong ones.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from firstlight.core.checkpoint import Checkpoint, QuantSpec, TensorGroup

_FP8_BLOCK = 128


class Linear(NamedTuple):
    """One linear module before quantization. role: as inspect names it. per: how many like it in a layer (experts)."""

    module: str
    role: str
    out: int
    in_: int
    bias: bool = False
    per: int = 1


def groups_from_config(checkpoint: Checkpoint) -> list[TensorGroup]:
    config = checkpoint.config
    layers = config.get("num_hidden_layers")
    if not layers or not config.get("hidden_size") or not config.get("vocab_size"):
        return []
    if not (config.get("num_attention_heads") or config.get("kv_lora_rank")):
        return []
    quant = checkpoint.quantization
    groups = list(_outside(config))
    for numbers, linears, plain in _stack(config, layers):
        for linear in linears:
            groups += _stored(linear, numbers, quant)
        groups += [_group(f"model.layers.{{layer}}.{name}", role, dtype, shape, numbers) for name, role, dtype, shape in plain]
    return groups + list(_vision(config))


Plain = tuple[str, str, str, list[int]]


def _stack(config: dict[str, Any], layers: int) -> Iterator[tuple[list[int], list[Linear], list[Plain]]]:
    """Attention by kind, feed-forward by kind, and the norms that every layer has."""
    kinds = _layer_kinds(config, layers)
    hidden = config["hidden_size"]
    for kind in sorted(set(kinds)):
        numbers = [i for i, k in enumerate(kinds) if k == kind]
        yield numbers, *(_gdn(config) if kind == "linear" else _mla(config) if config.get("kv_lora_rank") else _gqa(config))
    dense, sparse = _feed_forward_layers(config, layers)
    if dense:
        yield dense, _mlp("mlp", "dense_mlp", hidden, config.get("intermediate_size") or 4 * hidden), []
    if sparse:
        yield sparse, *_moe(config)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if str(config.get("model_type", "")).startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    yield list(range(layers)), [], [(f"{n}.weight", "norm", "BF16", [hidden]) for n in norms]


def _layer_kinds(config: dict[str, Any], layers: int) -> list[str]:
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return ["linear" if "linear" in str(t) else "attention" for t in types]
    every = config.get("full_attention_interval")
    if every and config.get("linear_num_value_heads"):
        return ["attention" if i % every == every - 1 else "linear" for i in range(layers)]
    return ["attention"] * layers


def _feed_forward_layers(config: dict[str, Any], layers: int) -> tuple[list[int], list[int]]:
    experts = _experts(config)
    if not experts:
        return list(range(layers)), []
    first = config.get("first_k_dense_replace") or 0
    step = config.get("decoder_sparse_step") or config.get("moe_layer_freq") or config.get("interleave_moe_layer_step") or 1
    step = step if isinstance(step, int) else 1
    only = set(config.get("mlp_only_layers") or ())
    sparse = [i for i in range(first, layers) if i not in only and ((i + 1) % step == 0 if step > 1 else True)]
    return sorted(set(range(layers)) - set(sparse)), sparse


def _experts(config: dict[str, Any]) -> int:
    return int(config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0)


def _gqa(config: dict[str, Any]) -> tuple[list[Linear], list[Plain]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or hidden // heads
    kind = str(config.get("model_type", ""))
    bias = bool(config.get("attention_bias")) or kind.startswith(("qwen2", "gpt_oss"))
    gate = 2 if config.get("attn_output_gate") or kind.startswith(("qwen3_next", "qwen3_5")) else 1
    linears = [
        Linear("self_attn.q_proj", "attention", gate * heads * dim, hidden, bias),
        Linear("self_attn.k_proj", "attention", kv * dim, hidden, bias),
        Linear("self_attn.v_proj", "attention", kv * dim, hidden, bias),
        Linear("self_attn.o_proj", "attention", hidden, heads * dim, kind == "gpt_oss"),
    ]
    plain: list[Plain] = []
    if kind.startswith(("qwen3", "gemma3", "gemma4", "glm4_moe", "minimax")):
        plain = [(f"self_attn.{n}_norm.weight", "norm", "BF16", [dim]) for n in "qk"]
    if kind == "gpt_oss":
        plain.append(("self_attn.sinks", "attention", "BF16", [heads]))
    return linears, plain


def _mla(config: dict[str, Any]) -> tuple[list[Linear], list[Plain]]:
    hidden, heads, q_rank, rank = config["hidden_size"], config["num_attention_heads"], config.get("q_lora_rank"), config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    a = "self_attn."
    plain: list[Plain] = [(a + "kv_a_layernorm.weight", "norm", "BF16", [rank])]
    if q_rank:
        query = [Linear(a + "q_a_proj", "attention", q_rank, hidden), Linear(a + "q_b_proj", "attention", heads * (nope + rope), q_rank)]
        plain.append((a + "q_a_layernorm.weight", "norm", "BF16", [q_rank]))
    else:
        query = [Linear(a + "q_proj", "attention", heads * (nope + rope), hidden)]
    linears = [
        *query,
        Linear(a + "kv_a_proj_with_mqa", "attention", rank + rope, hidden),
        Linear(a + "kv_b_proj", "attention", heads * (nope + value), rank),
        Linear(a + "o_proj", "attention", hidden, heads * value),
    ]
    if config.get("index_n_heads"):
        index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
        linears += [
            Linear(a + "indexer.wq_b", "indexer", index_heads * index_dim, q_rank or hidden),
            Linear(a + "indexer.wk", "indexer", index_dim, hidden),
        ]
        plain += [
            (a + "indexer.weights_proj.weight", "indexer", "BF16", [index_heads, hidden]),
            (a + "indexer.k_norm.weight", "norm", "BF16", [index_dim]),
        ]
    return linears, plain


def _gdn(config: dict[str, Any]) -> tuple[list[Linear], list[Plain]]:
    """Gated DeltaNet layers (Qwen3-Next, Qwen3.5)."""
    hidden, a = config["hidden_size"], "linear_attn."
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    conv = 2 * key + heads * dim
    linears = [
        Linear(a + "in_proj_qkv", "attention", conv, hidden),
        Linear(a + "in_proj_z", "attention", heads * dim, hidden),
        Linear(a + "out_proj", "attention", hidden, heads * dim),
    ]
    plain: list[Plain] = [
        (a + "in_proj_a.weight", "attention", "BF16", [heads, hidden]),
        (a + "in_proj_b.weight", "attention", "BF16", [heads, hidden]),
        (a + "conv1d.weight", "attention", "BF16", [conv, 1, config.get("linear_conv_kernel_dim") or 4]),
        (a + "A_log", "attention", "F32", [heads]),
        (a + "dt_bias", "attention", "BF16", [heads]),
        (a + "norm.weight", "norm", "F32", [dim]),
    ]
    return linears, plain


def _mlp(module: str, role: str, hidden: int, inner: int, per: int = 1) -> list[Linear]:
    return [
        Linear(f"{module}.gate_proj", role, inner, hidden, per=per),
        Linear(f"{module}.up_proj", role, inner, hidden, per=per),
        Linear(f"{module}.down_proj", role, hidden, inner, per=per),
    ]


def _moe(config: dict[str, Any]) -> tuple[list[Linear], list[Plain]]:
    hidden, experts = config["hidden_size"], _experts(config)
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    if config.get("model_type") == "gpt_oss":
        return [], _gpt_oss_experts(hidden, inner, experts)
    linears = _mlp("mlp.experts.{expert}", "routed_experts", hidden, inner, per=experts)
    plain: list[Plain] = [("mlp.gate.weight", "router", "BF16", [experts, hidden])]
    if config.get("topk_method") == "noaux_tc" or config.get("scoring_func") == "sigmoid":
        plain.append(("mlp.gate.e_score_correction_bias", "router", "F32", [experts]))
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * inner
    if shared:
        name = "mlp.shared_experts" if config.get("n_shared_experts") else "mlp.shared_expert"
        linears += _mlp(name, "shared_experts", hidden, shared)
        if name == "mlp.shared_expert":
            plain.append(("mlp.shared_expert_gate.weight", "shared_experts", "BF16", [1, hidden]))
    return linears, plain


def _gpt_oss_experts(hidden: int, inner: int, experts: int) -> list[Plain]:
    e = "mlp.experts."
    return [
        ("mlp.router.weight", "router", "BF16", [experts, hidden]),
        ("mlp.router.bias", "router", "BF16", [experts]),
        (e + "gate_up_proj_blocks", "routed_experts", "U8", [experts, 2 * inner, hidden // 32, 16]),
        (e + "gate_up_proj_scales", "routed_experts", "U8", [experts, 2 * inner, hidden // 32]),
        (e + "gate_up_proj_bias", "routed_experts", "BF16", [experts, 2 * inner]),
        (e + "down_proj_blocks", "routed_experts", "U8", [experts, hidden, inner // 32, 16]),
        (e + "down_proj_scales", "routed_experts", "U8", [experts, hidden, inner // 32]),
        (e + "down_proj_bias", "routed_experts", "BF16", [experts, hidden]),
    ]


def _outside(config: dict[str, Any]) -> Iterator[TensorGroup]:
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    yield _group("model.embed_tokens.weight", "embedding", "BF16", [vocab, hidden])
    yield _group("model.norm.weight", "norm", "BF16", [hidden])
    if not config.get("tie_word_embeddings"):
        yield _group("lm_head.weight", "lm_head", "BF16", [vocab, hidden])


def _vision(config: dict[str, Any]) -> Iterator[TensorGroup]:
    """A vision transformer's blocks and its projector, in the sizes of the vision config; bf16."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return
    width = vision.get("hidden_size") or vision.get("vt_hidden_size")
    depth = vision.get("depth") or vision.get("num_hidden_layers") or vision.get("vt_num_hidden_layers")
    inner = vision.get("intermediate_size") or vision.get("vt_intermediate_size")
    if not (width and depth and inner):
        return
    blocks, b = list(range(depth)), "vision_tower.encoder.blocks.{layer}."
    gated = [("mlp.gate", [inner, width])] if config.get("model_type") == "mistral" else []
    for name, shape in (("wqkv", [3 * width, width]), ("wo", [width, width]), ("fc0", [inner, width]), ("fc1", [width, inner]), *gated):
        yield _group(f"{b}{name}.weight", "vision", "BF16", shape, blocks)
        yield _group(f"{b}{name}.bias", "vision", "BF16", shape[:1], blocks)
    patch = vision.get("patch_size") or 14
    yield _group("vision_tower.patch_embed.proj.weight", "vision", "BF16", [width, 3, patch, patch])
    side = vision.get("init_pos_emb_height")
    yield _group("vision_tower.patch_embed.pos_emb.weight", "vision", "BF16", [side * side if side else 2304, width])
    yield from _projector(config, width)


def _projector(config: dict[str, Any], width: int) -> Iterator[TensorGroup]:
    """One matrix for Gemma; a 2 x 2 merge and two matrices for the others."""
    hidden, kind = config["hidden_size"], str(config.get("model_type", ""))
    if kind.startswith("gemma"):
        yield _group("multi_modal_projector.mm_input_projection_weight", "projector", "BF16", [width, hidden])
        return
    name = "visual.merger.linear_fc" if kind.startswith("qwen") else "mm_projector.proj."
    yield _group(f"{name}1.weight", "projector", "BF16", [4 * width, 4 * width])
    yield _group(f"{name}2.weight", "projector", "BF16", [hidden, 4 * width])


def _stored(linear: Linear, numbers: list[int], quant: QuantSpec | None) -> Iterator[TensorGroup]:
    """A linear as its quantization stores it; layers that the ignore list names stay bf16."""
    plain, quantized = _by_ignore(linear, numbers, quant)
    prefix = f"model.layers.{{layer}}.{linear.module}"
    o, i = linear.out, linear.in_

    def group(suffix: str, dtype: str, shape: list[int], layers: list[int]) -> TensorGroup:
        return _group(prefix + suffix, linear.role, dtype, shape, layers, linear.per)

    if plain:
        yield group(".weight", "BF16", [o, i], plain)
    if linear.bias:
        yield group(".bias", "BF16", [o], numbers)
    if not quantized or quant is None:
        return
    kind = quant.format or quant.method
    if kind == "nvfp4":
        yield group(".weight", "U8", [o, i // 2], quantized)
        yield group(".weight_scale", "F8_E4M3", [o, i // 16], quantized)
        yield group(".weight_scale_2", "F32", [], quantized)
        yield group(".input_scale", "F32", [], quantized)
    elif kind == "fp8-block":
        yield group(".weight", "F8_E4M3", [o, i], quantized)
        yield group(".weight_scale_inv", "F32", [-(-o // _FP8_BLOCK), -(-i // _FP8_BLOCK)], quantized)
    elif kind.startswith("fp8") or kind == "fbgemm_fp8":
        yield group(".weight", "F8_E4M3", [o, i], quantized)
        yield group(".weight_scale", "F32", [o, 1], quantized)
    elif kind in ("int4", "awq", "gptq"):
        size = quant.group_size if isinstance(quant.group_size, int) and quant.group_size > 0 else 128
        yield group(".weight_packed", "I32", [o, i // 8], quantized)
        yield group(".weight_scale", "BF16", [o, i // size], quantized)
    else:
        yield group(".weight", "I8" if kind in ("int8", "w8a8") else "BF16", [o, i], quantized)


def _by_ignore(linear: Linear, numbers: list[int], quant: QuantSpec | None) -> tuple[list[int], list[int]]:
    """(layers left in bf16, layers quantized)."""
    if quant is None:
        return numbers, []
    matches = [_matcher(p) for p in quant.ignore]
    base = f"model.layers.{{}}.{linear.module.replace('{expert}', '0')}"
    plain = [n for n in numbers if any(m(base.format(n)) for m in matches)]
    return plain, sorted(set(numbers) - set(plain))


def _matcher(pattern: str) -> Callable[[str], bool]:
    """One entry of an ignore list: `re:` expressions, globs, names, prefixes and last parts; the language model's prefix is optional."""
    if pattern.startswith("re:"):
        expression = re.compile(pattern[3:])
        return lambda name: bool(expression.match(name))
    bare = re.sub(r"^(language_model\.|model\.language_model\.)", "", pattern)
    bare = bare if bare.startswith("model.") or not bare.startswith("layers.") else f"model.{bare}"
    if "*" in bare:
        return lambda name: fnmatch.fnmatchcase(name, bare)
    ends = "." + bare
    return lambda name: name == bare or name.startswith(bare + ".") or name.endswith(ends)


def _group(pattern: str, role: str, dtype: str, shape: list[int], layers: Iterable[int] = (), per: int = 1) -> TensorGroup:
    numbers = list(layers)
    return TensorGroup(pattern=pattern, role=role, dtype=dtype, shape=shape, count=max(len(numbers), 1) * per, layers=numbers)
