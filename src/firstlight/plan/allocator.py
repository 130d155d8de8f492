"""PyTorch's CUDA caching allocator: what a row of lasting allocations takes, rounding and unsplit remainders included.

Why: an engine reports allocator blocks, not tensors. Many tensors of just over 1 MiB cost up to 1 % more than their bytes.
Source: c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize 512, kSmallSize 1 MiB, kSmallBuffer 2 MiB, kMinLargeAlloc 10 MiB,
kLargeBuffer 20 MiB, kRoundLarge 2 MiB).
"""

import bisect
from collections.abc import Iterable

MIN_BLOCK = 512
SMALL = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_FROM = 10 << 20
LARGE_SEGMENT = 20 << 20
ROUND_LARGE = 2 << 20


def allocated_bytes(sizes: Iterable[int], *, expandable: bool = False) -> int:
    """Bytes that the allocator counts as allocated after these allocations, in this order.

    expandable: with `expandable_segments:True` every remainder is split off, so that only the rounding to 512 bytes is left.
    """
    if expandable:
        return sum(-(-size // MIN_BLOCK) * MIN_BLOCK for size in sizes)
    free: tuple[list[int], list[int]] = ([], [])  # blocks left over: small pool, large pool; sorted
    total = 0
    for size in sizes:
        if size <= 0:
            continue
        wanted = -(-size // MIN_BLOCK) * MIN_BLOCK
        pool = free[0] if wanted <= SMALL else free[1]
        at = bisect.bisect_left(pool, wanted)
        block = pool.pop(at) if at < len(pool) else _segment(wanted)
        rest = block - wanted
        if rest >= MIN_BLOCK if wanted <= SMALL else rest > SMALL:
            bisect.insort(pool, rest)
            block = wanted
        total += block
    return total


def _segment(wanted: int) -> int:
    """The size of the piece that is asked of CUDA when no free block is large enough."""
    if wanted <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if wanted < LARGE_FROM else -(-wanted // ROUND_LARGE) * ROUND_LARGE
