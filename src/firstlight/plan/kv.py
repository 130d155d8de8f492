"""The KV cache as vLLM v1 builds it: page sizes per layer, groups, blocks, tokens, and the engine's own max-length rule.

Source: vllm/v1/kv_cache_interface.py and v1/core/kv_cache_utils.py (0.32), vllm/platforms/interface.py for hybrid alignment.
"""

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup
from firstlight.plan.layouts import Layout, stage_layers

GROWING = frozenset({"full", "mla", "sparse-mla", "indexer"})
STATES = frozenset({"linear", "mamba"})
BLOCK_SIZE = 16
# Bytes per element of the cache, scales excluded.
ELEMENT = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp16": 2.0, "float32": 4.0}


class Page(Struct, frozen=True, kw_only=True):
    """Layers that page alike on one rank. token_bytes: one token in one layer; state_bytes: one request's state in one layer."""

    kind: str
    layers: list[int]
    token_bytes: float = 0.0
    state_bytes: int = 0
    window: int | None = None
    shards: int = 1


class Group(Struct, frozen=True, kw_only=True):
    """One block table. block_size: tokens of a block; layers: the largest number of layers that a stage has of it."""

    kind: str
    layers: list[int]
    block_size: int
    window: int | None = None


class KvPlan(Struct, frozen=True, kw_only=True):
    """How a pool becomes tokens. block_bytes: one block on the stage that needs most; state blocks: see `state_blocks`."""

    groups: list[Group]
    block_bytes: int
    block_size: int
    dcp: int = 1
    in_flight: int = 2048
    state_blocks: int = 1
    null_blocks: int = 0

    @property
    def has_state(self) -> bool:
        return any(g.kind in STATES for g in self.groups)

    def blocks(self, pool_bytes: float) -> int:
        """Blocks of a pool."""
        return max(int(pool_bytes // self.block_bytes), 0) if self.block_bytes else 0

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks that one request of that length takes, over all groups."""
        return sum(self._group_blocks(g, tokens) for g in self.groups)

    def needed_bytes(self, tokens: int) -> int:
        """What one request of that length needs: the engine refuses to start below it."""
        return self.block_bytes * (self.blocks_per_request(tokens) + self.null_blocks)

    def concurrency(self, pool_bytes: float, tokens: int) -> float:
        """Requests of that length at once: the engine's `Maximum concurrency`."""
        return self.blocks(pool_bytes) / max(self.blocks_per_request(tokens), 1)

    def capacity(self, pool_bytes: float, tokens: int) -> int:
        """Tokens that requests of that length hold at once."""
        return int(self.concurrency(pool_bytes, tokens) * tokens)

    def longest(self, pool_bytes: float, limit: int) -> int:
        """The longest request that fits, up to `limit`; the engine finds it by the same binary search."""
        low, high = 0, max(limit, 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed_bytes(middle) <= pool_bytes else (low, middle - 1)
        return low

    def logged_tokens(self, pool_bytes: float, max_model_len: int, version: tuple[int, ...]) -> int:
        """What the engine's own `KV cache size` line will say: blocks per group up to 0.19, concurrency x length from 0.20."""
        if version >= (0, 20):
            return self.capacity(pool_bytes, max_model_len)
        smallest = min((g.block_size for g in self.groups), default=self.block_size)
        return self.blocks(pool_bytes) // max(len(self.groups), 1) * smallest * self.dcp

    def _group_blocks(self, group: Group, tokens: int) -> int:
        if group.kind in STATES:
            return self.state_blocks
        if group.kind == "sliding-window":
            held = min((group.window or tokens) - 1 + self.in_flight, tokens)
            return -(-held // group.block_size) + 1
        if group.kind == "chunked":
            return -(-min((group.window or tokens) + self.in_flight, tokens) // group.block_size)
        own = -(-tokens // self.dcp)
        return -(-own // group.block_size)


def dtype_key(dtype: str | None) -> str:
    """vLLM's name of a KV dtype as the checkpoint's tables call it; `auto` is the model's own (bf16)."""
    name = (dtype or "auto").lower()
    if name.startswith("fp8"):
        return "fp8"
    return {"auto": "bf16", "bfloat16": "bf16", "float16": "bf16", "half": "bf16", "float32": "float32"}.get(name, name)


def pages_of(checkpoint: Checkpoint, dtype: str, tp: int) -> list[Page]:
    """Each group's page on one rank. dtype: a key of `dtype_key`."""
    return [_page(g, dtype, tp) for g in checkpoint.kv_cache_groups if g.kind != "shared"]


def token_bytes(checkpoint: Checkpoint, dtype: str, tp: int) -> int:
    """Bytes that one more token takes on one rank, over all layers that grow with every token."""
    return round(sum(p.token_bytes * len(p.layers) for p in pages_of(checkpoint, dtype, tp) if p.kind in GROWING))


def kv_plan(
    checkpoint: Checkpoint,
    layout: Layout,
    dtype: str,
    *,
    block_size: int = BLOCK_SIZE,
    max_num_batched_tokens: int = 2048,
    concurrent_batches: int = 1,
    prefix_caching_of_states: bool = False,
    null_blocks: int = 0,
    hybrid: bool = True,
    draft_layers: int = 0,
    speculative_states: int = 0,
) -> KvPlan:
    """Groups and block bytes. Unknown KV groups give a plan without groups, whose blocks are 0.

    hybrid: whether sliding and chunked layers page by themselves; releases before 0.10 keep the whole context in every layer.
    draft_layers: layers of a drafter, after the last and on the last stage; speculative_states: states that a request holds for its drafts.
    """
    pages = pages_of(checkpoint, dtype, layout.tensor_parallel_size)
    if not hybrid:
        pages = [p if p.kind in STATES else msgspec.structs.replace(p, kind="full", window=None) for p in pages]
    stages = stage_layers(checkpoint.num_hidden_layers or 0, layout.pipeline_parallel_size)
    stages[-1] = range(stages[-1].start, stages[-1].stop + draft_layers)
    groups, block_bytes, block_size = _grouped(pages, stages, block_size)
    return KvPlan(
        groups=groups,
        block_bytes=block_bytes,
        block_size=block_size,
        dcp=layout.decode_context_parallel_size,
        in_flight=max_num_batched_tokens * concurrent_batches,
        state_blocks=(2 if prefix_caching_of_states else 1) + speculative_states,
        null_blocks=null_blocks,
    )


def _grouped(pages: Sequence[Page], stages: list[range], block_size: int) -> tuple[list[Group], int, int]:
    """(groups, bytes of one block, its tokens). One group when every layer grows with the tokens; else groups of equal layer counts."""
    if not pages:
        return [], 0, block_size
    if all(p.kind in GROWING for p in pages):
        return _uniform(pages, stages, block_size)
    attention = [p for p in pages if p.kind not in STATES]
    states = [p for p in pages if p.kind in STATES]
    if attention and states:
        block_size = aligned_block_size(attention, states, block_size)
    page_bytes = max([p.token_bytes * block_size for p in attention] + [float(p.state_bytes) for p in states])
    counts = [len(p.layers) for p in pages]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups: list[Group] = []
    for page in pages:
        own = block_size if page.kind in STATES else max(int(page_bytes // page.token_bytes) // block_size, 1) * block_size
        number = -(-len(page.layers) // size)
        groups += [Group(kind=page.kind, layers=page.layers[i::number], block_size=own, window=page.window) for i in range(number)]
    widest = max(max(sum(1 for n in g.layers if n in stage) for g in groups) for stage in stages) if len(stages) > 1 else size
    return groups, math.ceil(page_bytes * max(widest, 1)), block_size


def _uniform(pages: Sequence[Page], stages: list[range], block_size: int) -> tuple[list[Group], int, int]:
    per_stage = [sum(p.token_bytes * sum(1 for n in p.layers if n in stage) for p in pages) for stage in stages]
    layers = sorted({n for p in pages for n in p.layers})
    group = Group(kind=pages[0].kind, layers=layers, block_size=block_size)
    return [group], math.ceil(max(per_stage) * block_size), block_size


def aligned_block_size(attention: Sequence[Page], states: Sequence[Page], block_size: int) -> int:
    """The attention block that is at least as large as a state page ("Setting attention block size to N tokens")."""
    token = max(p.token_bytes for p in attention)
    state = max(p.state_bytes for p in states)
    return max(block_size * math.ceil(state / (block_size * token)), block_size) if token else block_size


def _page(group: KvCacheGroup, dtype: str, tp: int) -> Page:
    if group.kind in STATES:
        return Page(kind=group.kind, layers=group.layers, state_bytes=-(-(group.state_bytes_per_request or 0) // tp))
    whole = group.bytes_per_token_per_layer.get(dtype)
    if whole is None:
        whole = group.bytes_per_token_per_layer.get("bf16", 0.0) * ELEMENT.get(dtype, 2.0) / 2.0
    ways = 1 if group.kind in ("mla", "sparse-mla", "indexer") else min(tp, group.kv_heads or tp)
    return Page(kind=group.kind, layers=group.layers, token_bytes=whole / ways, window=group.window, shards=ways)
