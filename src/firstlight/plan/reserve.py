"""What vLLM keeps besides weights and KV cache: activation peak, CUDA graphs, and memory outside PyTorch's allocator.

The shapes are the engine's own profile run (v1/worker: `profile_run`): a forward pass of max_num_batched_tokens, then the sampler on
max_num_seqs rows; the peak is the larger of the two, not their sum. The constants are fitted (tools/fit_memory.py) and carry intervals.
"""

from collections.abc import Mapping
from typing import Any

from firstlight.catalog.engines import MemoryTerms
from firstlight.core.figures import Figure
from firstlight.plan.figures import interval, known
from firstlight.plan.layouts import Layout
from firstlight.plan.numbers import experts_of, number, top_k_of

MLA_WORKSPACE_TOKENS = 64 * 1024
GRAPH_LIMIT = 512
VIDEO_FRAMES, VIDEO_FRAME_TOKENS = 32, 70  # the largest video that a Gemma-4 processor makes


def activation_peak(
    config: Mapping[str, Any],
    layout: Layout,
    terms: MemoryTerms,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    total_bytes: int = 0,
    multimodal: bool = False,
    first: bool = True,
    last: bool = True,
) -> Figure:
    """Bytes on one rank: encoder, forward or sampler, whichever is largest; the encoder's outputs stay cached meanwhile.

    first, last: of the pipeline's stages; encoders are on the first, the sampler runs on the last.
    """
    multimodal = multimodal and first
    rows = min(max_num_seqs, max_num_batched_tokens) if last else 0
    forward = forward_bytes(config, layout, terms, max_num_batched_tokens, max_num_seqs, max_model_len)
    sampler = sampler_bytes(config, terms.sampler_bytes, rows)
    encoder = encoder_bytes(config, layout, terms) if multimodal else 0.0
    positions = one_hot_bytes(config, total_bytes) if multimodal else 0.0
    cached = _encoder_cache(config, max_num_batched_tokens) if multimodal else 0.0
    least = max(forward, sampler_bytes(config, terms.sampler_bytes_low, rows), encoder) + cached
    encoder += positions  # not in every release of transformers: the low end is without
    peak = max(forward, sampler, encoder) + cached
    most = max(forward, sampler_bytes(config, terms.sampler_bytes_high, rows), encoder) + cached
    most = max(most, 2 * peak) if number(config, "hc_mult") else most  # no start of these was measured
    name = f"the sampler ({rows} rows) is" if peak == sampler + cached else f"the forward pass ({max_num_batched_tokens} tokens) is"
    name = "the vision encoder (one largest image) is" if peak == encoder + cached else name
    return Figure(
        low=round(least * (1 - terms.activation_spread)),
        mid=round(peak),
        high=round(max(peak * (1 + terms.activation_spread), most)),
        because=f"{name} the peak of the profile run",
    )


def sampler_bytes(config: Mapping[str, Any], each: float, rows: int) -> float:
    """Logits of `rows` requests over the whole vocabulary (gathered on every rank) with what top-k/top-p needs."""
    return rows * number(config, "vocab_size") * each


def encoder_bytes(config: Mapping[str, Any], layout: Layout, terms: MemoryTerms) -> float:
    """The encoder on one image of the largest size: four patches a token, width, attention and feed-forward of a layer."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0.0
    width = number(vision, "hidden_size") or number(vision, "vt_hidden_size")
    inner = number(vision, "intermediate_size") or number(vision, "vt_intermediate_size") or 4 * width
    patches = 4 * _image_tokens(config)
    return patches * 2 * (width * terms.encoder_buffers + (3 * width + inner) / layout.tensor_parallel_size)


def one_hot_bytes(config: Mapping[str, Any], total_bytes: int) -> float:
    """Gemma-4's encoder looks patch positions up by a one-hot matrix (int64 and its cast to bf16) over all frames of the largest video.

    vLLM cuts the frames so that twice the matrix stays within a tenth of the GPU. Source: gemma4_mm.py, `_encoder_chunk` (0.32).
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict) or not str(vision.get("model_type", "")).startswith("gemma4"):
        return 0.0
    patches = VIDEO_FRAME_TOKENS * number(vision, "pooling_kernel_size") ** 2
    rows = patches * 2 * number(vision, "position_embedding_size")
    frames = min(VIDEO_FRAMES, max(int(total_bytes / 10 / (rows * 2 * 8)), 1)) if rows else 0
    return float(frames * rows * (8 + 2))


def _encoder_cache(config: Mapping[str, Any], max_num_batched_tokens: int) -> float:
    """Room for encoder outputs: a batch, or one largest image."""
    return max(max_num_batched_tokens, _image_tokens(config)) * number(config, "hidden_size") * 2


def _image_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of the largest image that a processor makes: 16,384 in the Qwen family, 4,096 for MoonViT and most others."""
    return 16384 if str(config.get("model_type", "")).startswith("qwen") else 4096


def forward_bytes(config: Mapping[str, Any], layout: Layout, terms: MemoryTerms, tokens: int, seqs: int, max_model_len: int) -> float:
    """Residual buffers, the widest layer's intermediates, the MoE workspace and MLA's prefill workspace for one step."""
    hidden = number(config, "hidden_size")
    tp = layout.tensor_parallel_size
    moe = _moe_workspace(config, layout, tokens)
    hidden *= number(config, "hc_mult") or 1  # DeepSeek-V4's hyper-connections: that many residual streams
    residual = tokens * hidden * 2 * (terms.hidden_buffers if moe else terms.hidden_buffers_dense)
    dense = tokens * 3 * (number(config, "intermediate_size") or 4 * hidden) * 2 / tp
    return residual + max(dense if not moe else 0.0, moe) + _mla_workspace(config, tp, seqs, max_model_len)


def _moe_workspace(config: Mapping[str, Any], layout: Layout, tokens: int) -> float:
    """Two buffers of tokens x top-k rows, gate-up or hidden wide, whichever is larger; whole experts do not make the rows fewer."""
    if not experts_of(config):
        return 0.0
    inner = number(config, "moe_intermediate_size") or number(config, "intermediate_size")
    inner = inner if layout.enable_expert_parallel else -(-inner // layout.expert_ways)
    hidden = number(config, "hidden_size")
    return tokens * top_k_of(config) * (max(2 * inner, hidden) + max(inner, hidden)) * 2


def _mla_workspace(config: Mapping[str, Any], tp: int, seqs: int, max_model_len: int) -> float:
    """Keys and values of a chunk of cached context, projected up for every head of the rank."""
    if not number(config, "kv_lora_rank") or not number(config, "qk_nope_head_dim"):
        return 0.0
    rows = min(max(8 * max_model_len, 4 * seqs * 16), MLA_WORKSPACE_TOKENS)
    heads = -(-number(config, "num_attention_heads") // tp)
    return float(rows * heads * (number(config, "qk_nope_head_dim") + number(config, "v_head_dim")) * 2)


def graph_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, steps of 8 to 248, then of 16."""
    largest = min(2 * max_num_seqs, GRAPH_LIMIT, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, GRAPH_LIMIT + 1, 16)]
    return sum(1 for s in sizes if s <= largest)


def cuda_graphs(
    layers: int,
    terms: MemoryTerms,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    enforce_eager: bool,
    usable_bytes: int = 0,
    has_states: bool = False,
) -> Figure:
    """What the profiler estimates for CUDA graphs and takes off the pool. 0 where the release does not, or in eager mode.

    has_states: linear or Mamba layers, for which some releases take a share of the whole budget (usable_bytes).
    """
    if enforce_eager:
        return known(0, "eager mode captures no graphs")
    if not terms.cuda_graph_reserve:
        return known(0, "this release does not take graphs off the KV pool; they must fit outside the utilization")
    sizes = graph_sizes(max_num_seqs, max_num_batched_tokens)
    mid = terms.cuda_graph_base + layers * sizes * terms.cuda_graph_per_layer_and_size
    wild = usable_bytes * terms.cuda_graph_state_share if has_states else 0.0
    return Figure(
        low=round(mid * (1 - terms.cuda_graph_spread)),
        mid=round(mid),
        high=round(max(mid * (1 + terms.cuda_graph_spread_high), wild)),
        because=f"{sizes} batch sizes, two modes; the estimator is known to be off by a lot",
    )


def non_torch(layout: Layout, terms: MemoryTerms) -> Figure:
    """Growth outside PyTorch's allocator while the engine profiles: workspaces, NCCL's lazy buffers, fragments.

    Pipeline stages add nothing: the profile run sends nothing from stage to stage, and NCCL makes such a connection at its first use.
    """
    ranks = layout.expert_ways if layout.enable_expert_parallel else layout.tensor_parallel_size
    if ranks == 1:
        return interval(terms.non_torch_single, terms.non_torch_spread, "kernels' own workspaces")
    mid = terms.non_torch_multi + ranks * terms.non_torch_per_gpu
    return interval(mid, terms.non_torch_spread, "kernels' workspaces and communication buffers")
