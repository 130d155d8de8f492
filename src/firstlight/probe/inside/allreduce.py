"""Runs on the target: one short all-reduce over the named GPUs through NCCL, checked and timed. Settings come as NCCL_* variables.

    python3 allreduce.py LIBNCCL INDEX,INDEX,...

One process drives all GPUs. 64 MiB on each are taken, for a second or two. Prints one JSON line; a hang is the caller's time limit.
"""

import ctypes
import json
import os
import struct
import sys
import time
from typing import Any

os.environ.pop("CUDA_VISIBLE_DEVICES", None)
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"

LARGE, SMALL = 32 << 20, 64 << 10
FLOAT32, SUM = 7, 0
WARM_UP = 0.5  # seconds


class Fault(Exception):
    """A call that did not succeed."""


def caller(library: Any) -> Any:
    def call(name: str, *arguments: Any) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            raise Fault(f"{name} answered {status}")

    return call


class Gpu:
    """Buffers and a stream on one GPU."""

    def __init__(self, cuda: Any, index: int) -> None:
        self.cuda, self.index = cuda, index
        device, self.context, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.source, self.target = ctypes.c_uint64(), ctypes.c_uint64()
        cuda("cuDeviceGet", ctypes.byref(device), index)
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        cuda("cuCtxSetCurrent", self.context)
        for buffer in (self.source, self.target):
            cuda("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(LARGE))
        ones = struct.unpack("I", struct.pack("f", 1.0))[0]
        cuda("cuMemsetD32_v2", self.source, ctypes.c_uint(ones), ctypes.c_size_t(LARGE // 4))
        cuda("cuStreamCreate", ctypes.byref(self.stream), 1)

    def wait(self) -> None:
        self.cuda("cuCtxSetCurrent", self.context)
        self.cuda("cuStreamSynchronize", self.stream)

    def result(self, amount: int) -> bytes:
        self.cuda("cuCtxSetCurrent", self.context)
        back = ctypes.create_string_buffer(amount)
        self.cuda("cuMemcpyDtoH_v2", back, self.target, ctypes.c_size_t(amount))
        return back.raw


def main() -> None:
    cuda, nccl = caller(ctypes.CDLL("libcuda.so.1")), caller(ctypes.CDLL(sys.argv[1]))
    indices = [int(i) for i in sys.argv[2].split(",")]
    cuda("cuInit", 0)
    gpus = [Gpu(cuda, i) for i in indices]
    communicators = (ctypes.c_void_p * len(gpus))()
    nccl("ncclCommInitAll", communicators, len(gpus), (ctypes.c_int * len(gpus))(*indices))

    def reduce(amount: int, times: int) -> float:
        began = time.monotonic()
        for _ in range(times):
            nccl("ncclGroupStart")
            for gpu, communicator in zip(gpus, communicators):  # noqa: B905 - Python 3.7
                count = ctypes.c_size_t(amount // 4)
                nccl("ncclAllReduce", gpu.source, gpu.target, count, FLOAT32, SUM, ctypes.c_void_p(communicator), gpu.stream)
            nccl("ncclGroupEnd")
        for gpu in gpus:
            gpu.wait()
        return (time.monotonic() - began) / times

    reduce(LARGE, 2)
    warm = time.monotonic() + WARM_UP  # clocks rise under load: what is timed first would look slow
    while time.monotonic() < warm:
        reduce(LARGE, 5)
        reduce(SMALL, 100)
    wanted = struct.pack("f", float(len(gpus))) * (LARGE // 4)
    equal = all(gpu.result(LARGE) == wanted for gpu in gpus)
    small = min(reduce(SMALL, 100) for _ in range(3))
    large = min(reduce(LARGE, 5) for _ in range(3))
    print(json.dumps({"equal": equal, "small_seconds": small, "large_bytes_per_second": LARGE / large}))


if __name__ == "__main__":
    try:
        main()
    except (OSError, Fault) as e:
        print(json.dumps({"problem": str(e)}))
