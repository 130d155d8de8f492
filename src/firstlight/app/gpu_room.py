"""GPU memory that a verified plan counts on: looked at before it starts again, waited for, and named when it stays taken."""

import time
from collections.abc import Callable, Sequence

from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.units import MIB, gib
from firstlight.launch.supervisor.ending import gpu_memory

MARGIN = 512 * MIB  # what a display or a monitoring agent takes more than yesterday
LOOK_SECONDS = 1.0


def taken(machine: Machine | None, names: Sequence[int | str] | None) -> list[str]:
    """A line for each GPU (by index or uuid; None: all) that has more memory in use than when the plan was verified; MIG devices aside."""
    now = gpu_memory()
    if machine is None or now is None:
        return []
    chosen = None if names is None else {str(name) for name in names}
    lines = []
    for gpu in machine.accelerators:
        before, used = _used(gpu), now.get(str(gpu.index))
        wanted = chosen is None or str(gpu.index) in chosen or gpu.uuid in chosen
        if wanted and before is not None and used is not None and used * MIB > before + MARGIN:
            lines.append(f"GPU {gpu.index}: {gib(used * MIB)} in use, {gib(before)} when it was verified")
    return lines


def _used(gpu: Accelerator) -> int | None:
    """In bytes, before the verified start."""
    if gpu.driver_total_bytes is None or gpu.free_bytes is None or gpu.mig_profile is not None:
        return None
    return gpu.driver_total_bytes - gpu.free_bytes


def require_free(machine: Machine | None, names: Sequence[int | str] | None, seconds: float, tell: Callable[[str], None]) -> None:
    """A driver gives memory back some time after its process is gone: that long is waited. Raises FirstlightError `gpu-memory-held`."""
    deadline = time.monotonic() + seconds
    while lines := taken(machine, names):
        if time.monotonic() > deadline:
            raise held(lines)
        tell(f"waiting for GPU memory: {lines[0]}")
        time.sleep(LOOK_SECONDS)


def held(lines: Sequence[str]) -> FirstlightError:
    return FirstlightError(
        "gpu-memory-held",
        "memory that this plan needs is in use, and no process that can be seen here gives it back",
        evidence=tuple(lines),
        hint="`nvidia-smi` shows who: another user's process, a container, or one that ends no more (a reboot frees it)",
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )
