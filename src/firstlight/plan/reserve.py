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

MLA_WORKSPACE_TOKENS = 64 * 1024
GRAPH_LIMIT = 512


def activation_peak(
    config: Mapping[str, Any],
    layout: Layout,
    terms: MemoryTerms,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    multimodal: bool = False,
) -> Figure:
    """Bytes on one rank: encoder, forward or sampler, whichever is largest; the encoder's outputs stay cached meanwhile."""
    rows = min(max_num_seqs, max_num_batched_tokens)
    forward = forward_bytes(config, layout, terms, max_num_batched_tokens, max_num_seqs, max_model_len)
    sampler = sampler_bytes(config, terms.sampler_bytes, rows)
    encoder = encoder_bytes(config, layout, terms) if multimodal else 0.0
    cached = _encoder_cache(config, max_num_batched_tokens) if multimodal else 0.0
    least = max(forward, sampler_bytes(config, terms.sampler_bytes_low, rows), encoder) + cached
    peak = max(forward, sampler, encoder) + cached
    most = max(forward, sampler_bytes(config, terms.sampler_bytes_high, rows), encoder) + cached
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
    return rows * int(config.get("vocab_size") or 0) * each


def encoder_bytes(config: Mapping[str, Any], layout: Layout, terms: MemoryTerms) -> float:
    """The encoder on one image of the largest size: four patches a token, width, attention and feed-forward of a layer."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0.0
    width = int(vision.get("hidden_size") or vision.get("vt_hidden_size") or 0)
    inner = int(vision.get("intermediate_size") or vision.get("vt_intermediate_size") or 4 * width)
    patches = 4 * _image_tokens(config)
    return patches * 2 * (width * terms.encoder_buffers + (3 * width + inner) / layout.tensor_parallel_size)


def _encoder_cache(config: Mapping[str, Any], max_num_batched_tokens: int) -> float:
    """Room for encoder outputs: a batch, or one largest image."""
    return max(max_num_batched_tokens, _image_tokens(config)) * int(config.get("hidden_size") or 0) * 2


def _image_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of the largest image that a processor makes: 16,384 in the Qwen family, 4,096 for MoonViT and most others."""
    return 16384 if str(config.get("model_type", "")).startswith("qwen") else 4096


def forward_bytes(config: Mapping[str, Any], layout: Layout, terms: MemoryTerms, tokens: int, seqs: int, max_model_len: int) -> float:
    """Residual buffers, the widest layer's intermediates, the MoE workspace and MLA's prefill workspace for one step."""
    hidden = int(config.get("hidden_size") or 0)
    tp = layout.tensor_parallel_size
    residual = tokens * hidden * 2 * terms.hidden_buffers
    dense = tokens * 3 * int(config.get("intermediate_size") or 4 * hidden) * 2 / tp
    moe = _moe_workspace(config, layout, tokens)
    return residual + max(dense if not moe else 0.0, moe) + _mla_workspace(config, tp, seqs, max_model_len)


def _moe_workspace(config: Mapping[str, Any], layout: Layout, tokens: int) -> float:
    """Two buffers of tokens x top-k rows, gate-up or hidden wide, whichever is larger; whole experts do not make the rows fewer."""
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts")
    if not experts:
        return 0.0
    top_k = int(config.get("num_experts_per_tok") or config.get("experts_per_token") or 1)
    inner = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
    inner = inner if layout.enable_expert_parallel else -(-inner // layout.expert_ways)
    hidden = int(config.get("hidden_size") or 0)
    return tokens * top_k * (max(2 * inner, hidden) + max(inner, hidden)) * 2


def _mla_workspace(config: Mapping[str, Any], tp: int, seqs: int, max_model_len: int) -> float:
    """Keys and values of a chunk of cached context, projected up for every head of the rank."""
    rank = config.get("kv_lora_rank")
    if not rank or not config.get("qk_nope_head_dim"):
        return 0.0
    rows = min(max(8 * max_model_len, 4 * seqs * 16), MLA_WORKSPACE_TOKENS)
    heads = -(-int(config["num_attention_heads"]) // tp)
    return rows * heads * (int(config["qk_nope_head_dim"]) + int(config["v_head_dim"])) * 2


def graph_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, steps of 8 to 248, then of 16."""
    largest = min(2 * max_num_seqs, GRAPH_LIMIT, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, GRAPH_LIMIT + 1, 16)]
    return sum(1 for s in sizes if s <= largest)


def cuda_graphs(layers: int, terms: MemoryTerms, *, max_num_seqs: int, max_num_batched_tokens: int, enforce_eager: bool) -> Figure:
    """What the profiler estimates for CUDA graphs and takes off the pool. 0 where the release does not, or in eager mode."""
    if enforce_eager:
        return known(0, "eager mode captures no graphs")
    if not terms.cuda_graph_reserve:
        return known(0, "this release does not take graphs off the KV pool; they must fit outside the utilization")
    sizes = graph_sizes(max_num_seqs, max_num_batched_tokens)
    mid = terms.cuda_graph_base + layers * sizes * terms.cuda_graph_per_layer_and_size
    return interval(mid, terms.cuda_graph_spread, f"{sizes} batch sizes, two modes; the estimator is known to be off by a lot")


def non_torch(layout: Layout, terms: MemoryTerms) -> Figure:
    """Growth outside PyTorch's allocator while the engine profiles: workspaces, NCCL's lazy buffers, fragments."""
    world = layout.tensor_parallel_size * layout.pipeline_parallel_size
    if world == 1:
        return interval(terms.non_torch_single, terms.non_torch_spread, "kernels' own workspaces")
    mid = terms.non_torch_multi + world * terms.non_torch_per_gpu
    return interval(mid, terms.non_torch_spread, "kernels' workspaces and communication buffers")
