"""Yes-or-no questions that the engine puts to its compiled code, answered as that code does for CUDA 13 builds.

Source: csrc/quantization (scaled_mm_entry.cu, w8a8/cutlass, fp4) of the releases; c is the compute capability, 9.0 -> 90.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PREDICATES: dict[str, Callable[..., Any]] = {
    "cutlass_scaled_mm_supports_fp8": lambda c: c >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda c: c >= 90,
    "cutlass_scaled_mm_supports_fp4": lambda c: 100 <= c < 130,
    "cutlass_group_gemm_supported": lambda c: c == 90 or 100 <= c < 110,
    "cutlass_sparse_scaled_mm_supported": lambda c: 90 <= c < 100,
    "get_cuda_view_from_cpu_tensor": lambda tensor: tensor,
}
