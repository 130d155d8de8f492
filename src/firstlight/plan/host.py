"""The host as a place to run on: what is free, how fast its memory and its disks are, and what one token reads of a model."""

from collections.abc import Sequence

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.figures import Figure
from firstlight.core.machine import Machine
from firstlight.core.units import gib
from firstlight.plan.figures import interval, known, unknown
from firstlight.plan.numbers import experts_of, top_k_of

DISK_ASSUMED = (1.0e9, 2.5e9, 7.0e9)  # bytes per second: network file system, one NVMe, striped NVMe
# Bytes per second that one core moves, and that one NUMA node's memory gives at most (12 channels of DDR5-6400).
CORE_ASSUMED = (3.0e9, 8.0e9, 15.0e9)
NODE_AT_MOST = 614e9
NOT_READ = ("vision", "projector", "mtp")  # by a token of text


def host_free(machine: Machine, reserve: int = 0) -> int | None:
    """Bytes that a new process may take: available memory, or what the cgroup has left, less a reserve. None: neither is known."""
    limit, used = machine.cgroup_memory_limit_bytes, machine.cgroup_memory_used_bytes or 0
    left = [b for b in (machine.memory_available_bytes, None if limit is None else limit - used) if b is not None]
    return max(min(left) - reserve, 0) if left else None


def host_bandwidth(machine: Machine) -> Figure:
    """Bytes per second of the host's memory: measured, or between what its cores could move slowly and fast."""
    if machine.memory_bandwidth_bytes_per_second:
        return known(machine.memory_bandwidth_bytes_per_second, "measured")
    if not machine.cpu_count:
        return unknown("neither the host's memory bandwidth nor its number of cores is known")
    most = NODE_AT_MOST * (machine.numa_nodes or 1)
    low, mid, high = (min(each * machine.cpu_count, most) for each in CORE_ASSUMED)
    why = f"memory bandwidth not measured: {low / 1e9:.0f} to {high / 1e9:.0f} GB/s assumed for {machine.cpu_count} cores"
    return Figure(low=low, mid=mid, high=high, because=why)


def touched_bytes(checkpoint: Checkpoint) -> float:
    """What one token reads of the stored weights: of routed experts the chosen ones; of the embedding a row, unless it is the head too."""
    total = float(checkpoint.tensor_bytes or checkpoint.file_bytes or 0)
    roles = checkpoint.bytes_by_role
    idle = float(sum(roles.get(role, 0) for role in NOT_READ) + (roles.get("embedding", 0) if roles.get("lm_head") else 0))
    experts = checkpoint.moe.num_experts if checkpoint.moe else experts_of(checkpoint.config)
    if experts:
        chosen = (checkpoint.moe.num_experts_per_tok if checkpoint.moe else None) or top_k_of(checkpoint.config)
        idle += roles.get("routed_experts", 0) * (1 - min(chosen / experts, 1.0))
    return max(total - idle, 0.0)


def decode_bound(parts: Sequence[tuple[float, Figure]]) -> Figure:
    """One request's tokens per second if nothing but weights moved. parts: (bytes that a token reads, bandwidth of where they are)."""
    reads = [(size, speed) for size, speed in parts if size > 0]
    if not reads:
        return unknown("the model's size is not known")
    if any(speed.low is None or speed.mid is None or speed.high is None for _, speed in reads):
        return unknown(next(s.because for _, s in reads if not s.known) or "memory bandwidth is not known")
    low, mid, high = (1 / sum(size / float(getattr(speed, end)) for size, speed in reads) for end in ("low", "mid", "high"))
    why = f"{gib(sum(size for size, _ in reads))} touched per token over memory bandwidth; " + "; ".join(s.because or "" for _, s in reads)
    return Figure(low=round(low * 0.35, 1), mid=round(mid * 0.65, 1), high=round(high, 1), because=why)


def load_seconds(checkpoint: Checkpoint, machine: Machine) -> Figure:
    """Every byte of the checkpoint once, at the disk's measured speed; without one, between a slow and a fast disk."""
    size = checkpoint.file_bytes or checkpoint.tensor_bytes
    if not size:
        return unknown("the checkpoint's size is not known: its weights are not there")
    measured = [p.read_bytes_per_second for p in machine.storage if p.read_bytes_per_second]
    if measured:
        return interval(size / max(measured), 0.35, f"{gib(size)} at the measured {max(measured) / 1e9:.1f} GB/s")
    slow, usual, fast = (round(size / speed, 1) for speed in DISK_ASSUMED)
    return Figure(low=fast, mid=usual, high=slow, because=f"{gib(size)}; no disk was measured: 1 to 7 GB/s assumed")


def later(load: Figure, seconds: tuple[float, float, float], because: str) -> Figure:
    """`load` and then some: when the endpoint answers."""
    low, mid, high = (None if x is None else round(x + s, 1) for x, s in zip((load.low, load.mid, load.high), seconds, strict=True))
    return Figure(low=low, mid=mid, high=high, because=because)
