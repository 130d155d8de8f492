"""A rehearsal on vLLM: the launch with dummy weights, perhaps with fewer layers, and the figures that its log then tells. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.run import LaunchSpec
from firstlight.core.units import GIB
from firstlight.engines.command import has_option, option_value
from firstlight.engines.lines import parse
from firstlight.engines.splitting import Splitter

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model", "llm", "text_model")
LEVEL = "VLLM_LOGGING_LEVEL"
ASSERTS = ("size_asserts", "alignment_asserts", "scalar_asserts")
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) (?:GiB|GB)(?: memory)? and")
_GRAPHS = re.compile(r"Graph capturing finished in \d+ secs?, took (-?[\d.]+) GiB")
_KV_BYTES = re.compile(r"(?:Available KV cache memory: (-?[\d.]+) GiB|Initial free memory:? [\d.]+ GiB[,;] reserved ([\d.]+) GiB)")
_KV_TOKENS = re.compile(r"(?:\w+ )?KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r'vllm:cache_config_info\{[^}]*\bnum_gpu_blocks="(\d+)"')
_START = re.compile(r"Free memory on device.*?\([\d.]+/([\d.]+) GiB\).*?utilization is \(([\d.]+), ([\d.]+) GiB\)")
_SPLIT = re.compile(
    r"Actual usage is ([\d.]+) GiB for weights?, ([\d.]+) GiB for peak activation, ([\d.]+) GiB for non-torch memory, "
    r"and ([\d.]+) GiB for CUDAGraph"
)
_JOINED = re.compile(
    r"Actual usage is ([\d.]+) GiB for consumed memory \(weights \+ non-torch\), ([\d.]+) GiB for peak activation, "
    r"and ([\d.]+) GiB for CUDAGraph"
)


class Figures(Struct, frozen=True, kw_only=True):
    """What a start told about its memory, in bytes, of the rank that has least room; None where it said nothing."""

    total: int | None = None
    usable: int | None = None
    weights: int | None = None
    activation_peak: int | None = None
    non_torch: int | None = None
    cuda_graphs: int | None = None
    kv_pool: int | None = None
    kv_tokens: int | None = None
    num_gpu_blocks: int | None = None


def rehearsal_spec(
    spec: LaunchSpec, *, port: int, version: str | None, torch: str | None = None, overrides: Mapping[str, Any] | None = None
) -> LaunchSpec:
    """The launch as it will be, with dummy weights on another port. overrides: merged into the user's own `--hf-overrides`. version, torch:
    the engine's and its PyTorch's release.
    """
    argv = _without(list(spec.argv), "--load-format")
    if overrides:
        own = json.loads(option_value(argv, "--hf-overrides") or "{}")
        argv = [*_without(argv, "--hf-overrides"), "--hf-overrides", json.dumps(merged(own, overrides))]
    more, env = _telling(argv, spec.env, version, torch, full=not overrides)
    return on_port(msgspec.structs.replace(spec, argv=[*argv, *more, "--load-format", "dummy"], env={**spec.env, **env}), port)


def _telling(
    argv: Sequence[str], env: Mapping[str, str], version: str | None, torch: str | None, *, full: bool
) -> tuple[list[str], dict[str, str]]:
    """Flags and variables that make the engine say where its memory goes: before 0.26 it does so at the level DEBUG only.

    From 0.19, on a PyTorch before 2.12, DEBUG also turns on Inductor's assertions, and what was compiled with them is of no use to the
    launch: they are kept off by name. A launch with a compilation config of its own is rehearsed without the text: its compile cache is
    worth more.
    """
    if not _older(version, (0, 26)) or LEVEL in env:
        return [], {}
    compiled = full and not has_option(argv, "--enforce-eager")
    if not compiled or _older(version, (0, 19)) or (torch is not None and not _older(torch, (2, 12))):
        return [], {LEVEL: "DEBUG"}
    if any(word.replace("_", "-").startswith(("--compilation-config", "-cc", "-O")) for word in argv):
        return [], {}
    return ["--compilation-config", json.dumps({"inductor_compile_config": dict.fromkeys(ASSERTS, False)})], {LEVEL: "DEBUG"}


def on_port(spec: LaunchSpec, port: int) -> LaunchSpec:
    """The same launch on another port."""
    return msgspec.structs.replace(spec, argv=[*_without(list(spec.argv), "--port"), "--port", str(port)], port=port)


def truncation(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """`--hf-overrides` that leave the first `layers` layers, nested where the language model's config is; {} where there is no count.

    Lists and patterns that have an entry a layer are cut along.
    """
    nest = next((name for name in NESTED if isinstance(config.get(name), dict) and "num_hidden_layers" in config[name]), None)
    inner = config[nest] if nest else config
    count = inner.get("num_hidden_layers")
    if not isinstance(count, int):
        return {}
    cut: dict[str, Any] = {"num_hidden_layers": layers}
    for key, value in inner.items():
        if _entry_a_layer(key, value) and len(value) == count and count > 1:
            cut[key] = value[:layers]
    return {nest: cut} if nest else cut


def _entry_a_layer(key: str, value: Any) -> bool:
    """A string is one only by name (`hybrid_override_pattern: "M-M*"`): "sigmoid" has seven letters, and a model may have seven layers."""
    if isinstance(value, str):
        return key.endswith("pattern")
    return isinstance(value, list) and not key.endswith("token_id")


def merged(own: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `own`, objects key by key."""
    both = dict(own)
    for key, value in more.items():
        before = both.get(key)
        both[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both


def depths(config: Mapping[str, Any], *, first_dense: int, period: int) -> tuple[int, int] | None:
    """Two numbers of layers that tell the slope: all leading dense layers and one or two periods of the pattern after them."""
    inner = next((config[n] for n in NESTED if isinstance(config.get(n), dict) and "num_hidden_layers" in config[n]), config)
    count, step = inner.get("num_hidden_layers"), max(1, period)
    shallow = first_dense + (2 if step == 1 else step)
    return (shallow, shallow + step) if isinstance(count, int) and shallow + step < count else None


def read_figures(log: bytes, metrics: str = "") -> Figures:
    """Figures of a start's log: of each kind the value of the rank that binds (most used, least left). metrics: /metrics, once ready."""
    splitter = Splitter()
    texts = [line.text for number, raw in [*splitter.feed(log), *splitter.close()] for line in parse(number, raw)]
    split, joined, start = _all(_SPLIT, texts), _all(_JOINED, texts), _all(_START, texts)
    weights = _most(_all(_WEIGHTS, texts), 0)
    consumed = _most(joined, 0)
    return Figures(
        total=_least(start, 0),
        usable=_least(start, 2),
        weights=weights,
        activation_peak=_most(split, 1) if split else _most(joined, 1),
        non_torch=_most(split, 2) if split else None if consumed is None or weights is None else max(0, consumed - weights),
        cuda_graphs=_most(split, 3) if split else _most(joined, 2) if joined else _most(_all(_GRAPHS, texts), 0),
        kv_pool=_least([(a or b,) for a, b in _all(_KV_BYTES, texts)], 0),
        kv_tokens=min((int(t[0].replace(",", "")) for t in _all(_KV_TOKENS, texts)), default=None),
        num_gpu_blocks=min((int(blocks) for blocks in _BLOCKS.findall(metrics)), default=None),
    )


def _all(pattern: re.Pattern[str], texts: list[str]) -> list[tuple[str, ...]]:
    return [m.groups() for text in texts if (m := pattern.search(text))]


def _most(rows: list[tuple[str, ...]], column: int) -> int | None:
    return max((round(float(r[column]) * GIB) for r in rows), default=None)


def _least(rows: list[tuple[str, ...]], column: int) -> int | None:
    return min((round(float(r[column]) * GIB) for r in rows), default=None)


def _without(argv: list[str], name: str) -> list[str]:
    """`argv` without an option and its value, in both spellings."""
    kept: list[str] = []
    skip = False
    for word in argv:
        key, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif key.replace("_", "-") == name and word.startswith("--"):
            skip = not equals
        else:
            kept.append(word)
    return kept


def _older(version: str | None, than: tuple[int, int]) -> bool:
    numbers = [int(p) for p in (version or "").split(".")[:2] if p.isdigit()]
    return len(numbers) == 2 and tuple(numbers) < than
