"""Puts the engine within reach of `import`, on the GPU that is asked about."""

from __future__ import annotations

import sys
from typing import Any

from . import spoof, stubs


def prepare(request: dict[str, Any]) -> Any:
    """Returns the platform's class; None: the real one."""
    source = request.get("source")
    if source:
        sys.path.insert(0, source)
    gpu = request.get("gpu")
    if gpu is None:
        return None
    spoof.Gpu.sm = (gpu["sm"] // 10, gpu["sm"] % 10)
    spoof.Gpu.count, spoof.Gpu.memory, spoof.Gpu.name = gpu["count"], gpu["memory"], gpu["name"]
    extensions, packages = (request["extensions"], stubs.KERNEL_PACKAGES) if source else stubs.installed("vllm")
    stubs.install(extensions, packages, request.get("required", []))
    spoof.spoof_torch()
    return spoof.spoof_platform(source)
