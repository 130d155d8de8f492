"""Facts of processes out of /proc. A process that ends while it is looked at is simply not there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LISTEN = "0A"


class Process(NamedTuple):
    """start_ticks: clock ticks since boot (field 22 of /proc/PID/stat); with pid and boot id it names a process for good."""

    pid: int
    name: str
    state: str
    ppid: int
    pgid: int
    sid: int
    start_ticks: int


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def process(pid: int) -> Process | None:
    """None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(pid, name, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := process(int(entry))) is not None:
            yield found


def same(pid: int, start_ticks: int) -> Process | None:
    """The process if it still is the one that started then, and is no zombie."""
    found = process(pid)
    return found if found is not None and found.start_ticks == start_ticks and found.state not in "ZX" else None


def environment(pid: int) -> dict[str, str]:
    """The environment as the process got it; {} where it cannot be read. Programs that set their title may have overwritten it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command(pid: int) -> str:
    """The command line for people, at most 200 characters; the short name where there is none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    found = process(pid)
    return text[:200] or (found.name if found else "")


def descriptors(pid: int) -> Iterator[str]:
    """What the open descriptors lead to."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


def listening_inodes(port: int) -> set[str]:
    """Inodes of TCP sockets that listen on the port, both families."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        found |= {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    return found


def holders(inodes: set[str], pids: Iterable[int]) -> list[int]:
    """Those of `pids` that hold one of the sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return [pid for pid in pids if not wanted.isdisjoint(descriptors(pid))]


def shared_memory(pid: int) -> set[str]:
    """Files in /dev/shm that the process has open or mapped."""
    found = {path for path in descriptors(pid) if path.startswith("/dev/shm/")}
    try:
        with open(f"/proc/{pid}/maps") as file:
            found |= {"/dev/shm/" + line.rstrip("\n").partition("/dev/shm/")[2] for line in file if "/dev/shm/" in line}
    except OSError:
        pass
    return {path for path in found if not path.endswith(" (deleted)")}


def oom_kills() -> int:
    """How often this kernel's OOM killer struck since boot."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
