"""host -> Machine: all facts together."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firstlight.core.findings import Finding
from firstlight.core.machine import Accelerator, Link, Machine, Storage
from firstlight.core.ports import Host
from firstlight.core.units import GIB
from firstlight.probe import gpus
from firstlight.probe.fact import Fact, Gathered, gather
from firstlight.probe.facts import allreduce, cuda, memspeed, network, nvidia, peers, processes, readspeed, storage, system, tools, topology

SHM = "/dev/shm"
DRIVER = "/proc/driver/nvidia/version"


def probe_machine(
    host: Host,
    *,
    paths: Sequence[str] = (),
    raw: dict[str, str] | None = None,
    measure_reads: bool = False,
    test_peers: bool = False,
) -> Machine:
    """Facts of one host. paths: places whose file system and free space matter (the checkpoint, the caches, the run folders).

    raw: filled with each command's text by fact name. measure_reads: reads at most 1 GiB under each path, past the page cache,
    and copies memory for a moment where no GPU is.
    test_peers: copies between idle GPUs and compares what arrives (64 MiB on each, under a second a pair).
    Raises HostError when the host cannot be reached; a fact that cannot be had is None.
    """
    got = Gathered(raw if raw is not None else {})
    spaces = storage.space([SHM, *dict.fromkeys(paths)])
    own: list[Fact[Any]] = [*system.SYSTEM_FACTS, storage.MOUNTS, spaces, network.PORTS, tools.TOOLS_FACT]
    likely = _about_each_gpu() if host.stat(DRIVER) is not None else []
    gather(host, [nvidia.SMI, *likely, nvidia.BUS, *own], got)
    gather(host, [fact for fact in _about_gpus(got.value(nvidia.SMI)) if fact.name not in got.raw], got)
    machine = _gpu_part(_host_part(host, got, spaces), got)
    machine = _with_peers(host, machine, got) if test_peers and len(machine.accelerators) > 1 else machine
    return _with_speeds(host, machine, got) if measure_reads else machine


def _about_gpus(smi: nvidia.Smi) -> list[Fact[Any]]:
    if not smi.gpus:
        return []
    between: list[Fact[Any]] = [topology.TOPOLOGY, topology.P2P_ALLOWED] if len(smi.gpus) > 1 else []
    pids = sorted({p.pid for g in smi.gpus for p in g.processes})
    return [*_about_each_gpu(), *between, *([processes.processes(pids)] if pids else [])]


def _about_each_gpu() -> list[Fact[Any]]:
    """Each takes the driver a quarter of a second: where there is one, they are asked beside everything else."""
    return [cuda.CUDA, nvidia.CAPABILITY, nvidia.LISTED]


def _host_part(host: Host, got: Gathered, spaces: Fact[list[storage.Space]]) -> Machine:
    uname, cpu, memory = got.value(system.UNAME), got.value(system.CPU), got.value(system.MEMINFO)
    found, cgroup = got.value(tools.TOOLS_FACT), got.value(system.CGROUP)
    places = storage.storage(got.value(spaces), got.value(storage.MOUNTS))
    shm = next((p for p in places if p.path == SHM and p.filesystem == "tmpfs"), Storage(path=SHM))
    return Machine(
        hostname=uname.hostname or "unknown",
        host=host.name,
        system=uname.distribution or uname.system,
        kernel=uname.kernel,
        architecture=uname.architecture,
        python=found.python,
        cpu_model=cpu.model,
        cpu_count=cpu.count,
        cpu_flags=cpu.flags,
        numa_nodes=got.value(system.NUMA),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        cgroup_memory_limit_bytes=cgroup.memory_limit_bytes,
        cgroup_memory_used_bytes=cgroup.memory_used_bytes,
        cgroup_cpus=cgroup.cpus,
        swap_total_bytes=memory.swap_total,
        shm_total_bytes=shm.total_bytes,
        shm_free_bytes=shm.free_bytes,
        limits=got.value(system.LIMITS),
        nvcc_version=found.nvcc,
        tools={**found.paths, "nvcc": found.nvcc_path},
        tool_versions={k: v for k, v in (("nvcc", found.nvcc), ("gcc", found.gcc), ("python3", found.python)) if v},
        storage=[p for p in places if p.path != SHM],
        ports_in_use=got.value(network.PORTS),
        environment=network.environment(host.environ()),
        container=got.value(system.CONTAINER),
    )


def _gpu_part(machine: Machine, got: Gathered) -> Machine:
    smi, bus, asked = got.value(nvidia.SMI), got.value(nvidia.BUS), got.value(cuda.CUDA)
    found = gpus.accelerators(
        smi,
        capability=got.value(nvidia.CAPABILITY),
        listed=got.value(nvidia.LISTED),
        cuda=asked,
        bus=bus,
        memory=got.value(system.MEMINFO),
        processes=got.value(processes.processes([])),
    )
    problems: list[Finding] = gpus.driver_findings(smi, bus, container=machine.container)
    return msgspec.structs.replace(
        machine,
        driver_version=smi.driver or bus.module,
        cuda_driver_version=asked.driver or smi.cuda,
        accelerators=found,
        links=_links(got, found) if not any(g.mig_profile for g in found) else [],
        iommu=bus.iommu,
        findings=problems,
    )


def _links(got: Gathered, found: list[Accelerator]) -> list[Link]:
    return topology.links(got.value(topology.TOPOLOGY), got.value(topology.P2P_ALLOWED), found)


def _with_peers(host: Host, machine: Machine, got: Gathered) -> Machine:
    fact = peers.peer_copies()
    gather(host, [fact], got)
    return msgspec.structs.replace(machine, links=peers.tested(machine.links, got.value(fact)))


def prove_peers(host: Host, machine: Machine, *, python: str | None) -> Machine:
    """Copies between idle GPUs, and a short all-reduce: NCCL's own choice and without peers; other settings where there is PCIe between.

    python: as for `measure_collectives`. A machine with fewer than two idle GPUs comes back as it is.
    """
    if len(idle_gpus(machine)) < 2:
        return machine
    copied = _with_peers(host, machine, Gathered({}))
    if any(link.p2p is False for link in copied.links):
        return copied
    over_pcie = any(link.kind != "nvlink" for link in copied.links)
    settings = allreduce.SETTINGS if over_pcie else allreduce.WITH_AND_WITHOUT_PEERS
    return measure_collectives(host, copied, python=python, settings=settings)


def idle_gpus(machine: Machine) -> list[int]:
    """Whole GPUs that nobody uses."""
    return [g.index for g in machine.accelerators if not g.mig_profile and (g.free_bytes or 0) > 2 * GIB and not g.processes]


def measure_collectives(
    host: Host,
    machine: Machine,
    *,
    python: str | None,
    raw: dict[str, str] | None = None,
    settings: Sequence[Mapping[str, str]] = allreduce.SETTINGS,
) -> Machine:
    """The machine with a short all-reduce under each of a few NCCL settings (64 MiB on each GPU, seconds each; only idle GPUs).

    python: an engine's interpreter, whose NCCL is used; None: the system's.
    """
    idle = idle_gpus(machine)
    if len(idle) < 2:
        return machine
    got = Gathered(raw if raw is not None else {})
    library = allreduce.library_of(python) if python else None
    gather(host, [library] if library else [], got)
    path = got.value(library) if library else "libnccl.so.2"
    found = []
    for tried in settings:
        fact = allreduce.all_reduce(tried, idle, path)
        gather(host, [fact], got)
        found.append(got.value(fact))
    return msgspec.structs.replace(machine, collectives=found)


def _with_speeds(host: Host, machine: Machine, got: Gathered) -> Machine:
    """One place after another: two at once would measure each other."""
    rows = []
    for place in machine.storage:
        fact = readspeed.read_speed(place.path)
        gather(host, [fact], got)
        rows.append(msgspec.structs.replace(place, read_bytes_per_second=got.value(fact)))
    if not machine.accelerators:
        gather(host, [memspeed.MEMORY_SPEED], got)
    return msgspec.structs.replace(machine, storage=rows, memory_bandwidth_bytes_per_second=got.value(memspeed.MEMORY_SPEED))
