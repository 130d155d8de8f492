"""NVIDIA's own stacks: Nemotron-H (Mamba-2, attention, experts, one mixer a layer) and Nemotron-NAS (a block for itself each)."""

from collections.abc import Sequence

from firstlight.catalog.architectures import Architecture
from firstlight.inspect.derive import attention, feed_forward
from firstlight.inspect.derive.parts import Parts, Sizes

_WORDS = {"M": "mamba", "mamba": "mamba", "*": "attention", "attention": "attention", "E": "moe", "moe": "moe", "-": "mlp", "mlp": "mlp"}


def nemotron_h(parts: Parts, arch: Architecture, c: Sizes) -> None:
    listed = c.config.get("layers_block_type") or c.config.get("hybrid_override_pattern") or ""
    _blocks(parts, f"{arch.prefix}layers.{{layer}}", arch, c, [_WORDS.get(str(w), "") for w in listed])
    _mtp(parts, arch, c)


def _blocks(parts: Parts, base: str, arch: Architecture, c: Sizes, words: Sequence[str]) -> None:
    of = {kind: [i for i, w in enumerate(words) if w == kind] for kind in ("mamba", "attention", "moe", "mlp")}
    parts.plain(f"{base}.norm", [c.hidden], "norm", range(len(words)))
    _mamba(parts, f"{base}.mixer", c, of["mamba"])
    attention.grouped_queries(parts, base, arch, c, of["attention"], module="mixer")
    if of["mlp"]:
        _up_down(parts, f"{base}.mixer", c.hidden, c("intermediate_size"), "dense_mlp", of["mlp"])
    if of["moe"]:
        _experts(parts, f"{base}.mixer", c, of["moe"])


def _mamba(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    """Mamba-2: z, x, B, C and dt come out of one projection."""
    if not layers:
        return
    heads, groups, states = c("mamba_num_heads"), c("n_groups"), c("ssm_state_size")
    inner = heads * c("mamba_head_dim")
    mixed = inner + 2 * groups * states
    parts.linear(f"{name}.in_proj", inner + mixed + heads, c.hidden, "attention", layers)
    parts.plain(f"{name}.conv1d", [mixed, 1, c("conv_kernel")], "attention", layers)
    parts.plain(f"{name}.conv1d", [mixed], "attention", layers, leaf="bias")
    for one in ("A_log", "D", "dt_bias"):
        parts.plain(f"{name}.{one}", [heads], "attention", layers, leaf="")
    parts.plain(f"{name}.norm", [inner], "norm", layers)
    parts.linear(f"{name}.out_proj", c.hidden, inner, "attention", layers)


def _up_down(parts: Parts, name: str, hidden: int, width: int, role: str, layers: Sequence[int], *, experts: int = 1) -> None:
    """No gate: relu squared."""
    parts.linear(f"{name}.up_proj", width, hidden, role, layers, experts=experts)
    parts.linear(f"{name}.down_proj", hidden, width, role, layers, experts=experts)


def _experts(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    experts, inner = c("num_experts"), c.get("moe_latent_size")
    parts.plain(f"{name}.gate", [experts, c.hidden], "router", layers)
    parts.plain(f"{name}.gate.e_score_correction_bias", [experts], "router", layers, leaf="", dtype="F32")
    width = c("moe_intermediate_size")
    _up_down(parts, f"{name}.experts.{{expert}}", inner or c.hidden, width, "routed_experts", layers, experts=experts)
    if inner:
        parts.linear(f"{name}.fc1_latent_proj", inner, c.hidden, "routed_experts", layers)
        parts.linear(f"{name}.fc2_latent_proj", c.hidden, inner, "routed_experts", layers)
    if c.get("n_shared_experts"):
        shared = c("moe_shared_expert_intermediate_size") * c("n_shared_experts")
        _up_down(parts, f"{name}.shared_experts", c.hidden, shared, "shared_experts", layers)


def _mtp(parts: Parts, arch: Architecture, c: Sizes) -> None:
    listed = c.config.get("mtp_layers_block_type") or c.config.get("mtp_hybrid_override_pattern") or ""
    if not listed or not c.get("num_nextn_predict_layers"):
        return
    draft = Parts()
    _blocks(draft, "mtp.layers.{layer}", arch, c, [_WORDS.get(str(w), "") for w in listed])
    draft.plain("mtp.layers.{layer}.eh_proj", [c.hidden, 2 * c.hidden], "mtp", [0])
    for one in ("enorm", "hnorm"):
        draft.plain(f"mtp.layers.{{layer}}.{one}", [c.hidden], "mtp", [0])
    draft.plain("mtp.layers.{layer}.final_layernorm", [c.hidden], "mtp", [len(listed) - 1])
    parts.listed += [p._replace(role="mtp") for p in draft.listed]


def nemotron_nas(parts: Parts, arch: Architecture, c: Sizes) -> None:
    """Blocks found by search: each has its own number of KV heads and its own width, or lacks a part."""
    base, blocks = f"{arch.prefix}layers.{{layer}}", c.config.get("block_configs") or []
    attended = [i for i, b in enumerate(blocks) if not (b.get("attention") or {}).get("no_op")]
    attended = [i for i in attended if not (blocks[i].get("attention") or {}).get("replace_with_linear")]
    attention.grouped_queries(parts, base, arch, c, attended)
    parts.plain(f"{base}.input_layernorm", [c.hidden], "norm", attended)
    widths: dict[int, list[int]] = {}
    for i, block in enumerate(blocks):
        ffn = block.get("ffn") or {}
        if not ffn.get("no_op") and not ffn.get("replace_with_linear"):
            widths.setdefault(_width(float(ffn.get("ffn_mult") or 0), c.hidden), []).append(i)
    for width, layers in widths.items():
        feed_forward.dense(parts, f"{base}.mlp", c, width, layers)
        parts.plain(f"{base}.post_attention_layernorm", [c.hidden], "norm", layers)


def _width(multiple: float, hidden: int) -> int:
    """Two thirds of 4 x, as Llama counts, up to the next 256."""
    return -(-int(2 * multiple * hidden / 3) // 256) * 256
