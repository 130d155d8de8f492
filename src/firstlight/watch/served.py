"""What a server says about itself once it answers: `/health`, and `/metrics` against what was predicted. Pure readers of the text."""

import re

from msgspec import Struct

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} 1(?:\.0)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class CacheInfo(Struct, frozen=True, kw_only=True):
    """The KV cache as the engine made it. tokens, concurrency: said from 0.24 on; num_gpu_blocks x block_size before (one cache group)."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    tokens: int | None = None
    concurrency: float | None = None


def read_cache_info(metrics: str) -> CacheInfo | None:
    """`vllm:cache_config_info` of a Prometheus text; None where it is not there."""
    m = _CACHE_INFO.search(metrics)
    if m is None:
        return None
    labels = dict(_LABEL.findall(m["labels"]))
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    concurrency = labels.get("kv_cache_max_concurrency", "")
    return CacheInfo(
        num_gpu_blocks=blocks,
        block_size=size,
        cache_dtype=labels.get("cache_dtype"),
        kv_cache_memory_bytes=_whole(labels.get("kv_cache_memory_bytes")),
        tokens=tokens if tokens is not None else (blocks * size if blocks and size else None),
        concurrency=float(concurrency) if re.fullmatch(r"\d+(?:\.\d+)?", concurrency) else None,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def missed_by(found: int | None, predicted: float | None) -> float | None:
    """How far a prediction was off, as a share of what came (0.02: predicted 2 % too much); None where either is unknown."""
    return None if not found or predicted is None else (predicted - found) / found
