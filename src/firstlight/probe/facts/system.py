"""Kernel, processor, memory, limits, container."""

import re

from msgspec import Struct

from firstlight.probe.fact import Fact, shell


class Uname(Struct, frozen=True):
    hostname: str | None = None
    system: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    distribution: str | None = None


def parse_uname(text: str) -> Uname:
    """Two parts: `uname -n`, `-s`, `-r`, `-m`, a line each, then os-release."""
    lines = text.splitlines()
    if len(lines) < 4:
        return Uname()
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.M)
    return Uname(lines[0], lines[1], lines[2], lines[3], pretty[1] if pretty else None)


UNAME = shell("uname", "uname -n; uname -s; uname -r; uname -m; cat /etc/os-release 2>/dev/null", parse_uname)


class Cpu(Struct, frozen=True):
    model: str | None = None
    count: int | None = None
    flags: list[str] = []


def parse_cpu(text: str) -> Cpu:
    """`nproc` (what this process may use) on the first line, then one processor's lines of /proc/cpuinfo."""
    count = re.match(r"(\d+)\s*$", text.split("\n", 1)[0])
    model = re.search(r"^(?:model name|Model|cpu|Hardware)\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    return Cpu(model[1].strip() if model else None, int(count[1]) if count else None, flags[1].split() if flags else [])


CPU = shell(
    "cpu",
    "nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; grep -m 1 -E '^(model name|Model|cpu|Hardware)[[:space:]]*:' /proc/cpuinfo;"
    " grep -m 1 -E '^(flags|Features)' /proc/cpuinfo",
    parse_cpu,
)


class Memory(Struct, frozen=True):
    """Bytes. available: what can be had without swapping, page cache included."""

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None


def parse_meminfo(text: str) -> Memory:
    kib = {m[1]: int(m[2]) * 1024 for m in re.finditer(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    return Memory(kib.get("MemTotal"), kib.get("MemAvailable"), kib.get("SwapTotal"), kib.get("SwapFree"))


MEMINFO = Fact("meminfo", ("cat", "/proc/meminfo"), parse_meminfo)


class Cgroup(Struct, frozen=True):
    """The tightest limits on the way up from our own group. cpus: quota over period."""

    version: int | None = None
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    cpus: float | None = None


_CGROUP_SCRIPT = """
up() { d=$2$3; while :; do
  for f in $4; do [ -r "$d/$f" ] && echo "$1 $f $(tr '\\n' ' ' <"$d/$f")"; done
  [ "$d" = "$2" ] || [ "$d" = "$2/" ] || [ "$d" = / ] && break; d=${d%/*}; done; }
while IFS=: read -r id names path; do
  [ "$path" = / ] && path=
  case ",$names," in
    ,,) [ -f /sys/fs/cgroup/cgroup.controllers ] && up 2 /sys/fs/cgroup "$path" "memory.max memory.current cpu.max" ;;
    *,memory,*) up 1 /sys/fs/cgroup/memory "$path" "memory.limit_in_bytes memory.usage_in_bytes" ;;
    *,cpu,*) up 1 /sys/fs/cgroup/cpu "$path" "cpu.cfs_quota_us cpu.cfs_period_us" ;;
  esac
done </proc/self/cgroup
"""
_UNLIMITED = 1 << 60


def parse_cgroup(text: str) -> Cgroup:
    """Lines `VERSION FILE CONTENT`, our own group first, then its parents. A v1 limit near 2^63 is none."""
    rows = [line.split() for line in text.splitlines() if re.match(r"[12] (memory|cpu)\.", line)]
    values = [(r[1], r[2:]) for r in rows]
    limits = [int(v[0]) for f, v in values if f in ("memory.max", "memory.limit_in_bytes") and v and v[0].isdigit()]
    limits = [n for n in limits if n < _UNLIMITED]
    used = [int(v[0]) for f, v in values if f in ("memory.current", "memory.usage_in_bytes") and v and v[0].isdigit()]
    return Cgroup(
        int(rows[0][0]) if rows else None,
        min(limits) if limits else None,
        used[0] if used else None,
        min(_quotas(values), default=None),
    )


def _quotas(values: list[tuple[str, list[str]]]) -> list[float]:
    v2 = [int(v[0]) / int(v[1]) for f, v in values if f == "cpu.max" and len(v) == 2 and v[0].isdigit()]
    quotas = [int(v[0]) for f, v in values if f == "cpu.cfs_quota_us" and v]
    periods = [int(v[0]) for f, v in values if f == "cpu.cfs_period_us" and v]
    return v2 + [q / p for q, p in zip(quotas, periods, strict=False) if q > 0 and p > 0]


CGROUP = shell("cgroup", _CGROUP_SCRIPT, parse_cgroup)

_LIMITS = {
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max processes": "nproc",
    "Max stack size": "stack",
    "Max address space": "as",
    "Max core file size": "core",
}


def parse_limits(text: str) -> dict[str, int | None]:
    """Soft limits of /proc/self/limits by ulimit's names, with `NAME_hard` beside them; None is unlimited."""
    found: dict[str, int | None] = {}
    for title, name in _LIMITS.items():
        if row := re.search(rf"^{title}\s+(\S+)\s+(\S+)", text, re.M):
            for key, value in ((name, row[1]), (f"{name}_hard", row[2])):
                found[key] = int(value) if value.isdigit() else None
    return found


LIMITS = Fact("limits", ("cat", "/proc/self/limits"), parse_limits)


def parse_container(text: str) -> str | None:
    """docker | podman | kubernetes | lxc | systemd-nspawn | …, None on a bare or virtual machine."""
    if "file /run/.containerenv" in text:
        return "podman"
    if "kubepods" in text or "env KUBERNETES_SERVICE_HOST" in text:
        return "kubernetes"
    if "file /.dockerenv" in text or re.search(r"[:/]docker[-/]", text):
        return "docker"
    named = re.search(r"^env container=(\S+)", text, re.M)
    return named[1] if named else None


CONTAINER = shell(
    "container",
    "for f in /.dockerenv /run/.containerenv; do [ -e $f ] && echo file $f; done;"
    ' [ -n "$container" ] && echo "env container=$container"; [ -n "$KUBERNETES_SERVICE_HOST" ] && echo env KUBERNETES_SERVICE_HOST;'
    " cat /proc/self/cgroup 2>/dev/null; true",
    parse_container,
)


def parse_numa(text: str) -> int | None:
    """Node numbers as /sys lists them (`0-1`, `0,2-3`)."""
    text = text.strip()
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return None
    pairs = (part.split("-") for part in text.split(","))
    return sum(int(p[-1]) - int(p[0]) + 1 for p in pairs)


NUMA = Fact("numa", ("cat", "/sys/devices/system/node/online"), parse_numa)

SYSTEM_FACTS = (UNAME, CPU, MEMINFO, CGROUP, LIMITS, CONTAINER, NUMA)
