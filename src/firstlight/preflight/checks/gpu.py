"""The GPUs: driver and toolkit, who holds memory, unequal ones, MIG, links."""

from collections.abc import Iterator

from firstlight.core.findings import Finding
from firstlight.core.machine import Accelerator, Collective, GpuProcess
from firstlight.core.units import GIB, gib
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import capability, dotted, driver_for, numbers, toolkit_for

DEFAULT_UTILIZATION = 0.9


def driver(context: Context) -> Iterator[Finding]:
    """The engine's CUDA against the driver. Within one major version an older driver runs a newer toolkit, except freshly made PTX."""
    assert context.machine is not None
    assert context.install is not None
    cuda, have = context.install.cuda, context.machine.driver_version
    newest = context.machine.cuda_driver_version
    oldest = driver_for(cuda) if cuda else None
    if not cuda or not have or oldest is None:
        return
    evidence = [f"driver {have}, which runs CUDA up to {newest or 'unknown'}", f"the engine's torch is built for CUDA {cuda}"]
    runs_it = newest is not None and numbers(newest)[:1] >= numbers(cuda)[:1]  # as with a compatibility package
    if numbers(have)[:2] < oldest and not runs_it:
        yield blocker(
            "cuda-driver-too-old",
            f"the driver is too old for CUDA {cuda}",
            evidence=evidence,
            hint=f"a driver of at least {dotted(oldest)}, or an engine build for CUDA {newest or 'that the driver runs'}",
        )
    elif newest and numbers(newest)[:2] < numbers(cuda)[:2]:
        yield remark(
            "cuda-newer-than-driver",
            f"the engine's CUDA {cuda} is newer than the driver's {newest}: compiled kernels run, kernels made at start may not",
            evidence=evidence,
            hint="if the start fails with `unsupported toolchain`, upgrade the driver",
        )


def kernel_image(context: Context) -> Iterator[Finding]:
    """torch built with a toolkit older than the GPU has no code for it."""
    assert context.install is not None
    cuda = context.install.cuda
    for sm in context.sms:
        first = toolkit_for(sm)
        if cuda and first and numbers(cuda)[:2] < first:
            name = context.engine or "vllm"
            yield blocker(
                "no-kernel-image",
                f"the engine's torch has no code for compute capability {capability(sm)}",
                evidence=[
                    f"torch {context.install.torch} is built with CUDA {cuda}",
                    f"compute capability {capability(sm)}: CUDA {dotted(first)} or newer",
                ],
                hint=f"an engine build for CUDA {dotted(first)} or newer: `firstlight engines install {name}` picks one",
            )


def needed_bytes(context: Context, gpu: Accelerator) -> float | None:
    """What must be free on a GPU at start: vLLM's own check is total x utilization."""
    total = gpu.cuda_total_bytes
    c = context.candidate
    if total is None or c is None:
        return None
    if c.engine.name == "vllm":
        return total * (c.gpu_memory_utilization or DEFAULT_UTILIZATION)
    weights = c.per_gpu.weights.mid if c.per_gpu else None
    return float(weights) if weights else None


def memory_held(context: Context) -> Iterator[Finding]:
    short = [(g, need) for g in context.gpus if g.free_bytes is not None and (need := needed_bytes(context, g)) and g.free_bytes < need]
    if not short:
        return
    evidence = _held_lines(short)
    holders = [p for g, _ in short for p in g.processes]
    evidence += [p.line() for p in _distinct(holders)[:8]]
    if not holders:
        evidence.append("no process is listed: it may run in a container, belong to another user, or have left memory behind")
    yield blocker(
        "gpu-memory-occupied",
        f"{len(short)} of {len(context.gpus)} GPUs have less memory free than the plan needs",
        evidence=evidence,
        hint=_free_hint(_distinct(holders)),
    )


def _held_lines(short: list[tuple[Accelerator, float]]) -> list[str]:
    """A line for each different amount, with the GPUs that have it."""
    lines: dict[str, list[str]] = {}
    for gpu, need in short:
        text = f"{gib(gpu.free_bytes)} free of {gib(gpu.cuda_total_bytes)}, {gib(need)} needed"
        lines.setdefault(text, []).append(str(gpu.index))
    return [f"GPU{'s' if len(at) > 1 else ''} {', '.join(at)}: {text}" for text, at in lines.items()]


def _distinct(processes: list[GpuProcess]) -> list[GpuProcess]:
    return list({p.pid: p for p in processes}.values())


def _free_hint(processes: list[GpuProcess]) -> str:
    """The gentlest command that frees each holder."""
    plain = [str(p.pid) for p in processes if not (p.run or p.unit or p.container)]
    commands = [p.way_to_free() for p in processes if p.run or p.unit or p.container]
    commands += [f"`kill {' '.join(plain)}`"] if plain else []
    return ", ".join(dict.fromkeys(commands)) or "find the holder with `fuser -v /dev/nvidia*` as root"


def leftovers(context: Context) -> Iterator[Finding]:
    """Our own processes on GPUs that would do: told even where memory is enough."""
    ours = _distinct([p for g in context.gpus for p in g.processes if p.ours])
    if ours and not list(memory_held(context)):
        yield remark(
            "own-run-on-gpu",
            f"{len(ours)} processes of firstlight runs use these GPUs",
            evidence=[p.line() for p in ours[:8]],
            hint=_free_hint(ours),
        )


def unequal(context: Context) -> Iterator[Finding]:
    """Every rank gets the same share, so the smallest GPU decides and mixed generations choose kernels apart."""
    if len(context.gpus) < 2 or context.world_size < 2:
        return
    kinds = {(g.name, g.sm) for g in context.gpus}
    sizes = [g.cuda_total_bytes for g in context.gpus if g.cuda_total_bytes]
    if len(kinds) > 1 or (sizes and max(sizes) - min(sizes) > GIB):
        yield warning(
            "gpus-unequal",
            "the GPUs of the plan are not alike: the smallest and slowest decides for all",
            evidence=[
                f"GPU {g.index}: {g.name}, {gib(g.cuda_total_bytes)}, compute capability {capability(g.sm or 0)}" for g in context.gpus
            ],
            hint="--gpus with those that are alike",
        )


def mig(context: Context) -> Iterator[Finding]:
    bare = [g for g in context.gpus if g.mig and g.mig_profile is None]
    parts = [g for g in context.gpus if g.mig_profile]
    if bare:
        yield blocker(
            "mig-without-devices",
            f"GPU {bare[0].index} is in MIG mode and has no MIG devices, so CUDA cannot use it",
            evidence=[f"GPU {g.index}: {g.name}, MIG enabled, no devices" for g in bare],
            hint=f"`nvidia-smi -i {bare[0].index} -mig 0`, or make devices with `nvidia-smi mig -cgi`",
        )
    if parts and context.world_size > 1:
        yield blocker(
            "mig-with-several-gpus",
            "MIG devices cannot work together on one model: there is no peer access or NCCL between them",
            evidence=[f"{g.name}, {gib(g.cuda_total_bytes)}, {g.uuid}" for g in parts],
            hint="--tensor-parallel-size 1, or turn MIG off",
        )
    elif parts:
        yield remark(
            "mig-device",
            "the plan uses a MIG device, a part of a GPU",
            evidence=[f"{g.name}, {gib(g.cuda_total_bytes)}, CUDA_VISIBLE_DEVICES={g.uuid}" for g in parts],
        )


def compute_mode(context: Context) -> Iterator[Finding]:
    closed = [g for g in context.gpus if g.compute_mode == "Prohibited"]
    if closed:
        yield blocker(
            "gpu-compute-prohibited",
            "the driver's compute mode lets no process use a GPU",
            evidence=[f"GPU {g.index}: compute mode {g.compute_mode}" for g in closed],
            hint=f"`nvidia-smi -i {closed[0].index} -c DEFAULT`",
        )


def pcie_width(context: Context) -> Iterator[Finding]:
    """Width is fixed when the link is trained; a lower generation at idle is power saving and says nothing."""
    narrow = [g for g in context.gpus if g.pcie_width and g.pcie_width_max and g.pcie_width < g.pcie_width_max]
    if narrow:
        yield warning(
            "pcie-width-below-capability",
            f"{len(narrow)} of {len(context.gpus)} GPUs have fewer PCIe lanes than they can use",
            evidence=[f"GPU {g.index} at {g.pci_bus_id}: x{g.pcie_width} of x{g.pcie_width_max}" for g in narrow],
            note="loading weights and all-reduce over PCIe take their share longer"
            if context.world_size > 1
            else "loading weights takes longer",
            hint="check the slot, the riser and the BIOS's bifurcation",
        )


def peer_access(context: Context) -> Iterator[Finding]:
    """What the driver says about peer access. Whether data really arrives only a copy can tell."""
    assert context.machine is not None
    if context.world_size < 2:
        return
    used = {g.index for g in context.gpus}
    pairs = [link for link in context.machine.links if {link.a, link.b} <= used]
    broken = [link for link in pairs if link.p2p is False]
    refused = [link for link in pairs if link.p2p_allowed not in (None, "OK")]
    if broken:
        yield blocker(
            "p2p-broken",
            "data copied straight from GPU to GPU does not arrive as it was sent",
            evidence=[f"GPU {link.a} to GPU {link.b} ({link.kind}): the copy differs" for link in broken[:8]],
            note=_why_broken(context),
            hint="NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce; or turn off ACS and the IOMMU in the BIOS",
        )
    elif refused:
        yield warning(
            "p2p-not-allowed",
            "the driver allows no peer access between some GPUs: all-reduce goes through host memory",
            evidence=[f"GPU {link.a} to GPU {link.b} ({link.kind}): {link.p2p_allowed}" for link in refused[:8]],
            note="CNS: the chipset does not support it; GNS: the GPU does not; TNS: the topology does not",
            hint="nothing to set: NCCL finds its way; expect slower prefill with tensor parallelism",
        )


def collectives(context: Context) -> Iterator[Finding]:
    """What a short all-reduce showed: sums that are wrong, a hang, or settings that are clearly faster here."""
    assert context.machine is not None
    measured = context.machine.collectives
    own = [c for c in measured if not c.settings]
    if not own or context.world_size < 2:
        return
    usual = next((c for c in own if c.equal is not True), own[0])
    through_host = next((c for c in measured if c.settings == {"NCCL_P2P_DISABLE": "1"}), None)
    if usual.equal is not True and through_host is not None and through_host.equal:
        said = "the sum is wrong" if usual.equal is False else usual.problem or "no answer"
        yield blocker(
            "p2p-broken",
            "an all-reduce between these GPUs fails with peer access and works without",
            evidence=[f"NCCL's own choice: {said}", _measured(through_host)],
            note=_why_broken(context),
            hint="NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce; or turn off ACS and the IOMMU in the BIOS",
        )
    elif usual.equal and not _all_nvlink(context):
        yield from _faster(min(own, key=lambda c: c.small_seconds or 0), measured)


def _all_nvlink(context: Context) -> bool:
    """There NCCL's choice stands, and a difference is noise."""
    assert context.machine is not None
    used = {g.index for g in context.gpus}
    kinds = {link.kind for link in context.machine.links if {link.a, link.b} <= used}
    return kinds == {"nvlink"}


def _faster(usual: Collective, measured: list[Collective]) -> Iterator[Finding]:
    """A proposal only where small all-reduces, which decoding waits for, are at least 10 % faster and large ones not slower."""
    good = [c for c in measured if c.equal and c.small_seconds and usual.small_seconds and c.large_bytes_per_second]
    better = [c for c in good if c.small_seconds and usual.small_seconds and c.small_seconds < 0.9 * usual.small_seconds]
    kept = [c for c in better if (c.large_bytes_per_second or 0) > 0.97 * (usual.large_bytes_per_second or 0)]
    best = min(kept, key=lambda c: c.small_seconds or 0, default=None)
    if best is not None:
        yield remark(
            "nccl-settings-faster",
            "other NCCL settings were measured faster on this machine",
            evidence=[_measured(usual), _measured(best)],
            hint=" ".join(f"--env {k}={v}" for k, v in best.settings.items()),
        )


def _measured(c: Collective) -> str:
    name = " ".join(f"{k}={v}" for k, v in c.settings.items()) or "NCCL's own choice"
    small = f"{c.small_seconds * 1e6:.0f} us" if c.small_seconds else "unknown"
    large = f"{c.large_bytes_per_second / 1e9:.1f} GB/s" if c.large_bytes_per_second else "unknown"
    return f"{name}: 64 KiB in {small}, 32 MiB at {large} (measured)"


def _why_broken(context: Context) -> str | None:
    assert context.machine is not None
    return "the IOMMU is on: it can redirect peer writes" if context.machine.iommu else None


CHECKS = (
    Check("driver", ("machine", "install"), driver),
    Check("kernel-image", ("machine", "install"), kernel_image),
    Check("gpu-memory", ("machine", "candidate"), memory_held),
    Check("own-runs", ("machine", "candidate"), leftovers),
    Check("gpus-equal", ("machine", "candidate"), unequal),
    Check("mig", ("machine",), mig),
    Check("compute-mode", ("machine",), compute_mode),
    Check("pcie-width", ("machine",), pcie_width),
    Check("peer-access", ("machine", "candidate"), peer_access),
    Check("all-reduce", ("machine", "candidate"), collectives, engines=("vllm", "sglang")),
)
