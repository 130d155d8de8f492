"""Live samples of an engine's processes through the Host port: processor, disk, GPU memory, network. Facts that cannot be read are None."""

from collections.abc import Callable, Sequence

from firstlight.core.errors import HostError
from firstlight.core.ports import Host
from firstlight.watch.stall import Sample

TIMEOUT_SECONDS = 10.0


def family(text: str, root: int) -> dict[int, float]:
    """`ps -eo pid=,ppid=,cputimes=` -> processor seconds of a process and all its descendants, by pid."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3 and all(f.isdecimal() for f in fields):
            parents[int(fields[0])], seconds[int(fields[0])] = int(fields[1]), float(fields[2])
    found = {root} if root in parents else set()
    grown = bool(found)
    while grown:
        new = {pid for pid, parent in parents.items() if parent in found} - found
        found |= new
        grown = bool(new)
    return {pid: seconds[pid] for pid in found}


def io_bytes(text: str, names: tuple[str, ...] = ("rchar:", "wchar:")) -> int | None:
    """`/proc/PID/io` of several processes, one after the other -> characters read and written (page cache included)."""
    counts = [int(line.split()[1]) for line in text.splitlines() if line.startswith(names) and len(line.split()) == 2]
    return sum(counts) if counts else None


def mapped_bytes(text: str) -> int | None:
    """`/proc/PID/status` of several processes -> bytes of files that are mapped and present in their memory."""
    counts = [int(line.split()[1]) for line in text.splitlines() if line.startswith("RssFile:") and len(line.split()) == 3]
    return sum(counts) << 10 if counts else None


def cached_bytes(text: str) -> int | None:
    """`fincore --bytes --noheadings --output RES FILE…` -> bytes of these files in the page cache."""
    counts = [int(word) for word in text.split() if word.isdecimal()]
    return sum(counts) if counts else None


def gpu_bytes(text: str, pids: set[int]) -> int | None:
    """`nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits` -> bytes that these processes hold.

    Inside a container pids differ from the driver's: then everything that is held counts.
    """
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    used = {int(a): int(b) for a, b in rows if a.strip().isdecimal() and b.strip().isdecimal()}
    if not used:
        return None
    own = [mib for pid, mib in used.items() if pid in pids]
    return sum(own or used.values()) << 20


def network_bytes(text: str) -> int | None:
    """`/proc/net/dev` -> bytes received and sent on every interface but loopback."""
    total, seen = 0, False
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() != "lo" and len(fields) >= 9 and fields[0].isdecimal():
            total, seen = total + int(fields[0]) + int(fields[8]), True
    return total if seen else None


class Sampler:
    """Samples the processes under `pid` on a host. What once failed for good (no nvidia-smi, no fincore) is not asked again.

    files: the checkpoint's weight files there, for how much of them is in the page cache.
    """

    def __init__(self, host: Host, pid: int, clock: Callable[[], float], files: Sequence[str] = ()) -> None:
        self.host, self.pid, self._clock, self._files = host, pid, clock, tuple(files)
        self._gpu = True

    def sample(self) -> Sample:
        times = family(self._run("ps", "-eo", "pid=,ppid=,cputimes=") or "", self.pid)
        network = self._run("cat", "/proc/net/dev")
        own = self._run("cat", *(f"/proc/{p}/{name}" for p in sorted(times) for name in ("io", "status"))) or "" if times else ""
        return Sample(
            time=self._clock(),
            cpu_seconds=sum(times.values()) if times else None,
            io_bytes=io_bytes(own),
            read_bytes=io_bytes(own, ("rchar:",)),
            mapped_bytes=mapped_bytes(own),
            cached_bytes=self._cached_bytes(),
            gpu_bytes=self._gpu_bytes(set(times)),
            network_bytes=network_bytes(network) if network else None,
            processes=len(times) or None,
        )

    def stacks(self) -> str | None:
        """A stack dump of every Python process under `pid`, where py-spy is there and may look; None otherwise."""
        times = family(self._run("ps", "-eo", "pid=,ppid=,cputimes=") or "", self.pid)
        dumps = [text for pid in sorted(times) if (text := self._run("py-spy", "dump", "--pid", str(pid)))]
        return "\n".join(dumps) or None

    def _gpu_bytes(self, pids: set[int]) -> int | None:
        if not self._gpu:
            return None
        text = self._run("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        if text is None:
            self._gpu = False
            return None
        return gpu_bytes(text, pids)

    def _cached_bytes(self) -> int | None:
        if not self._files:
            return None
        text = self._run("fincore", "--bytes", "--noheadings", "--output", "RES", *self._files)
        if text is None:
            self._files = ()
            return None
        return cached_bytes(text)

    def _run(self, *argv: str) -> str | None:
        try:
            done = self.host.run(argv, timeout=TIMEOUT_SECONDS)
        except HostError:
            return None
        return done.text if done.stdout else None
