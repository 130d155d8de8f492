"""What the NVIDIA driver says: `nvidia-smi -q -x`, `--query-gpu`, `-L`, and the driver's and bus's own files.

Sizes that nvidia-smi prints as N/A (GB10 and other unified memory, MIG parents) are None.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from firstlight.core.units import MIB
from firstlight.probe.fact import Fact, shell

T = TypeVar("T")
# Not on the PATH of every session: WSL's and some containers' places. Absent: no text at all.
_RUN = 'PATH=$PATH:/usr/lib/wsl/lib:/usr/local/nvidia/bin; command -v nvidia-smi >/dev/null || exit 127; exec nvidia-smi "$@"'


def nvidia_smi(name: str, arguments: Sequence[str], parse: Callable[[str], T]) -> Fact[T]:
    """A fact of nvidia-smi, which takes seconds on a machine of many GPUs without persistence mode."""
    return shell(name, _RUN, parse, arguments=arguments, timeout=60)


class SmiProcess(Struct, frozen=True):
    """kind: C (compute), G (graphics) or C+G."""

    pid: int
    kind: str
    name: str | None = None
    memory_bytes: int | None = None
    gpu_instance: int | None = None


class MigDevice(Struct, frozen=True):
    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    multiprocessors: int | None = None


class SmiGpu(Struct, frozen=True, kw_only=True):
    """One `<gpu>` element. mig: None where the card cannot."""

    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    mig: bool | None = None
    mig_devices: list[MigDevice] = []
    ecc: bool | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    power_limit_watts: float | None = None
    recovery: str | None = None
    processes: list[SmiProcess] = []


class Smi(Struct, frozen=True, kw_only=True):
    """problem: nvidia-smi's own sentence when it lists no GPU; None also when nvidia-smi is absent."""

    driver: str | None = None
    cuda: str | None = None
    gpus: list[SmiGpu] = []
    problem: str | None = None


def parse_smi(text: str) -> Smi:
    start = text.find("<nvidia_smi_log")
    try:
        root = ET.fromstring(text[start:]) if start >= 0 else None
    except ET.ParseError as e:
        return Smi(problem=f"nvidia-smi printed XML that ends early: {e}")
    if root is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return Smi(problem=lines[0] if lines else None)
    return Smi(driver=_text(root, "driver_version"), cuda=_text(root, "cuda_version"), gpus=[_gpu(e) for e in root.findall("gpu")])


def _gpu(e: ET.Element) -> SmiGpu:
    link = "pci/pci_gpu_link_info"
    return SmiGpu(
        name=_text(e, "product_name") or "unknown",
        uuid=_text(e, "uuid"),
        pci_bus_id=_text(e, "pci/pci_bus_id") or e.get("id"),
        total_bytes=_bytes(e, "fb_memory_usage/total"),
        free_bytes=_bytes(e, "fb_memory_usage/free"),
        reserved_bytes=_bytes(e, "fb_memory_usage/reserved"),
        pcie_generation=_int(e, f"{link}/pcie_gen/current_link_gen"),
        pcie_generation_max=_int(e, f"{link}/pcie_gen/max_link_gen"),
        pcie_width=_int(e, f"{link}/link_widths/current_link_width"),
        pcie_width_max=_int(e, f"{link}/link_widths/max_link_width"),
        mig=_switch(e, "mig_mode/current_mig"),
        mig_devices=[_mig(m) for m in e.findall("mig_devices/mig_device")],
        ecc=_switch(e, "ecc_mode/current_ecc"),
        compute_mode=_text(e, "compute_mode"),
        persistence=_switch(e, "persistence_mode"),
        power_limit_watts=_power(e),
        recovery=_text(e, "gpu_recovery_action") or _text(e, "gpu_reset_status/reset_required"),
        processes=[p for p in map(_process, e.findall("processes/process_info")) if p is not None],
    )


def _mig(e: ET.Element) -> MigDevice:
    return MigDevice(
        _int(e, "index") or 0,
        _int(e, "gpu_instance_id"),
        _int(e, "compute_instance_id"),
        _bytes(e, "fb_memory_usage/total"),
        _bytes(e, "fb_memory_usage/free"),
        _int(e, "device_attributes/shared/multiprocessor_count"),
    )


def _process(e: ET.Element) -> SmiProcess | None:
    pid = _int(e, "pid")
    if pid is None:
        return None
    return SmiProcess(pid, _text(e, "type") or "C", _text(e, "process_name"), _bytes(e, "used_memory"), _int(e, "gpu_instance_id"))


def _power(e: ET.Element) -> float | None:
    """Drivers moved the limit: power_readings/power_limit, then gpu_power_readings/current_power_limit from 535."""
    for path in ("gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit", "power_readings/power_limit"):
        if (watts := re.match(r"([\d.]+) W", _text(e, path) or "")) is not None:
            return float(watts[1])
    return None


def _text(e: ET.Element, path: str) -> str | None:
    value = (e.findtext(path) or "").strip()
    return None if value in ("", "N/A", "[N/A]", "Not Supported", "Unknown", "[Not Found]", "Insufficient Permissions") else value


def _int(e: ET.Element, path: str) -> int | None:
    number = re.match(r"(\d+)", _text(e, path) or "")
    return int(number[1]) if number else None


def _bytes(e: ET.Element, path: str) -> int | None:
    size = re.match(r"(\d+) MiB", _text(e, path) or "")
    return int(size[1]) * MIB if size else None


def _switch(e: ET.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_text(e, path) or "")


SMI = nvidia_smi("nvidia-smi", ("-q", "-x"), parse_smi)


def parse_capability(text: str) -> dict[str, int]:
    """Rows `UUID, 12.0` of --query-gpu=uuid,compute_cap: uuid -> 120. Drivers before 510 refuse the field: empty."""
    return {m[1]: int(m[2]) * 10 + int(m[3]) for m in re.finditer(r"^(GPU-\S+), (\d+)\.(\d+)$", text, re.M)}


CAPABILITY = nvidia_smi("nvidia-smi-query", ("--query-gpu=uuid,compute_cap", "--format=csv,noheader"), parse_capability)


class ListedMig(Struct, frozen=True):
    profile: str
    index: int
    uuid: str


def parse_list(text: str) -> dict[str, list[ListedMig]]:
    """`nvidia-smi -L`: GPU uuid -> its MIG devices with profile and uuid (which the XML of most drivers lacks)."""
    found: dict[str, list[ListedMig]] = {}
    current: list[ListedMig] = []
    for line in text.splitlines():
        if gpu := re.match(r"GPU \d+: .* \(UUID: (\S+)\)", line):
            current = found.setdefault(gpu[1], [])
        elif mig := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)", line):
            current.append(ListedMig(mig[1], int(mig[2]), mig[3]))
    return found


LISTED = nvidia_smi("nvidia-smi-list", ("-L",), parse_list)


class Bus(Struct, frozen=True):
    """Without the driver's help. gpus: PCI addresses of NVIDIA display and 3D controllers. module: the loaded driver's version."""

    gpus: list[str] = []
    module: str | None = None
    nodes: dict[str, int] = {}
    iommu: bool | None = None
    acs_override: bool = False


_BUS_SCRIPT = (
    "for d in /sys/bus/pci/devices/*; do"
    ' [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] && case "$(cat "$d/class")" in 0x0300*|0x0302*)'
    ' echo "gpu ${d##*/} $(cat "$d/numa_node" 2>/dev/null)";; esac; done;'
    ' echo "iommu $(ls /sys/class/iommu 2>/dev/null | wc -l)"; echo "cmdline $(cat /proc/cmdline 2>/dev/null)";'
    " cat /proc/driver/nvidia/version 2>/dev/null; true"
)


def parse_bus(text: str) -> Bus:
    rows = re.findall(r"^gpu (\S+)(?: (-?\d+))?\s*$", text, re.M)
    module = re.search(r"^NVRM version: .*?(\d+\.\d+(?:\.\d+)?)", text, re.M)
    iommu = re.search(r"^iommu (\d+)", text, re.M)
    cmdline = re.search(r"^cmdline (.*)$", text, re.M)
    nodes = {address: int(node) for address, node in rows if node and int(node) >= 0}
    return Bus(
        [address for address, _ in rows],
        module[1] if module else None,
        nodes,
        int(iommu[1]) > 0 if iommu else None,
        "pcie_acs_override" in (cmdline[1] if cmdline else ""),
    )


BUS = shell("pci-bus", _BUS_SCRIPT, parse_bus)


def short_address(bus_id: str) -> str:
    """nvidia-smi's `00000000:C1:00.0` as /sys writes it: `0000:c1:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


NVIDIA_FACTS = (SMI, CAPABILITY, LISTED, BUS)
