"""What a tensor is for, from its name. Order matters: the first rule that matches wins.

Patterns come from the published checkpoints of the families in the catalog; GGUF names are llama.cpp's.
"""

import re

ROLES = (
    "embedding", "attention", "dense_mlp", "routed_experts", "shared_experts", "router", "norm", "lm_head", "vision", "projector",
    "mtp", "indexer", "other",
)  # fmt: skip
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(rule))
    for role, rule in (
        (
            "projector",
            r"(^|\.)(mm_projector|multi_modal_projector|embed_vision|embed_audio|visual\.(merger|deepstack_merger_list)|vision_proj|aligner|mm)\.",
        ),
        ("vision", r"(^|\.)(vision_tower|vision_model|visual|vit|image_newline|audio_tower|audio_model|vision_encoder|v|a)\."),
        ("mtp", r"(^|\.)(mtp|mtp_block|nextn|mtp_layers)\.|\.(eh_proj|enorm|hnorm|shared_head)\.|^model\.mtp"),
        ("indexer", r"\.(indexer|index_[qk]_proj|index_[qk]_norm)\.|\.indexer\.|^blk\.\{layer\}\.indexer"),
        (
            "lm_head",
            r"(^|\.)(lm_head|output|head|embed_out)\.(weight|bias|scale|qweight|qzeros|scales|input_scale|weight_\w+)$|^head\.weight$",
        ),
        (
            "embedding",
            r"(^|\.)(embed_tokens\w*|word_embeddings|wte|token_embd|embed|embeddings|per_layer_token_embd|tok_embeddings|wpe|per_layer_model_proj)(\.|$)",
        ),
        ("shared_experts", r"\.(shared_experts?|share_expert|shared_mlp|shared_expert_gate)\.|_shexp\.|ffn_gate_inp_shexp"),
        (
            "router",
            r"\.(mlp|ffn|moe|block_sparse_moe|mixer|feed_forward)\.(gate|router|wg)(\.|$)|\.router\.|ffn_gate_inp|exp_probs_b|\.e_score_correction_bias|router_bias|\.moe\.gate(\.|$)",
        ),
        (
            "routed_experts",
            r"\.experts[._]|\.experts$|_exps\.|\.moe\.(gate|up|down)_proj|\.fc[12]_latent_proj|routed_expert_(up|down|norm)|switch_mlp",
        ),
        ("norm", r"(norm|ln_\d|ln_f|norm_f)(_?\d)?(\.(weight|bias))?$|\.norms?\."),
        (
            "attention",
            r"\.(self_attn|attn|attention|linear_attn|self_attention|mamba|ssm|temporal_block)\.|\.attn_|\.ssm_|\.mixer\.(q_proj|k_proj|v_proj|o_proj|in_proj|out_proj|conv1d|A_log|D|dt_bias|norm)",
        ),
        ("dense_mlp", r"\.(mlp|ffn|feed_forward|mixer)\.|\.ffn_"),
    )
)


def role_of(pattern: str) -> str:
    """One of ROLES."""
    return next((role for role, rule in _RULES if rule.search(pattern)), "other")
