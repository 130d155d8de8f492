"""A machine as its probes describe it, and the engines installed on it."""

from msgspec import Struct

from firstlight.core.findings import Finding
from firstlight.core.units import gib


class GpuProcess(Struct, frozen=True, kw_only=True):
    """Who holds GPU memory. ours: proven to belong to a firstlight run (`run`). unit: its systemd service."""

    pid: int
    memory_bytes: int | None = None
    command: str | None = None
    user: str | None = None
    container: str | None = None
    started: float | None = None
    ours: bool = False
    unit: str | None = None
    run: str | None = None

    def line(self) -> str:
        """Who it is, in one line: `pid 71, root, holds 3.00 GiB, unit vllm.service, python3 -m …`."""
        words = [f"pid {self.pid}", self.user, f"holds {gib(self.memory_bytes)}" if self.memory_bytes else None]
        words += [f"container {self.container}" if self.container else None, f"unit {self.unit}" if self.unit else None]
        words += [f"run {self.run}" if self.run else None, (self.command or "")[:80] or None]
        return ", ".join(w for w in words if w)

    def way_to_free(self) -> str:
        """The gentlest command that ends it."""
        if self.run:
            return f"`firstlight down {self.run}`"
        if self.unit:
            return f"`systemctl stop {self.unit}`"
        return f"`docker stop {self.container}`" if self.container else f"`kill {self.pid}`"


class Accelerator(Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG device. Two totals: CUDA's (`cuda_total_bytes`, used for budgets) and the driver's (`driver_total_bytes`).

    cuda_total_rung: `measured` on this GPU, else the catalog's figure. unified_memory: the total is the host's memory, shared with it.
    mig: MIG mode is on; mig_profile: this entry is a MIG device (`3g.40gb`) and its uuid is what CUDA_VISIBLE_DEVICES takes.

    catalog_id: the catalog's name (`rtx-pro-6000-blackwell`), None when unknown. sm: compute capability, `9.0` -> 90.
    """

    index: int
    name: str
    vendor: str = "nvidia"
    uuid: str | None = None
    catalog_id: str | None = None
    sm: int | None = None
    cuda_total_bytes: int | None = None
    driver_total_bytes: int | None = None
    free_bytes: int | None = None
    memory_bandwidth_bytes_per_second: float | None = None
    pci_bus_id: str | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    power_limit_watts: float | None = None
    processes: list[GpuProcess] = []
    cuda_total_rung: str | None = None
    unified_memory: bool | None = None
    mig_profile: str | None = None
    compute_mode: str | None = None


class Link(Struct, frozen=True, kw_only=True):
    """How two GPUs reach each other. kind: nvlink | pix | pxb | phb | node | sys | c2c; p2p: tested, None when not tested.

    p2p_allowed: the driver's word for peer access (`OK`, `CNS` chipset not supported, `GNS`, `TNS`, `NS`), which is a claim, not a test.
    """

    a: int
    b: int
    kind: str
    bandwidth_bytes_per_second: float | None = None
    p2p: bool | None = None
    p2p_allowed: str | None = None


class Collective(Struct, frozen=True, kw_only=True):
    """One measured all-reduce over all GPUs. settings: NCCL variables that were set; empty for NCCL's own choice.

    equal: the sum was right. small_seconds: of 64 KiB, as decoding has them; large_bytes_per_second: of 32 MiB, as prefill has them.
    problem: why there is no measurement; `no answer` within the limit is a hang.
    """

    settings: dict[str, str]
    equal: bool | None = None
    small_seconds: float | None = None
    large_bytes_per_second: float | None = None
    problem: str | None = None


class Storage(Struct, frozen=True, kw_only=True):
    """A place on the machine. filesystem: ext4, nfs, tmpfs, overlay, …; read_bytes_per_second: measured, else None."""

    path: str
    filesystem: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    read_bytes_per_second: float | None = None


class EngineInstall(Struct, frozen=True, kw_only=True):
    """One engine in one environment. build: the exact build string; python: the interpreter that runs it (None: a binary)."""

    engine: str
    version: str | None = None
    build: str | None = None
    python: str | None = None
    binary: str | None = None
    torch: str | None = None
    cuda: str | None = None
    transformers: str | None = None
    device: str | None = None
    packages: dict[str, str] = {}
    findings: list[Finding] = []


class Machine(Struct, frozen=True, kw_only=True):
    """Facts of one host. None is unknown: an empty `accelerators` means that the probe looked and found none.

    memory_bandwidth_bytes_per_second: the host memory's, measured with all cores.
    """

    hostname: str
    host: str = "local"
    system: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    python: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    cpu_flags: list[str] = []
    numa_nodes: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_bandwidth_bytes_per_second: float | None = None
    cgroup_memory_limit_bytes: int | None = None
    cgroup_memory_used_bytes: int | None = None
    cgroup_cpus: float | None = None
    swap_total_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    limits: dict[str, int | None] = {}
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvcc_version: str | None = None
    tools: dict[str, str | None] = {}
    tool_versions: dict[str, str] = {}
    iommu: bool | None = None
    accelerators: list[Accelerator] = []
    links: list[Link] = []
    collectives: list[Collective] = []
    storage: list[Storage] = []
    ports_in_use: list[int] = []
    environment: dict[str, str] = {}
    container: str | None = None
    engines: list[EngineInstall] = []
    imagined: bool = False
    findings: list[Finding] = []
