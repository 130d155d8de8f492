"""The page that `firstlight probe` prints."""

from collections.abc import Iterator
from pathlib import Path

import click

from firstlight.app.output import glyphs, show_findings
from firstlight.core.errors import FirstlightError
from firstlight.core.machine import Accelerator, EngineInstall, GpuProcess, Machine, Storage
from firstlight.core.units import format_bytes, gib

LABEL = 12


def show_machine(machine: Machine) -> None:
    click.secho(f"{machine.hostname}  {machine.system or 'unknown system'}", bold=True)
    for label, text in _facts(machine):
        click.echo(f"  {label:<{LABEL}}{text}")
    for title, lines in (("GPUs", _gpus(machine)), ("disks", map(_disk, machine.storage)), ("engines", map(_engine, machine.engines))):
        rows = list(lines)
        if rows or title != "disks":
            click.echo()
            click.secho(f"  {title}", bold=True)
        for row in rows or (["none found"] if title != "disks" else []):
            click.echo(f"    {row}")
    findings = [*machine.findings, *(f for e in machine.engines for f in e.findings)]
    if findings:
        click.echo()
        show_findings(findings)


def _facts(m: Machine) -> Iterator[tuple[str, str]]:
    cpu = " ".join(filter(None, [m.cpu_model, f"({m.cpu_count} usable)" if m.cpu_count else None]))
    yield "processor", ", ".join(filter(None, [cpu, m.architecture, f"{m.numa_nodes} NUMA nodes" if (m.numa_nodes or 1) > 1 else None]))
    limit = f", limited to {gib(m.cgroup_memory_limit_bytes)}" if m.cgroup_memory_limit_bytes else ""
    yield "memory", f"{gib(m.memory_total_bytes)}, {gib(m.memory_available_bytes)} available{limit}"
    yield "/dev/shm", gib(m.shm_total_bytes)
    yield "kernel", " ".join(filter(None, [m.kernel, f"in a {m.container} container" if m.container else None]))
    if m.driver_version:
        yield "driver", f"{m.driver_version}, runs CUDA up to {m.cuda_driver_version or 'unknown'}"
    tools = [f"{name} {m.tool_versions.get(name, '')}".strip() for name in ("python3", "gcc", "nvcc", "ninja") if m.tools.get(name)]
    yield "tools", ", ".join(tools) or "none found"
    soft = m.limits.get("nofile")
    yield "open files", f"{soft:,}" if soft is not None else "unlimited" if "nofile" in m.limits else "unknown"
    if m.environment:
        yield "environment", " ".join(f"{k}={v}" for k, v in m.environment.items())


def _gpus(machine: Machine) -> Iterator[str]:
    for gpu in machine.accelerators:
        yield _gpu(gpu)
        yield from (f"  {glyphs().arrow} {_process(p)}" for p in gpu.processes)
    kinds: dict[str, int] = {}
    for link in machine.links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    if kinds:
        yield "links: " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items())


def _gpu(gpu: Accelerator) -> str:
    total = f"{gib(gpu.free_bytes)} free of {gib(gpu.cuda_total_bytes)}"
    origin = "" if gpu.cuda_total_rung == "measured" else " (catalog)" if gpu.cuda_total_bytes else ""
    driver = f", driver {gib(gpu.driver_total_bytes)}" if gpu.driver_total_bytes else ", shared with the host" if gpu.unified_memory else ""
    width = f", PCIe {gpu.pcie_generation_max or '?'} x{gpu.pcie_width}" if gpu.pcie_width else ""
    sm = f", SM {gpu.sm}" if gpu.sm else ""
    return f"{gpu.index}  {gpu.name}{sm}: {total}{origin}{driver}{width}"


def _process(p: GpuProcess) -> str:
    owner = (
        f"run {p.run}" if p.run else f"unit {p.unit}" if p.unit else f"container {p.container}" if p.container else p.user or "unknown user"
    )
    return f"pid {p.pid} ({owner}) {gib(p.memory_bytes)} {(p.command or '')[:60]}".rstrip()


def _disk(s: Storage) -> str:
    speed = f", reads {s.read_bytes_per_second / 1e9:.2f} GB/s (measured)" if s.read_bytes_per_second else ""
    return f"{s.path}: {format_bytes(s.free_bytes)} free of {format_bytes(s.total_bytes)}, {s.filesystem or 'unknown file system'}{speed}"


def _engine(e: EngineInstall) -> str:
    device = f" ({e.device})" if e.device else ""
    return f"{e.engine} {e.version or '?'}{device}  {e.python or e.binary}"


def save_raw(folder: str | None, texts: dict[str, str]) -> None:
    """A file a fact. Raises FirstlightError `file-unwritable`."""
    if folder is None:
        return
    try:
        for name, text in texts.items():
            path = Path(folder) / f"{name.replace('/', '_')}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as e:
        raise FirstlightError("file-unwritable", f"{folder} cannot be written", evidence=(e.strerror or str(e),)) from None
