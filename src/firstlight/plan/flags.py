"""Planning flags in vLLM's spelling: a command line's flags as Pins, and Pins as a command line."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from firstlight.core.errors import UsageError
from firstlight.core.intent import Pins
from firstlight.core.units import parse_bytes

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-n": "nodes",
    "--nnodes": "nodes",
    "--kv-cache-memory": "kv_cache_memory_bytes",
}
BOOLEAN = frozenset({"enable_expert_parallel", "enforce_eager", "language_model_only"})
SIZES = frozenset({"kv_cache_memory_bytes"})
COUNTS = frozenset({"max_model_len", "max_num_batched_tokens"})
_FRACTIONS = frozenset({"gpu_memory_utilization"})
_TEXT = frozenset({"kv_cache_dtype", "dtype", "mm_encoder_tp_mode"})
FIELDS = tuple(f.name for f in msgspec.structs.fields(Pins))
# The smallest and largest value that a flag can mean.
LIMITS: dict[str, tuple[float, float]] = {
    "tensor_parallel_size": (1, 1024),
    "pipeline_parallel_size": (1, 1024),
    "data_parallel_size": (1, 1024),
    "decode_context_parallel_size": (1, 1024),
    "nodes": (1, 64),
    "max_model_len": (-1, 1 << 40),
    "max_num_seqs": (1, 1 << 24),
    "max_num_batched_tokens": (1, 1 << 30),
    "gpu_memory_utilization": (0, 1),
    "kv_cache_memory_bytes": (1, 1 << 50),
    "block_size": (1, 1 << 20),
}


def field_of(token: str) -> str | None:
    """The field of Pins behind a flag in any spelling (`-tp`, `--tensor_parallel_size`); None for the engine's other flags."""
    if token in SHORT:
        return SHORT[token]
    name = token.removeprefix("--").replace("-", "_")
    if token.startswith("--no-") and name.removeprefix("no_") in BOOLEAN:
        return name.removeprefix("no_")
    return name if token.startswith("--") and name in FIELDS else None


def pins_from_args(args: Sequence[str]) -> Pins:
    """The planning flags among an engine's flags, `--flag value` or `--flag=value`. Raises UsageError `bad-flag-value`."""
    values: dict[str, Any] = {}
    tokens = [part for token in args for part in _split(token)]
    for position, token in enumerate(tokens):
        field = field_of(token)
        if field in BOOLEAN:
            values[field] = not token.startswith("--no-")
        elif field is not None and position + 1 < len(tokens):
            values[field] = parse_value(field, tokens[position + 1])
    return Pins(**values)


def parse_value(field: str, text: str) -> Any:
    """One flag's value as Pins holds it. Raises UsageError `bad-flag-value`."""
    try:
        value = _parsed(field, text)
        if not _possible(field, value):
            raise ValueError("out of range")
        return value
    except (ValueError, OverflowError, RecursionError):
        raise UsageError("bad-flag-value", f"--{field.replace('_', '-')} cannot be {text!r}", hint="see `firstlight plan --help`") from None


def _parsed(field: str, text: str) -> Any:
    if field in SIZES:
        return parse_bytes(text)
    if field in COUNTS:
        return parse_count(text)
    if field in _FRACTIONS:
        return float(text)
    if field == "speculative_config":
        return json.loads(text)
    return text if field in _TEXT else int(text)


def _possible(field: str, value: Any) -> bool:
    """Whether an engine could take it: a share of the whole, a count from 1 on (`--max-model-len -1` is vLLM's word for what fits)."""
    if field == "speculative_config":
        return isinstance(value, dict)
    if field not in LIMITS:
        return bool(value)
    low, high = LIMITS[field]
    return bool(low <= value <= high and value != 0)


def checked(pins: Pins) -> Pins:
    """The pins as they are. Raises UsageError `bad-flag-value` for a number that cannot be meant."""
    for field, (low, high) in LIMITS.items():
        value = getattr(pins, field)
        if value is not None and not _possible(field, value):
            flag, least = "--" + field.replace("_", "-"), "above 0" if low == 0 else f"{low:g}"
            raise UsageError("bad-flag-value", f"{flag} cannot be {value:g}", hint=f"{least} to {high:g}")
    return pins


def parse_count(text: str) -> int:
    """A count as vLLM reads it: `131072`, `128k` (decimal), `128K` (binary), `1.5M`; `auto` is -1: what fits. Raises ValueError."""
    if text == "auto":
        return -1
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)


def as_args(fields: dict[str, Any]) -> list[str]:
    """Fields of Pins as flags in vLLM's spelling, in the order given; None and False are left out."""
    out: list[str] = []
    for field, value in fields.items():
        if value is None or value is False:
            continue
        out.append("--" + field.replace("_", "-"))
        if value is not True:
            out.append(json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value))
    return out


def _split(token: str) -> list[str]:
    name, equals, value = token.partition("=")
    return [name, value] if equals and token.startswith("-") and field_of(name) else [token]
