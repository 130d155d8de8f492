"""What an engine's release does with memory: defaults and terms by version, read from `engines/<engine>/memory.toml`."""

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

from firstlight.core.units import GIB, MIB

LARGE_FROM, HUGE_FROM = 70 * GIB, 160 * GIB
SMALL_BY_NAME = ("a100", "gb10", "thor")  # A100: named in the engine; unified memory: NVML has no total, which counts as 0 there


class MemoryTerms(Struct, frozen=True, kw_only=True):
    """One release's memory terms, resolved. Sizes in bytes, shares as fractions.

    known: the release lies between the oldest and newest whose sources were read; outside, figures are those of the nearest one.
    sampler_bytes: per (sequence, vocabulary entry); _low, _high: with the leanest and the largest sampler that the release may use.
    cpu_kv_share: what a CPU build takes by itself, `share` of a NUMA node's memory (`utilization`: of the engine's own share).
    mxfp4_backend: by compute capability, `sm90` -> triton | marlin | trtllm.
    """

    version: tuple[int, ...]
    known: bool
    gpu_memory_utilization: float
    max_num_seqs: dict[str, int]
    max_num_batched_tokens: dict[str, int]
    cuda_graph_reserve: bool
    kv_cache_memory_bytes: bool
    hybrid_kv_groups: bool
    null_blocks: int
    concurrent_batches: int
    quant_block_must_divide: bool
    state_blocks: int
    cpu_kv_share: dict[str, Any]
    mxfp4_backend: dict[str, str]
    mxfp4_keeps_scales: bool
    activation_spread: float
    sampler_bytes: float
    sampler_bytes_low: float
    sampler_bytes_high: float
    hidden_buffers: float
    hidden_buffers_dense: float
    encoder_buffers: float
    non_torch_single: float
    non_torch_multi: float
    non_torch_per_gpu: float
    non_torch_spread: float
    cuda_graph_base: float
    cuda_graph_per_layer_and_size: float
    cuda_graph_spread: float
    cuda_graph_spread_high: float
    cuda_graph_state_share: float

    def gpu_class(self, cuda_total_bytes: int, name: str) -> str:
        """small | large | huge: which of the engine's batch defaults a GPU gets."""
        if cuda_total_bytes < LARGE_FROM or any(n in name.lower() for n in SMALL_BY_NAME):
            return "small"
        return "huge" if cuda_total_bytes >= HUGE_FROM else "large"


class ModelKind(Struct, frozen=True, kw_only=True):
    """What a release looks at when it chooses its model runner."""

    architectures: list[str] = []
    moe: bool = False
    quantized: bool = False
    hybrid: bool = False


def memory_terms(version: str | None, model: ModelKind | None = None, engine: str = "vllm") -> MemoryTerms:
    """The terms of a release (`0.16.0rc2.dev313+g1a2b` is 0.16.0) for a kind of model; None: the newest that is known."""
    document = _document(engine)
    release = parse_version(version or document["newest"])
    fit = document["fit"]
    low, mid, high = _sampler(document, release, model)
    return MemoryTerms(
        version=release,
        known=parse_version(document["known_from"]) <= release < _next_minor(parse_version(document["known_to"])),
        **{key: at(document[key], release) for key in _PLAIN},
        sampler_bytes_low=low,
        sampler_bytes=mid,
        sampler_bytes_high=high,
        hidden_buffers=fit["hidden_buffers"],
        hidden_buffers_dense=fit["hidden_buffers_dense"],
        encoder_buffers=fit["encoder_buffers"],
        non_torch_single=at(fit["non_torch_single_gib"], release) * GIB,
        non_torch_multi=at(fit["non_torch_multi_gib"], release) * GIB,
        non_torch_per_gpu=at(fit["non_torch_per_gpu_gib"], release) * GIB,
        non_torch_spread=fit["non_torch_spread"],
        cuda_graph_base=at(fit["cuda_graph_base_gib"], release) * GIB,
        cuda_graph_per_layer_and_size=at(fit["cuda_graph_per_layer_and_size_mib"], release) * MIB,
        cuda_graph_spread=fit["cuda_graph_spread"],
        cuda_graph_spread_high=fit["cuda_graph_spread_high"],
        cuda_graph_state_share=at(fit["cuda_graph_state_share"], release),
    )


def runs_v2(release: tuple[int, ...], model: ModelKind, engine: str = "vllm") -> bool:
    """Whether the release runs this model on its V2 model runner by default."""
    rule = at(_document(engine)["v2_model_runner"], release)
    if rule["others"] == "all" or (rule["others"] == "dense" and not model.moe and not model.hybrid):
        return True
    named = bool(set(rule["architectures"]) & set(model.architectures))
    return named and not (rule["plain"] and (model.moe or model.quantized))


def _sampler(document: dict[str, Any], release: tuple[int, ...], model: ModelKind | None) -> tuple[float, float, float]:
    """Bytes per (sequence, vocabulary entry): low, mid, high."""
    fit = document["fit"]
    if model is not None and runs_v2(release, model):
        v2 = fit["sampler_bytes_v2"]
        return v2["low"], v2["mid"], v2["high"]
    return at(fit["sampler_bytes_low"], release), at(fit["sampler_bytes"], release), at(fit["sampler_bytes_high"], release)


def newest(engine: str = "vllm") -> str:
    """The newest release whose sources and packages were checked: what a plan assumes when nobody says."""
    return str(_document(engine)["newest"])


_PLAIN = (
    "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "cuda_graph_reserve", "kv_cache_memory_bytes", "hybrid_kv_groups",
    "null_blocks", "concurrent_batches", "quant_block_must_divide", "state_blocks", "mxfp4_backend", "mxfp4_keeps_scales",
    "activation_spread", "cpu_kv_share",
)  # fmt: skip


def parse_version(text: str) -> tuple[int, ...]:
    """The release numbers at the front, three at least: `v0.16rc2` -> (0, 16, 0). No number: (0, 0, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    numbers = tuple(int(part) for part in match[1].split(".")) if match else ()
    return numbers + (0,) * (3 - len(numbers))


def at(table: dict[str, Any], release: tuple[int, ...]) -> Any:
    """The value of the last entry that is not newer than the release."""
    entries = sorted(((parse_version(since), value) for since, value in table.items()), key=lambda e: e[0])
    return next((value for since, value in reversed(entries) if since <= release), entries[0][1])


def _next_minor(release: tuple[int, ...]) -> tuple[int, ...]:
    return (release[0], release[1] + 1, 0)


@cache
def _document(engine: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(f"engines/{engine}/memory.toml").read_text("utf-8"))
