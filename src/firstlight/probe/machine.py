"""host -> Machine: all facts together."""

from collections.abc import Sequence

from firstlight.core.machine import Machine
from firstlight.core.ports import Host
from firstlight.probe.fact import Gathered, gather
from firstlight.probe.facts import network, storage, system, tools


def probe_machine(host: Host, *, paths: Sequence[str] = (), raw: dict[str, str] | None = None) -> Machine:
    """Facts of one host. paths: places whose file system and free space matter. raw: filled with each command's text by fact name.

    Raises HostError when the host cannot be reached; a fact that cannot be had is None.
    """
    got = Gathered(raw if raw is not None else {})
    spaces = storage.space(["/dev/shm", *dict.fromkeys(paths)])
    gather(host, [*system.SYSTEM_FACTS, storage.MOUNTS, spaces, network.PORTS, tools.TOOLS_FACT], got)
    uname, cpu, memory, found = got.value(system.UNAME), got.value(system.CPU), got.value(system.MEMINFO), got.value(tools.TOOLS_FACT)
    rows, mounts = got.value(spaces), got.value(storage.MOUNTS)
    places = storage.storage(rows, mounts)
    shm = next((p for p in places if p.path == "/dev/shm" and p.filesystem == "tmpfs"), None)
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
        cgroup_memory_limit_bytes=got.value(system.CGROUP).memory_limit_bytes,
        shm_total_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        limits=got.value(system.LIMITS),
        nvcc_version=found.nvcc,
        tools=found.paths,
        storage=[p for p in places if p.path != "/dev/shm"],
        ports_in_use=got.value(network.PORTS),
        environment=network.environment(host.environ()),
        container=got.value(system.CONTAINER),
    )
