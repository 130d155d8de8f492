"""DeepSeek V4: one KV head, compressed caches, hyper-connections, grouped output projection; its own names on disk."""

from collections.abc import Sequence

from firstlight.catalog.architectures import Architecture
from firstlight.inspect.derive.parts import Parts, Sizes


def deepseek_v4(parts: Parts, arch: Architecture, c: Sizes) -> None:
    ratios = [r for r in c.config.get("compress_ratios") or [] if isinstance(r, int)]
    _layers(parts, "layers.{layer}", c, {i: ratios[i] if i < len(ratios) else 0 for i in c.layers}, c.get("num_hash_layers"))
    _hyper_head(parts, "", c)
    count = c.get("num_nextn_predict_layers")
    if count:
        draft = Parts()
        first = len(c.layers)
        _layers(draft, "mtp.{layer}", c, {i: ratios[first + i] if first + i < len(ratios) else 0 for i in range(count)}, 0)
        for one in ("e_proj", "h_proj"):
            draft.linear(f"mtp.{{layer}}.{one}", c.hidden, c.hidden, "mtp", range(count))
        for one in ("enorm", "hnorm", "norm"):
            draft.plain(f"mtp.{{layer}}.{one}", [c.hidden], "mtp", range(count))
        _hyper_head(draft, "mtp.{layer}.", c, range(count))
        parts.listed += [p._replace(role="mtp") for p in draft.listed]


def _layers(parts: Parts, base: str, c: Sizes, ratios: dict[int, int], hashed: int) -> None:
    layers = list(ratios)
    _attention(parts, f"{base}.attn", c, layers)
    for ratio in sorted({r for r in ratios.values() if r > 1}):
        members = [i for i in layers if ratios[i] == ratio]
        _compressor(parts, f"{base}.attn.compressor", c, members, ratio, c("head_dim"), "attention")
        if ratio == 4:
            _indexer(parts, f"{base}.attn.indexer", c, members)
    _experts(parts, f"{base}.ffn", c, layers, hashed)
    for one in ("attn_norm", "ffn_norm"):
        parts.plain(f"{base}.{one}", [c.hidden], "norm", layers)
    streams = c("hc_mult")
    mixes = (2 + streams) * streams
    for one in ("attn", "ffn"):
        parts.plain(f"{base}.hc_{one}_fn", [mixes, streams * c.hidden], "other", layers, leaf="", dtype="F32")
        parts.plain(f"{base}.hc_{one}_base", [mixes], "other", layers, leaf="", dtype="F32")
        parts.plain(f"{base}.hc_{one}_scale", [3], "other", layers, leaf="", dtype="F32")


def _attention(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    heads, width, rank = c("num_attention_heads"), c("head_dim"), c("q_lora_rank")
    groups, out_rank = c("o_groups"), c("o_lora_rank")
    parts.plain(f"{name}.attn_sink", [heads], "attention", layers, leaf="", dtype="F32")
    parts.linear(f"{name}.wq_a", rank, c.hidden, "attention", layers)
    parts.plain(f"{name}.q_norm", [rank], "norm", layers)
    parts.linear(f"{name}.wq_b", heads * width, rank, "attention", layers)
    parts.linear(f"{name}.wkv", width, c.hidden, "attention", layers)
    parts.plain(f"{name}.kv_norm", [width], "norm", layers)
    parts.linear(f"{name}.wo_a", groups * out_rank, heads * width // groups, "attention", layers)
    parts.linear(f"{name}.wo_b", c.hidden, groups * out_rank, "attention", layers)


def _compressor(parts: Parts, name: str, c: Sizes, layers: Sequence[int], ratio: int, width: int, role: str) -> None:
    inner = width * (2 if ratio == 4 else 1)
    parts.plain(f"{name}.ape", [ratio, inner], role, layers, leaf="", dtype="F32")
    for one in ("wkv", "wgate"):
        parts.plain(f"{name}.{one}", [inner, c.hidden], role, layers)
    parts.plain(f"{name}.norm", [width], "norm" if role == "attention" else role, layers)


def _indexer(parts: Parts, name: str, c: Sizes, layers: Sequence[int]) -> None:
    heads, width = c("index_n_heads"), c("index_head_dim")
    _compressor(parts, f"{name}.compressor", c, layers, 4, width, "indexer")
    parts.linear(f"{name}.wq_b", heads * width, c("q_lora_rank"), "indexer", layers)
    parts.plain(f"{name}.weights_proj", [heads, c.hidden], "indexer", layers)


def _experts(parts: Parts, name: str, c: Sizes, layers: Sequence[int], hashed: int) -> None:
    """The first layers choose experts by a table over token ids instead of a bias."""
    experts, width = c("num_experts"), c("moe_intermediate_size")
    parts.plain(f"{name}.gate", [experts, c.hidden], "router", layers)
    parts.plain(f"{name}.gate.tid2eid", [c("vocab_size"), c("num_experts_per_tok")], "router", layers[:hashed], leaf="", dtype="I64")
    parts.plain(f"{name}.gate", [experts], "router", layers[hashed:], leaf="bias", dtype="F32")
    for one, out, into in (("w1", width, c.hidden), ("w2", c.hidden, width), ("w3", width, c.hidden)):
        parts.linear(f"{name}.experts.{{expert}}.{one}", out, into, "routed_experts", layers, experts=experts)
    if c.get("n_shared_experts"):
        wide = width * c("n_shared_experts")
        for one, out, into in (("w1", wide, c.hidden), ("w2", c.hidden, wide), ("w3", wide, c.hidden)):
            parts.linear(f"{name}.shared_experts.{one}", out, into, "shared_experts", layers)


def _hyper_head(parts: Parts, base: str, c: Sizes, layers: Sequence[int] = ()) -> None:
    streams = c("hc_mult")
    parts.plain(f"{base}hc_head_fn", [streams, streams * c.hidden], "other", layers, leaf="", dtype="F32")
    parts.plain(f"{base}hc_head_base", [streams], "other", layers, leaf="", dtype="F32")
    parts.plain(f"{base}hc_head_scale", [1], "other", layers, leaf="", dtype="F32")
