"""Facts -> Accelerators: the driver's, CUDA's, the bus's and the catalog's words about each GPU brought together. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from firstlight.catalog.gpus import recognise
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import Accelerator, GpuProcess
from firstlight.probe.facts.cuda import Cuda, CudaDevice
from firstlight.probe.facts.nvidia import Bus, ListedMig, MigDevice, Smi, SmiGpu, SmiProcess, short_address
from firstlight.probe.facts.processes import ProcessFacts
from firstlight.probe.facts.system import Memory


def accelerators(
    smi: Smi,
    *,
    capability: Mapping[str, int],
    listed: Mapping[str, Sequence[ListedMig]],
    cuda: Cuda,
    bus: Bus,
    memory: Memory,
    processes: Mapping[int, ProcessFacts],
) -> list[Accelerator]:
    """One entry a GPU in nvidia-smi's order; a GPU in MIG mode gives one entry a MIG device, since only those can be used.

    Indices are nvidia-smi's. The first MIG device has that of its GPU, which has no entry; the others follow those of all GPUs.
    """
    measured = {short_address(d.pci_bus_id): d for d in cuda.devices}
    found: list[Accelerator] = []
    further = itertools.count(len(smi.gpus))
    for index, gpu in enumerate(smi.gpus):
        address = short_address(gpu.pci_bus_id or "")
        whole = _whole(index, gpu, capability.get(gpu.uuid or ""), measured.get(address), bus.nodes.get(address), memory)
        whole = _with(whole, processes=[_process(p, processes) for p in gpu.processes])
        found += _mig_devices(whole, gpu, listed.get(gpu.uuid or "", ()), further) or [whole]
    return found


def _whole(index: int, gpu: SmiGpu, capability: int | None, cuda: CudaDevice | None, node: int | None, memory: Memory) -> Accelerator:
    known = recognise(gpu.name, gpu.total_bytes)
    unified = cuda.integrated if cuda and cuda.integrated is not None else known.link == "unified" if known else None
    total = cuda.total_bytes if cuda else known.cuda_total_bytes if known else None
    shared = bool(unified and gpu.total_bytes is None)
    return Accelerator(
        index=index,
        name=gpu.name,
        uuid=gpu.uuid,
        catalog_id=known.id if known else None,
        sm=(cuda.sm if cuda else None) or capability or (known.sm if known else None),
        cuda_total_bytes=memory.total if shared and cuda is None else total,
        cuda_total_rung="measured" if cuda else "computed" if total else None,
        driver_total_bytes=gpu.total_bytes,
        free_bytes=memory.available if shared else gpu.free_bytes,
        unified_memory=unified,
        memory_bandwidth_bytes_per_second=known.memory_bandwidth_bytes_per_second if known else None,
        pci_bus_id=gpu.pci_bus_id,
        pcie_generation=gpu.pcie_generation,
        pcie_generation_max=gpu.pcie_generation_max,
        pcie_width=gpu.pcie_width,
        pcie_width_max=gpu.pcie_width_max,
        numa_node=node,
        mig=gpu.mig,
        ecc=gpu.ecc,
        compute_mode=gpu.compute_mode,
        power_limit_watts=gpu.power_limit_watts,
    )


def _with(gpu: Accelerator, **changes: object) -> Accelerator:
    import msgspec

    return msgspec.structs.replace(gpu, **changes)


def _mig_devices(whole: Accelerator, gpu: SmiGpu, listed: Sequence[ListedMig], further: Iterator[int]) -> list[Accelerator]:
    names = {m.index: m for m in listed}
    return [
        _mig_device(whole, next(further) if at else whole.index, mig, names.get(mig.index), gpu) for at, mig in enumerate(gpu.mig_devices)
    ]


def _mig_device(whole: Accelerator, index: int, mig: MigDevice, listed: ListedMig | None, gpu: SmiGpu) -> Accelerator:
    own = {p.pid for p in gpu.processes if p.gpu_instance == mig.gpu_instance}
    return _with(
        whole,
        index=index,
        name=f"{whole.name} MIG {listed.profile if listed else mig.index}",
        uuid=listed.uuid if listed else None,
        mig_profile=listed.profile if listed else "unknown",
        cuda_total_bytes=mig.total_bytes,
        cuda_total_rung="computed",
        driver_total_bytes=mig.total_bytes,
        free_bytes=mig.free_bytes,
        memory_bandwidth_bytes_per_second=None,
        processes=[p for p in whole.processes if p.pid in own],
    )


def _process(process: SmiProcess, facts: Mapping[int, ProcessFacts]) -> GpuProcess:
    known = facts.get(process.pid)
    return GpuProcess(
        pid=process.pid,
        memory_bytes=process.memory_bytes,
        command=(known.command if known else None) or process.name,
        user=known.user if known else None,
        container=known.container if known else None,
        unit=known.unit if known else None,
        started=known.started if known else None,
        ours=bool(known and known.run),
        run=known.run if known else None,
    )


_SILENT = "firstlight: no answer"


def driver_findings(smi: Smi, bus: Bus, *, container: str | None) -> list[Finding]:
    """What is wrong between the bus, the driver and nvidia-smi; a machine without any GPU has nothing wrong."""
    found = [_gpu_findings(g) for g in smi.gpus]
    return [f for f in [_driver(smi, bus), _missing(smi, bus, container), *found] if f is not None]


def _driver(smi: Smi, bus: Bus) -> Finding | None:
    text = smi.problem or ""
    if smi.gpus or not (bus.gpus or bus.module):
        return None
    if text.startswith(_SILENT):
        return _problem(
            "driver-does-not-answer", "nvidia-smi hangs", [text], "look for `Xid` in `dmesg`; a hung GPU needs a reset or a reboot"
        )
    if "version mismatch" in text:
        hint = "reboot, or unload and load the nvidia kernel modules: the library was upgraded under a running driver"
        return _problem("driver-library-mismatch", "the driver's library and its kernel module are of different versions", [text], hint)
    if "No devices were found" in text:
        hint = "look for `Xid` and `NVRM` in `dmesg`; a GPU that fell off the bus needs a reboot"
        return _problem("driver-without-gpu", "the NVIDIA driver is loaded and finds no GPU", [text, *_on_bus(bus)], hint)
    if bus.module is None:
        hint = "install the NVIDIA driver, or load it with `modprobe nvidia`; in a container, pass the GPUs (`--gpus all`)"
        return _problem(
            "driver-not-loaded", "there are NVIDIA GPUs and no driver is loaded", [*_on_bus(bus), *([text] if text else [])], hint
        )
    hint = "install the nvidia-utils package of the loaded driver's version; in a container, pass the GPUs (`--gpus all`)"
    evidence = [f"kernel module {bus.module}", text or "nvidia-smi: not found"]
    return _problem("driver-does-not-answer", "the NVIDIA driver is loaded and nvidia-smi gives no list of GPUs", evidence, hint)


def _on_bus(bus: Bus) -> list[str]:
    return [f"on the PCI bus: {' '.join(bus.gpus)}"] if bus.gpus else []


def _problem(code: str, message: str, evidence: list[str], hint: str) -> Finding:
    return Finding(code=code, severity=Severity.BLOCKER, message=message, evidence=evidence, hint=hint)


def _missing(smi: Smi, bus: Bus, container: str | None) -> Finding | None:
    """Fewer GPUs in nvidia-smi than on the bus: a lost one, or a container that was given only some."""
    here = {short_address(g.pci_bus_id) for g in smi.gpus if g.pci_bus_id}
    lost = [a for a in bus.gpus if a not in here]
    if not smi.gpus or not lost:
        return None
    return Finding(
        code="gpu-not-listed",
        severity=Severity.NOTE if container else Severity.WARNING,
        message=f"{len(lost)} of {len(bus.gpus)} NVIDIA GPUs on the bus are not listed by the driver",
        evidence=[f"not listed: {' '.join(lost)}"],
        note=f"this is a {container} container, which may have been given only some" if container else None,
        hint="look for `Xid` and `fallen off the bus` in `dmesg`",
    )


def _gpu_findings(gpu: SmiGpu) -> Finding | None:
    if gpu.recovery in (None, "None", "No"):
        return None
    return Finding(
        code="gpu-needs-reset",
        severity=Severity.BLOCKER,
        message=f"the driver asks for a recovery of {gpu.name} at {gpu.pci_bus_id}",
        evidence=[f"recovery action: {gpu.recovery}"],
        hint=f"stop what uses it, then `nvidia-smi --gpu-reset -i {gpu.pci_bus_id}`, or reboot",
    )
