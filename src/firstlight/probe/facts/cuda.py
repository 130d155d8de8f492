"""What CUDA itself reports, asked through the driver's library by any Python 3 on the host: totals differ from nvidia-smi's.

Only cuInit and attribute queries: no context is made and no GPU memory is used.
"""

import json
import re
from typing import Any

from msgspec import Struct

from firstlight.probe.fact import Fact, shell

SCRIPT = """
import ctypes, json
try: cuda = ctypes.CDLL("libcuda.so.1")
except OSError as e: print(json.dumps({"problem": str(e)})); raise SystemExit
status = cuda.cuInit(0)
version, count, devices = ctypes.c_int(), ctypes.c_int(), []
cuda.cuDriverGetVersion(ctypes.byref(version))
if status == 0: cuda.cuDeviceGetCount(ctypes.byref(count))
def attribute(device, number):
    value = ctypes.c_int()
    return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else None
for ordinal in range(count.value):
    device, total, name, bus = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(20)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    cuda.cuDeviceGetName(name, 96, device)
    cuda.cuDeviceGetPCIBusId(bus, 20, device)
    devices.append({"pci": bus.value.decode(), "name": name.value.decode(), "total": total.value, "major": attribute(device, 75),
        "minor": attribute(device, 76), "multiprocessors": attribute(device, 16), "integrated": attribute(device, 18)})
print(json.dumps({"status": status, "version": version.value, "devices": devices}))
"""


class CudaDevice(Struct, frozen=True):
    """integrated: shares the host's memory (GB10, Jetson)."""

    pci_bus_id: str
    name: str
    total_bytes: int
    sm: int | None = None
    multiprocessors: int | None = None
    integrated: bool | None = None


class Cuda(Struct, frozen=True):
    """driver: the newest CUDA the driver can run, `12.8`. problem: why there is no answer."""

    driver: str | None = None
    devices: list[CudaDevice] = []
    problem: str | None = None


def parse_cuda(text: str) -> Cuda:
    line = next((row for row in text.splitlines() if row.startswith("{")), None)
    if line is None:
        return Cuda()
    try:
        answer = json.loads(line)
    except ValueError:
        return Cuda(problem=f"unreadable: {line[:80]}")
    status = answer.get("status")
    problem = answer.get("problem") or (f"cuInit answered {status}" if status else None)
    version = answer.get("version") or 0
    driver = f"{version // 1000}.{version % 1000 // 10}" if version else None
    return Cuda(driver, [_device(d) for d in answer.get("devices", [])], problem)


def _device(d: dict[str, Any]) -> CudaDevice:
    sm = d["major"] * 10 + d["minor"] if d.get("major") is not None and d.get("minor") is not None else None
    integrated = None if d.get("integrated") is None else bool(d["integrated"])
    return CudaDevice(d["pci"].lower(), d["name"], d["total"], sm, d.get("multiprocessors"), integrated)


def _one_line(script: str) -> str:
    return re.sub(r"\n+", "\n", script.strip())


# All devices in the bus's order, whatever the caller's selection says, so that ordinals agree with nvidia-smi.
CUDA: Fact[Cuda] = shell(
    "cuda",
    'unset CUDA_VISIBLE_DEVICES; CUDA_DEVICE_ORDER=PCI_BUS_ID python3 -c "$1"',
    parse_cuda,
    arguments=[_one_line(SCRIPT)],
    timeout=60,
)
