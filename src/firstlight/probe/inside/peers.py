"""Runs on the target: copies between every pair of GPUs through the driver's library, compares what arrives, and times it.

Only GPUs with at least 2 GiB free are used, 64 MiB on each; the copies take well under a second. Prints one JSON line.
"""

import ctypes
import json
import os
import time
from typing import Any

SIZE, PATTERN, ROUNDS = 64 << 20, 0x5A, 4
FREE = 2 << 30

os.environ.pop("CUDA_VISIBLE_DEVICES", None)
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


class Fault(Exception):
    """A driver call that did not succeed."""


def main() -> None:
    cuda = ctypes.CDLL(os.environ.get("FIRSTLIGHT_LIBCUDA", "libcuda.so.1"))

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise Fault(f"{name} answered {status}")

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    devices, contexts, buffers = {}, {}, {}
    skipped = {}
    for index in range(count.value):
        device, context, buffer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        try:
            call("cuDeviceGet", ctypes.byref(device), index)
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            call("cuCtxSetCurrent", context)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            if free.value < FREE:
                skipped[index] = f"only {free.value >> 20} MiB free"
                continue
            call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(SIZE))
            devices[index], contexts[index], buffers[index] = device, context, buffer
        except Fault as e:
            skipped[index] = str(e)
    pairs = [pair(cuda, call, devices, contexts, buffers, a, b) for a in contexts for b in contexts if a < b]
    print(json.dumps({"skipped": skipped, "pairs": pairs}))


def pair(cuda: Any, call: Any, devices: Any, contexts: Any, buffers: Any, a: int, b: int) -> Any:
    """One direction each way. access: the driver grants peer access; equal: what arrived is what was sent."""
    row: Any = {"a": a, "b": b, "access": True, "equal": True, "bytes_per_second": None, "problem": None}
    try:
        for one, other in ((a, b), (b, a)):
            can = ctypes.c_int()
            call("cuDeviceCanAccessPeer", ctypes.byref(can), devices[one], devices[other])
            row["access"] = bool(row["access"] and can.value)
            call("cuCtxSetCurrent", contexts[one])
            if can.value:
                status = cuda.cuCtxEnablePeerAccess(contexts[other], 0)
                if status not in (0, 704):  # 704: enabled already
                    raise Fault(f"cuCtxEnablePeerAccess answered {status}")
        for source, target in ((a, b), (b, a)):
            rate, equal = copy(call, contexts, buffers, source, target)
            row["equal"] = bool(row["equal"] and equal)
            row["bytes_per_second"] = min(r for r in (row["bytes_per_second"], rate) if r is not None)
    except Fault as e:
        row["equal"], row["problem"] = None, str(e)
    return row


def copy(call: Any, contexts: Any, buffers: Any, source: int, target: int) -> Any:
    """Fills the source, clears the target, copies, reads the target back."""
    size = ctypes.c_size_t(SIZE)
    call("cuCtxSetCurrent", contexts[target])
    call("cuMemsetD8_v2", buffers[target], ctypes.c_ubyte(0), size)
    call("cuCtxSynchronize")
    call("cuCtxSetCurrent", contexts[source])
    call("cuMemsetD8_v2", buffers[source], ctypes.c_ubyte(PATTERN), size)
    call("cuCtxSynchronize")
    began = time.monotonic()
    for _ in range(ROUNDS):
        call("cuMemcpyPeer", buffers[target], contexts[target], buffers[source], contexts[source], size)
    call("cuCtxSynchronize")
    seconds = time.monotonic() - began
    call("cuCtxSetCurrent", contexts[target])
    call("cuCtxSynchronize")
    back = ctypes.create_string_buffer(SIZE)
    call("cuMemcpyDtoH_v2", back, buffers[target], size)
    return SIZE * ROUNDS / seconds if seconds > 0 else None, back.raw == bytes([PATTERN]) * SIZE


if __name__ == "__main__":
    try:
        main()
    except (OSError, Fault) as e:
        print(json.dumps({"problem": str(e)}))
