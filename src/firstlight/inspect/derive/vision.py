"""Vision towers and their projectors."""

from collections.abc import Callable, Sequence

from firstlight.inspect.derive.parts import Parts, Sizes


def _table(c: Sizes) -> Sizes | None:
    value = c.config.get("vision_config")
    return Sizes(value) if isinstance(value, dict) and value else None


def _biased(parts: Parts, name: str, shape: Sequence[int], role: str, layers: Sequence[int] = ()) -> None:
    parts.plain(name, shape, role, layers)
    parts.plain(name, shape[:1], role, layers, leaf="bias")


def qwen3_vl(parts: Parts, c: Sizes) -> None:
    """Qwen3-VL and later: merger, and in some models mergers for the deep stack."""
    v = _table(c)
    if v is None:
        return
    width, inner, name, layers = v("hidden_size"), v("intermediate_size"), "model.visual", range(v("depth"))
    patch, merged = v("patch_size"), v("hidden_size") * v("spatial_merge_size") ** 2
    parts.plain(f"{name}.patch_embed.proj", [width, v("in_channels"), v("temporal_patch_size"), patch, patch], "vision")
    parts.plain(f"{name}.patch_embed.proj", [width], "vision", leaf="bias")
    parts.plain(f"{name}.pos_embed", [v("num_position_embeddings"), width], "vision")
    block = f"{name}.blocks.{{layer}}"
    for one in ("norm1", "norm2"):
        _biased(parts, f"{block}.{one}", [width], "vision", layers)
    for one, out, into in (("attn.qkv", 3 * width, width), ("attn.proj", width, width), ("mlp.linear_fc1", inner, width)):
        _biased(parts, f"{block}.{one}", [out, into], "vision", layers)
    _biased(parts, f"{block}.mlp.linear_fc2", [width, inner], "vision", layers)
    _qwen_merger(parts, f"{name}.merger", width, merged, v("out_hidden_size"))
    for i in range(len(v.config.get("deepstack_visual_indexes") or [])):
        _qwen_merger(parts, f"{name}.deepstack_merger_list.{i}", merged, merged, v("out_hidden_size"))


def _qwen_merger(parts: Parts, name: str, norm: int, merged: int, out: int) -> None:
    _biased(parts, f"{name}.norm", [norm], "projector")
    _biased(parts, f"{name}.linear_fc1", [merged, merged], "projector")
    _biased(parts, f"{name}.linear_fc2", [out, merged], "projector")


def moonvit(parts: Parts, c: Sizes) -> None:
    """Kimi K2.5 and K3."""
    v = _table(c)
    if v is None:
        return
    width, inner, layers = v("vt_hidden_size"), v("vt_intermediate_size"), range(v("vt_num_hidden_layers"))
    wide = v.get("qkv_hidden_size", default=width)
    patch, block = v("patch_size"), "vision_tower.encoder.blocks.{layer}"
    one = _maybe_biased(v, "linear_bias")
    parts.plain("vision_tower.patch_embed.proj", [width, 3, patch, patch], "vision")
    if v.config.get("patch_embed_proj_bias", True):
        parts.plain("vision_tower.patch_embed.proj", [width], "vision", leaf="bias")
    parts.plain("vision_tower.patch_embed.pos_emb", [v("init_pos_emb_height"), v("init_pos_emb_width"), width], "vision")
    norm = parts.plain if v.config.get("norm_type") == "rmsnorm" else lambda *a: _biased(parts, *a)
    for which in ("norm0", "norm1"):
        norm(f"{block}.{which}", [width], "vision", layers)
    _maybe_biased(v, "attn_bias")(parts, f"{block}.wqkv", [3 * wide, width], layers)
    _maybe_biased(v, "attn_bias")(parts, f"{block}.wo", [width, wide], layers)
    one(parts, f"{block}.mlp.fc0", [inner, width], layers)
    one(parts, f"{block}.mlp.fc1", [width, inner], layers)
    norm("vision_tower.encoder.final_layernorm", [width], "vision", ())
    height, breadth = v.config.get("merge_kernel_size") or [2, 2]
    merged = v("mm_hidden_size") * int(height) * int(breadth)
    norm("mm_projector.pre_norm", [v("mm_hidden_size")], "projector", ())
    _biased(parts, "mm_projector.proj.0", [merged, merged], "projector")
    _biased(parts, "mm_projector.proj.2", [v("text_hidden_size"), merged], "projector")


def _maybe_biased(v: Sizes, key: str) -> Callable[[Parts, str, Sequence[int], Sequence[int]], None]:
    biased = v.config.get(key, True)

    def add(parts: Parts, name: str, shape: Sequence[int], layers: Sequence[int]) -> None:
        parts.plain(name, shape, "vision", layers)
        if biased:
            parts.plain(name, shape[:1], "vision", layers, leaf="bias")

    return add


def gemma4(parts: Parts, c: Sizes) -> None:
    v = _table(c)
    if v is None:
        return
    width, inner, layers = v("hidden_size"), v("intermediate_size"), range(v("num_hidden_layers"))
    heads, kv, head = v("num_attention_heads"), v("num_key_value_heads"), v("head_dim")
    name, block = "model.vision_tower", "model.vision_tower.encoder.layers.{layer}"
    parts.plain(f"{name}.patch_embedder.position_embedding_table", [2, v("position_embedding_size"), width], "vision", leaf="")
    parts.plain(f"{name}.patch_embedder.input_proj", [width, 3 * v("patch_size") ** 2], "vision")
    if v.config.get("standardize"):
        for one in ("std_bias", "std_scale"):
            parts.plain(f"{name}.{one}", [width], "vision", leaf="")
    for one, out, into in (("q", heads * head, width), ("k", kv * head, width), ("v", kv * head, width), ("o", width, heads * head)):
        parts.plain(f"{block}.self_attn.{one}_proj.linear", [out, into], "vision", layers)
    for one in ("q_norm", "k_norm"):
        parts.plain(f"{block}.self_attn.{one}", [head], "vision", layers)
    for one, out, into in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
        parts.plain(f"{block}.mlp.{one}_proj.linear", [out, into], "vision", layers)
    for one in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
        parts.plain(f"{block}.{one}", [width], "vision", layers)
    parts.plain("model.embed_vision.embedding_projection", [c.hidden, width], "projector")


TOWERS: dict[str, Callable[[Parts, Sizes], None]] = {"qwen3-vl": qwen3_vl, "moonvit": moonvit, "gemma4": gemma4}
