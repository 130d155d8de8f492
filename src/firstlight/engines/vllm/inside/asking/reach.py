"""Puts the engine within reach of `import`, on the GPU that is asked about."""

from __future__ import annotations

import sys
from typing import Any

from . import spoof, stubs


def prepare(request: dict[str, Any]) -> Any:
    """Returns the platform's class; None: the real one."""
    gpu = request.get("gpu")
    if gpu is None:
        if request.get("source"):
            sys.path.insert(0, request["source"])
        return None
    surround(request)
    return on_gpu(request, gpu["sm"])


def surround(request: dict[str, Any]) -> None:
    """Everything around the engine that is the same for all GPUs: its files, stubs of compiled modules, torch with CUDA devices."""
    source = request.get("source")
    if source:
        sys.path.insert(0, source)
    gpu = request["gpu"]
    spoof.Gpu.count, spoof.Gpu.memory, spoof.Gpu.name = gpu["count"], gpu["memory"], gpu["name"]
    extensions, packages = (request["extensions"], stubs.KERNEL_PACKAGES) if source else stubs.installed("vllm")
    stubs.install(extensions, packages, request.get("required", []))
    spoof.spoof_torch()


def on_gpu(request: dict[str, Any], sm: int) -> Any:
    """Imports the engine on this GPU; its modules remember it. Returns the platform's class."""
    spoof.Gpu.sm = (sm // 10, sm % 10)
    return spoof.spoof_platform(request.get("source"))
