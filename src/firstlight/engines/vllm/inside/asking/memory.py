"""From tensors to the figure that the engine prints: the caching allocator's blocks, and what is added after loading."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

MIB = 1 << 20


def allocated(sizes: Iterable[int]) -> int:
    """Bytes that PyTorch's CUDA caching allocator counts for these tensors, allocated in this order and kept.

    Its rules: sizes are rounded up to 512 B; up to 1 MiB comes from 2 MiB segments, up to 10 MiB from 20 MiB ones, more from
    segments rounded to 2 MiB; the smallest free block that fits is taken, and split only when the rest is worth keeping
    (any rest in the small pool, more than 1 MiB in the large one). An unsplit rest counts as allocated.
    """
    free: dict[bool, list[int]] = {True: [], False: []}
    total = 0
    for size in sizes:
        if size <= 0:
            continue
        wanted = -(-size // 512) * 512
        small = wanted <= MIB
        block = _take(free[small], wanted) or _segment(wanted)
        rest = block - wanted
        if rest >= 512 if small else rest > MIB:
            bisect.insort(free[small], rest)
            block = wanted
        total += block
    return total


def _take(blocks: list[int], wanted: int) -> int:
    at = bisect.bisect_left(blocks, wanted)
    return blocks.pop(at) if at < len(blocks) else 0


def _segment(wanted: int) -> int:
    if wanted <= MIB:
        return 2 * MIB
    return 20 * MIB if wanted < 10 * MIB else -(-wanted // (2 * MIB)) * 2 * MIB


def tensors(model: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers in the order in which their modules were made, each once, with their names."""
    seen: set[int] = set()
    found = []
    for prefix, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append((f"{prefix}.{name}" if prefix else name, tensor))
    return found


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def weights(model: Any, additions: list[dict[str, Any]]) -> dict[str, Any]:
    """{parameter_bytes, allocated_bytes, additions, by_dtype}: allocated includes what is added after loading."""
    found = [(name, size_of(t), str(t.dtype).replace("torch.", "")) for name, t in tensors(model)]
    by_dtype: dict[str, int] = {}
    for _, size, dtype in found:
        by_dtype[dtype] = by_dtype.get(dtype, 0) + size
    sizes = [size for _, size, _ in found]
    extra = [size for rule in additions for size in rule["sizes"]]
    return {
        "parameter_bytes": sum(sizes),
        "allocated_bytes": allocated([*sizes, *extra]),
        "tensors": len(found),
        "by_dtype": by_dtype,
        "additions": [{"rule": r["rule"], "bytes": sum(r["sizes"]), "because": r["because"]} for r in additions],
    }
