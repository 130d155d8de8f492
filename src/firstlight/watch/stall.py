"""Is it stuck or working? A pure verdict over samples: silence and no movement, against what this phase may be silent for."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from firstlight.catalog.milestones import load_milestones

WINDOW_SECONDS = 30.0
CPU_SHARE = 0.05
IO_BYTES_PER_SECOND = 64 * 1024
MEMORY_BYTES = 4 << 20
NETWORK_BYTES_PER_SECOND = 64 * 1024
EARLIER_SLACK = 1.5
_DEFAULT_SILENT = 300.0
_MEMORY = (("mapped_bytes", "file pages in memory"), ("cached_bytes", "checkpoint in the page cache"), ("gpu_bytes", "GPU memory"))
_SPIN_PROVES_NOTHING = frozenset({"distributed-init", "loading", "kv-allocation"})


class Sample(Struct, frozen=True, kw_only=True):
    """What the engine's processes have used at one time; counters only grow, None where it could not be read.

    cpu_seconds: of all processes of the engine. io_bytes: read and written; read_bytes: read alone. mapped_bytes: file pages in their
    memory. cached_bytes: of the checkpoint's files in the page cache. gpu_bytes: GPU memory held. network_bytes: of the host, loopback
    left out.
    """

    time: float
    cpu_seconds: float | None = None
    io_bytes: int | None = None
    gpu_bytes: int | None = None
    network_bytes: int | None = None
    processes: int | None = None
    read_bytes: int | None = None
    mapped_bytes: int | None = None
    cached_bytes: int | None = None


class Stall(StrEnum):
    """moving: something happens. quiet: nothing seen, and this phase may be quiet so long. stalled: longer than it may.

    unknown: not enough was seen to say.
    """

    MOVING = "moving"
    QUIET = "quiet"
    STALLED = "stalled"
    UNKNOWN = "unknown"


class Verdict(Struct, frozen=True, kw_only=True):
    """state with its reason in one line, and what was looked at, one fact a line."""

    state: Stall
    because: str
    looked_at: list[str] = []
    silent_seconds: float = 0.0


def judge(
    samples: Sequence[Sample], *, phase: str, silent_seconds: float, engine: str = "vllm", earlier_seconds: float = 0.0, waits: bool = False
) -> Verdict:
    """The verdict on an engine in `phase` whose log says nothing for `silent_seconds`.

    A processor that is busy proves work while kernels compile; where ranks wait for each other they spin, so that there only I/O, network
    and GPU memory count. earlier_seconds: how long the phase took at most in earlier starts on this machine. waits: one process said that
    it waits for another, so that past the allowed time a busy processor may be a rank that spins, unless it compiles.
    """
    allowed = max(_allowed(engine, phase), earlier_seconds * EARLIER_SLACK)
    if silent_seconds < min(WINDOW_SECONDS, allowed):
        return Verdict(state=Stall.MOVING, because=f"a line {silent_seconds:.0f} s ago", silent_seconds=silent_seconds)
    recent = [s for s in samples if s.time >= samples[-1].time - WINDOW_SECONDS] if samples else []
    if len(recent) < 2 or recent[-1].time - recent[0].time < 1.0:
        return _unseen(silent_seconds, allowed)
    spins = phase in _SPIN_PROVES_NOTHING or (waits and phase != "compiling" and silent_seconds >= allowed)
    moved, still = _movement(recent[0], recent[-1], spins=spins)
    looked_at = [*moved, *still]
    if moved:
        return Verdict(state=Stall.MOVING, because=moved[0], looked_at=looked_at, silent_seconds=silent_seconds)
    if not still:
        return _unseen(silent_seconds, allowed)
    state = Stall.STALLED if silent_seconds >= allowed else Stall.QUIET
    bound = "longer than" if state is Stall.STALLED else "up to"
    because = f"no line for {silent_seconds:.0f} s and nothing moves; {phase} is silent for {bound} {allowed:.0f} s"
    return Verdict(state=state, because=because, looked_at=looked_at, silent_seconds=silent_seconds)


def _allowed(engine: str, phase: str) -> float:
    expected = load_milestones(engine).expected.get(phase)
    return expected.silent if expected else _DEFAULT_SILENT


def _unseen(silent: float, allowed: float) -> Verdict:
    state = Stall.UNKNOWN if silent >= allowed else Stall.QUIET
    return Verdict(state=state, because=f"no line for {silent:.0f} s; the processes could not be looked at", silent_seconds=silent)


def _movement(first: Sample, last: Sample, *, spins: bool) -> tuple[list[str], list[str]]:
    """What moved in the window, and what did not, as facts in words."""
    seconds = last.time - first.time
    moved: list[str] = []
    still: list[str] = []
    if first.io_bytes is not None and last.io_bytes is not None:
        rate = (last.io_bytes - first.io_bytes) / seconds
        (moved if rate >= IO_BYTES_PER_SECOND else still).append(f"disk: {rate / 1e6:.2f} MB/s in {seconds:.0f} s")
    for name, words in _MEMORY:
        before, after = getattr(first, name), getattr(last, name)
        if before is not None and after is not None:
            changed = abs(after - before)
            (moved if changed >= MEMORY_BYTES else still).append(f"{words}: changed by {changed / 1e6:.1f} MB in {seconds:.0f} s")
    if first.network_bytes is not None and last.network_bytes is not None:
        rate = (last.network_bytes - first.network_bytes) / seconds
        (moved if rate >= NETWORK_BYTES_PER_SECOND else still).append(f"network: {rate / 1e6:.2f} MB/s in {seconds:.0f} s")
    if first.cpu_seconds is not None and last.cpu_seconds is not None:
        share = (last.cpu_seconds - first.cpu_seconds) / seconds
        note = " (waiting ranks spin: no proof of work here)" if spins else ""
        (moved if share >= CPU_SHARE and not spins else still).append(f"processor: {share * 100:.0f} % of one core{note}")
    return moved, still
