"""Facts of processes out of /proc. A process that ends while it is looked at is simply not there."""

from __future__ import annotations

import os
import socket
import sys
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


def owner(pid: int) -> int | None:
    """Whose process it is: a uid; None where it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


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


class Listener(NamedTuple):
    """A TCP socket that listens. address: as text (`127.0.0.1`, `::`). uid: whose socket it is."""

    inode: str
    address: str
    uid: int


def listeners(port: int) -> list[Listener] | None:
    """Every TCP socket that listens on the port, both families; None where the kernel shows no table at all."""
    found, readable = [], False
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        readable = True
        wanted = f":{port:04X}"
        found += [Listener(r[9], _address(r[1]), int(r[7])) for r in rows if r[3] == _LISTEN and r[1].endswith(wanted)]
    return found if readable else None


def _address(text: str) -> str:
    """`0100007F:1F40` -> `127.0.0.1`: the kernel prints each 32-bit word in the machine's own order."""
    words = bytes.fromhex(text.partition(":")[0])
    if sys.byteorder == "little":
        words = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words).removeprefix("::ffff:")


def listening_inodes(port: int) -> set[str]:
    """Inodes of TCP sockets that listen on the port, both families."""
    return {listener.inode for listener in listeners(port) or ()}


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
