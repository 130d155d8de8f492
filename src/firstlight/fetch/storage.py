"""What kind of storage a folder lies on, and how fast it reads: direct I/O, in parallel, bounded to a few seconds."""

import mmap
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from firstlight.catalog.loaders import Place
from firstlight.fetch.disk import nearest
from firstlight.fetch.space import filesystem

BLOCK = 4 << 20
MAX_BYTES = 8 << 30
KINDS = {
    "nfs": "nfs", "nfs4": "nfs", "lustre": "lustre", "9p": "9p", "virtiofs": "virtiofs", "cifs": "smb", "smb3": "smb", "ceph": "ceph",
    "gpfs": "gpfs", "beegfs": "beegfs", "tmpfs": "tmpfs", "ramfs": "tmpfs",
}  # fmt: skip


def storage_kind(path: Path) -> str:
    """disk (local, also below overlay), tmpfs, nfs, lustre, 9p, virtiofs, fuse, …"""
    kind = filesystem(nearest(path)) or ""
    return KINDS.get(kind, "fuse" if kind.startswith("fuse") else "disk")


def measure_place(path: Path, *, seconds: float = 2.0, threads: int = 4) -> Place:
    """Kind and cold read rate of the model at `path` (its largest files are read); the rate is None without 64 MiB to read."""
    kind = storage_kind(path)
    files = _largest(path)
    rate = None if kind == "tmpfs" else read_rate(files, seconds=seconds, threads=threads)
    return Place(kind=kind, read_bytes_per_second=rate)


def read_rate(files: Sequence[Path], *, seconds: float = 2.0, threads: int = 4) -> float | None:
    """Bytes per second of `threads` readers over `files`, past the page cache where the file system allows it."""
    spans = [(f, at) for f in files for at in range(0, _size(f) - BLOCK + 1, BLOCK)][: MAX_BYTES // BLOCK]
    if len(spans) * BLOCK < 64 << 20:
        return None
    until, lock, begun = time.monotonic() + seconds, threading.Lock(), time.monotonic()
    todo = iter(spans)

    def reader() -> int:
        buffer, total = mmap.mmap(-1, BLOCK), 0
        while time.monotonic() < until:
            with lock:
                span = next(todo, None)
            if span is None:
                break
            total += _read(*span, buffer)
        buffer.close()
        return total

    with ThreadPoolExecutor(threads) as pool:
        totals = [pool.submit(reader) for _ in range(threads)]
        done = sum(t.result() for t in totals)
    return done / (time.monotonic() - begun) if done else None


def _read(path: Path, at: int, buffer: mmap.mmap) -> int:
    """One block by O_DIRECT (`buffer` is page-aligned), else with the cache dropped first."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, at, BLOCK, os.POSIX_FADV_DONTNEED)
    try:
        return os.preadv(fd, [buffer], at)
    except OSError:
        return 0
    finally:
        os.close(fd)


def _largest(path: Path) -> list[Path]:
    """Weight files, largest first."""
    found = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sorted(found, key=_size, reverse=True)[:64]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
