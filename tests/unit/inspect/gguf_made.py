"""Writes GGUF headers for tests, byte by byte, in either endianness."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firstlight.inspect.gguf import BY_NAME, TYPES, gguf_bytes

NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
_SCALAR = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}


def text(value: str | bytes, order: str = "<") -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def value(v: Any, order: str = "<") -> bytes:
    """bool, int (u32, or u64 when large), float (f32), str, or a list of one of them."""
    if isinstance(v, list):
        kind, parts = (8, [text(x, order) for x in v]) if v and isinstance(v[0], str) else _numbers(v, order)
        return struct.pack(order + "IIQ", 9, kind, len(v)) + b"".join(parts)
    if isinstance(v, str):
        return struct.pack(order + "I", 8) + text(v, order)
    code = _code(v)
    return struct.pack(order + "I" + code, _SCALAR[code], v)


def _numbers(v: list[Any], order: str) -> tuple[int, list[bytes]]:
    code = _code(v[0]) if v else "I"
    return _SCALAR[code], [struct.pack(order + code, x) for x in v]


def _code(v: Any) -> str:
    return "?" if isinstance(v, bool) else "f" if isinstance(v, float) else "I" if v < 1 << 32 else "Q"


def header(
    values: Mapping[str, Any], tensors: Sequence[tuple[str, str, Sequence[int]]], *, order: str = "<", version: int = 3
) -> tuple[bytes, int]:
    """The whole header, padded, and the bytes of data behind it. shapes as Hugging Face writes them."""
    out = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(values))
    for k, v in values.items():
        out += text(k, order) + value(v, order)
    at = 0
    for name, dtype, shape in tensors:
        out += text(name, order) + struct.pack(f"{order}I{len(shape)}Q", len(shape), *reversed(shape))
        out += struct.pack(order + "IQ", NUMBERS[dtype], at)
        at += -(-(gguf_bytes(dtype, tuple(shape)) or 0) // 32) * 32
    return out + b"\0" * (-len(out) % 32), at


def write(path: Path, values: Mapping[str, Any], tensors: Sequence[tuple[str, str, Sequence[int]]], **options: Any) -> Path:
    raw, data = header(values, tensors, **options)
    with path.open("wb") as f:
        f.write(raw)
        f.truncate(len(raw) + data)
    return path


def llama(**more: Any) -> dict[str, Any]:
    return {
        "general.architecture": "llama", "general.name": "Tiny", "general.file_type": 15, "general.license": "mit", "llama.block_count": 2,
        "llama.embedding_length": 256, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.context_length": 4096,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "c"], "tokenizer.chat_template": "{{ tools }}",
    } | more  # fmt: skip


def llama_tensors() -> list[tuple[str, str, list[int]]]:
    tensors = [("token_embd.weight", "Q6_K", [3, 256]), ("output_norm.weight", "F32", [256]), ("output.weight", "Q6_K", [3, 256])]
    for i in range(2):
        tensors += [(f"blk.{i}.attn_{n}.weight", "Q4_K", [r, 256]) for n, r in (("q", 256), ("k", 128), ("v", 128), ("output", 256))]
        tensors += [(f"blk.{i}.ffn_{n}.weight", "Q4_K", [512, 256]) for n in ("gate", "up")]
        tensors += [(f"blk.{i}.ffn_down.weight", "Q6_K", [256, 512]), (f"blk.{i}.attn_norm.weight", "F32", [256])]
    return tensors


__all__ = ["BY_NAME", "header", "llama", "llama_tensors", "text", "value", "write"]
