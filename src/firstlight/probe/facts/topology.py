"""How GPUs reach each other: `nvidia-smi topo -m`, and what the driver allows: `topo -p2p`."""

import re
from collections.abc import Mapping

from firstlight.core.machine import Accelerator, Link
from firstlight.probe.facts.nvidia import nvidia_smi

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def parse_matrix(text: str) -> dict[str, str]:
    """Both matrices: `a-b` (a < b) -> cell, `NV18`, `PIX`, `SYS`, `OK`, `CNS`. NIC and affinity columns are left out."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    header = next((f for f in lines if f and f[0] == "GPU0" and (len(f) < 2 or f[1] != "X")), None)
    if header is None:
        return {}
    columns = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    cells: dict[str, str] = {}
    for row in lines:
        if row and re.fullmatch(r"GPU\d+", row[0]) and row is not header:
            a = int(row[0][3:])
            for name, cell in zip(columns, row[1:], strict=False):
                if a < (b := int(name[3:])):
                    cells[f"{a}-{b}"] = cell
    return cells


TOPOLOGY = nvidia_smi("nvidia-smi-topo", ("topo", "-m"), parse_matrix)
P2P_ALLOWED = nvidia_smi("nvidia-smi-p2p", ("topo", "-p2p", "r"), parse_matrix)

# One direction, bytes per second: NVLink 3 and 4 carry 25 GB/s a link, NVLink 5 50; PCIe per lane after its encoding.
_NVLINK = {80: 25e9, 90: 25e9, 100: 50e9, 103: 50e9}
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def links(cells: Mapping[str, str], allowed: Mapping[str, str], gpus: list[Accelerator]) -> list[Link]:
    """Cells as links; bandwidth from the NVLink count, or the narrower card's PCIe link at its highest generation."""
    found = []
    for key, cell in cells.items():
        a, b = (int(n) for n in key.split("-"))
        if a < len(gpus) and b < len(gpus):
            kind = "nvlink" if cell.startswith("NV") else cell.lower()
            found.append(Link(a=a, b=b, kind=kind, bandwidth_bytes_per_second=_rate(cell, gpus[a], gpus[b]), p2p_allowed=allowed.get(key)))
    return found


def _rate(cell: str, a: Accelerator, b: Accelerator) -> float | None:
    if nvlink := re.fullmatch(r"NV(\d+)", cell):
        lane = _NVLINK.get(a.sm or 0)
        return lane * int(nvlink[1]) if lane else None
    rates = [_pcie_rate(g) for g in (a, b)]
    return min(r for r in rates if r is not None) if all(r is not None for r in rates) else None


def _pcie_rate(gpu: Accelerator) -> float | None:
    lane = _LANE.get(gpu.pcie_generation_max or 0)
    return lane * gpu.pcie_width if lane and gpu.pcie_width else None
