"""Feed-forward layers: dense, and mixtures of experts in the ways that checkpoints store them."""

from collections.abc import Sequence

from firstlight.catalog.architectures import Architecture
from firstlight.inspect.derive.parts import Parts, Sizes

GATED = ("gate_proj", "up_proj", "down_proj")


def moe_layers(c: Sizes) -> list[int]:
    """Layers with routed experts, by whichever rule the family states."""
    if c.get("num_experts") < 2:
        return []
    layers = list(c.layers)
    types = c.config.get("mlp_layer_types")
    if isinstance(types, list):
        return [i for i in layers if i < len(types) and types[i] == "sparse"]
    frequency = c.config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [i for i in layers if i < len(frequency) and frequency[i]]
    first = c.get("first_k_dense_replace")
    step = c.get("interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1
    dense = c.config.get("mlp_only_layers") or []
    return [i for i in layers if i >= first and (i + 1) % step == 0 and i not in dense]


def dense(parts: Parts, name: str, c: Sizes, width: int, layers: Sequence[int], role: str = "dense_mlp") -> None:
    """gate, up and down."""
    bias = bool(c.config.get("mlp_bias")) and role == "dense_mlp"
    for one in GATED[:2]:
        parts.linear(f"{name}.{one}", width, c.hidden, role, layers, bias=bias)
    parts.linear(f"{name}.{GATED[2]}", c.hidden, width, role, layers, bias=bias)


def mixture(parts: Parts, base: str, arch: Architecture, c: Sizes, layers: Sequence[int]) -> None:
    """Router, routed and shared experts."""
    name = f"{base}.{arch.moe}" if arch.moe else base
    experts = c("num_experts")
    width = c("moe_intermediate_size", "intermediate_size")
    parts.plain(f"{name}.{arch.router}", [experts, c.hidden], "router", layers)
    if arch.router_linear_bias:
        parts.plain(f"{name}.{arch.router}", [experts], "router", layers, leaf="bias")
    if arch.router_bias and c.config.get("topk_method", "noaux_tc") == "noaux_tc":  # DeepSeek V2 has none
        parts.plain(f"{name}.{arch.router_bias}", [experts], "router", layers, leaf="", dtype="F32")
    if arch.family == "gemma4":
        parts.plain(f"{base}.router.scale", [c.hidden], "router", layers, leaf="")
        parts.plain(f"{base}.router.per_expert_scale", [experts], "router", layers, leaf="")
    _EXPERTS[arch.experts](parts, name, arch, c.get("routed_expert_hidden_size", default=c.hidden), experts, width, layers)
    _latent_projections(parts, name, c, layers)
    if arch.shared:
        _shared(parts, base if arch.shared_beside_moe else name, arch, c, layers)


def _split(parts: Parts, name: str, arch: Architecture, hidden: int, experts: int, width: int, layers: Sequence[int]) -> None:
    gate, up, down = arch.expert_names or GATED
    for one in (gate, up):
        parts.linear(f"{name}.experts.{{expert}}.{one}", width, hidden, "routed_experts", layers, experts=experts)
    parts.linear(f"{name}.experts.{{expert}}.{down}", hidden, width, "routed_experts", layers, experts=experts)


def _fused(parts: Parts, name: str, arch: Architecture, hidden: int, experts: int, width: int, layers: Sequence[int]) -> None:
    """gpt-oss and Llama 4 store [experts, in, out], Qwen3.5 and Gemma 4 [experts, out, in]."""
    turned = arch.family in ("gpt-oss", "llama4")
    up, down = [experts, 2 * width, hidden], [experts, hidden, width]
    parts.fused(f"{name}.experts.gate_up_proj", _turned(up) if turned else up, "routed_experts", layers, transposed=turned)
    parts.fused(f"{name}.experts.down_proj", _turned(down) if turned else down, "routed_experts", layers, transposed=turned)
    if arch.experts_bias:
        parts.plain(f"{name}.experts.gate_up_proj_bias", [experts, 2 * width], "routed_experts", layers, leaf="")
        parts.plain(f"{name}.experts.down_proj_bias", [experts, hidden], "routed_experts", layers, leaf="")


def _turned(shape: list[int]) -> list[int]:
    return [shape[0], shape[2], shape[1]]


def _stacked(parts: Parts, name: str, arch: Architecture, hidden: int, experts: int, width: int, layers: Sequence[int]) -> None:
    """Step: gate, up and down of all experts, one tensor each."""
    for one in GATED[:2]:
        parts.fused(f"{name}.{one}", [experts, width, hidden], "routed_experts", layers, leaf="weight")
    parts.fused(f"{name}.{GATED[2]}", [experts, hidden, width], "routed_experts", layers, leaf="weight")


_EXPERTS = {"split": _split, "fused": _fused, "stacked": _stacked}


def _latent_projections(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    """Kimi K3: routed experts work in a narrower space."""
    inner = c.get("routed_expert_hidden_size")
    if inner:
        parts.linear(f"{name}.routed_expert_down_proj", inner, c.hidden, "routed_experts", layers)
        parts.linear(f"{name}.routed_expert_up_proj", c.hidden, inner, "routed_experts", layers)
        parts.plain(f"{name}.routed_expert_norm", [inner], "norm", layers)


def _shared(parts: Parts, name: str, arch: Architecture, c: Sizes, layers: Sequence[int]) -> None:
    named = c.get("shared_expert_intermediate_size", "share_expert_dim")
    count = c.get("n_shared_experts", default=1) or (1 if named else 0)
    width = named or c.get("moe_intermediate_size", "intermediate_size") * count
    if not width or (arch.shared == "shared_experts" and not c.get("n_shared_experts")):
        return
    dense(parts, f"{name}.{arch.shared}", c, width, layers, "shared_experts")
    if arch.shared_gate:
        parts.plain(f"{name}.shared_expert_gate", [1, c.hidden], "shared_experts", layers)
