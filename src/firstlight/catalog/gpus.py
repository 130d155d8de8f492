"""The GPU catalog: what each accelerator has, and machines that are not there.

Data: `gpus.toml` beside this file. Sizes in bytes, rates per second; unknown is None.
"""

import difflib
import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

from firstlight.core.errors import InputError
from firstlight.core.machine import Accelerator, Link, Machine
from firstlight.core.units import GIB, MIB


class Gpu(Struct, frozen=True, kw_only=True):
    """One catalog entry. names: as the driver prints them, without the vendor.

    cuda_total_bytes: what cudaMemGetInfo reports; budgets use it. driver_total_bytes: what nvidia-smi prints.
    cuda_rung: `reported` (read in a public log of that card) or `derived` (from the driver's total and sister cards).
    rates: dense operations per second by dtype (bf16, fp8, fp4, int8). link: nvlink | pcie | unified, one direction per GPU.
    """

    id: str
    title: str
    names: list[str]
    aliases: list[str] = []
    vendor: str = "nvidia"
    architecture: str
    sm: int
    cuda_total_bytes: int
    driver_total_bytes: int | None = None
    cuda_rung: str = "derived"
    memory_bandwidth_bytes_per_second: float
    rates: dict[str, float] = {}
    link: str = "pcie"
    link_bytes_per_second: float | None = None
    pcie_generation: int | None = None
    power_watts: float | None = None
    source: str | None = None


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every entry of the catalog, in the file's order (by architecture, data center first)."""
    document = tomllib.loads(resources.files(__package__).joinpath("gpus.toml").read_text("utf-8"))
    sources = document["sources"]
    return tuple(_entry(row, sources.get(row["id"], sources["driver"])) for row in document["gpu"])


def find_gpu(name: str) -> Gpu:
    """An entry by id, alias or the driver's name. Raises InputError `unknown-gpu`, with the nearest names as the hint."""
    found = _by_key().get(_key(name))
    if found is None:
        near = difflib.get_close_matches(_key(name), list(_by_key()), n=4, cutoff=0.5)
        ids = sorted({_by_key()[n].id for n in near})
        raise InputError(
            "unknown-gpu",
            f"the catalog has no GPU called {name!r}",
            hint=("did you mean " + ", ".join(ids) + "? " if ids else "") + "`firstlight get gpus` lists all of them",
        )
    return found


def recognise(name: str, driver_total_bytes: int | None = None) -> Gpu | None:
    """The entry for what a driver prints (`NVIDIA H200`); the memory size tells apart cards that share a name. None: not in the catalog."""
    found = [g for g in all_gpus() if _key(name) in {_key(n) for n in g.names}] or _sized_like(name, driver_total_bytes)
    if driver_total_bytes and len(found) > 1:
        found.sort(key=lambda g: abs((g.driver_total_bytes or g.cuda_total_bytes) - driver_total_bytes))
    return found[0] if found else None


def imagine(spec: str) -> Machine:
    """A machine that is not there: `8xrtx-pro-6000-blackwell`, `h200` (one). Host facts stay unknown. Raises InputError."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[xX*]\s*)?(.+?)\s*", spec)
    count = int(match[1] or 1) if match else 0
    if match is None or not 1 <= count <= 1024:
        raise InputError(
            "bad-gpu-spec", f"not a number of GPUs: {spec!r}", hint="write COUNTxNAME with 1 to 1024 GPUs, as in 8xh100-80gb-sxm"
        )
    gpu = find_gpu(match[2])
    return Machine(
        hostname=f"{count}x{gpu.id}",
        host="imagined",
        accelerators=[as_accelerator(gpu, index) for index in range(count)],
        links=[] if gpu.link == "unified" else _links(gpu, count),
        imagined=True,
    )


def as_accelerator(gpu: Gpu, index: int) -> Accelerator:
    return Accelerator(
        index=index,
        name=gpu.title,
        vendor=gpu.vendor,
        catalog_id=gpu.id,
        sm=gpu.sm,
        cuda_total_bytes=gpu.cuda_total_bytes,
        driver_total_bytes=gpu.driver_total_bytes,
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second,
        pcie_generation_max=gpu.pcie_generation,
        power_limit_watts=gpu.power_watts,
    )


def _links(gpu: Gpu, count: int) -> list[Link]:
    """All pairs up to 16 GPUs: NVLink where the card has it through a switch, else PCIe through the host (`phb`)."""
    kind = "nvlink" if gpu.link == "nvlink" else "phb"
    within = range(min(count, 16))
    return [Link(a=a, b=b, kind=kind, bandwidth_bytes_per_second=gpu.link_bytes_per_second) for a in within for b in within if a < b]


def _entry(row: dict[str, Any], source: str) -> Gpu:
    driver = row.get("driver_total_mib")
    link = row.get("link_gb_per_second")
    return Gpu(
        id=row["id"],
        title=row["title"],
        names=row["names"],
        aliases=row.get("aliases", []),
        architecture=row["architecture"],
        sm=row["sm"],
        cuda_total_bytes=round(row["cuda_total_gib"] * GIB),
        driver_total_bytes=driver * MIB if driver else None,
        cuda_rung=row["cuda_rung"],
        memory_bandwidth_bytes_per_second=row["memory_bandwidth_gb_per_second"] * 1e9,
        rates={dtype: rate * 1e12 for dtype, rate in row["rates"].items()},
        link=row["link"],
        link_bytes_per_second=link * 1e9 if link else None,
        pcie_generation=row["pcie_generation"],
        power_watts=row["power_watts"],
        source=source,
    )


@cache
def _by_key() -> dict[str, Gpu]:
    """Ids win over aliases, aliases over names."""
    table: dict[str, Gpu] = {}
    for pick in (lambda g: [g.id], lambda g: g.aliases, lambda g: g.names):
        for gpu in all_gpus():
            for name in pick(gpu):
                table.setdefault(_key(name), gpu)
    return table


def _key(name: str) -> str:
    """Lower case, dashes, without the vendor: `NVIDIA H100 80GB HBM3` and `nvidia_h100-80gb-hbm3` are one."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")


def _sized_like(name: str, driver_total_bytes: int | None) -> list[Gpu]:
    """Entries whose name begins the printed one (`RTX PRO 6000 Blackwell ...`), only where the memory agrees within 2 %."""
    if driver_total_bytes is None:
        return []
    return [
        g
        for g in all_gpus()
        if any(_key(name).startswith(_key(n)) for n in g.names)
        and abs((g.driver_total_bytes or g.cuda_total_bytes) / driver_total_bytes - 1) < 0.02
    ]
