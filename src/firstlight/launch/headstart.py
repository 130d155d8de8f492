"""The head start: shards are read into the page cache while the engine still imports. Decides whether it helps, and how far it may go.

The reading itself is done on the engine's host by its supervisor (`supervisor/readahead.py`).
"""

import posixpath
import re
from collections.abc import Sequence

from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import HostError
from firstlight.core.ports import Host
from firstlight.core.units import GIB, format_bytes

_BYPASS = frozenset({"dummy", "runai_streamer", "runai_streamer_sharded", "fastsafetensors", "instanttensor", "ipc_cache", "tensorizer"})
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_WEIGHTS = re.compile(r"\.(safetensors|gguf|bin|pt)$")
SMALLEST = 256 << 20
KEEP_FREE_SHARE = 0.10
KEEP_FREE_BYTES = 4 * GIB


class HeadStart(Struct, frozen=True, kw_only=True):
    """files: absolute, in loading order. limit_bytes: read no further. because: why it helps, or why it does not (files empty)."""

    files: list[str] = []
    limit_bytes: int = 0
    keep_free_bytes: int = 0
    because: str = ""


def plan_head_start(
    host: Host, checkpoint: Checkpoint, *, args: Sequence[str], engine_memory_bytes: int = 0, available_bytes: int | None = None
) -> HeadStart:
    """What to read ahead. engine_memory_bytes: host memory that the engine itself will want (weights on CPU, pinned buffers).

    available_bytes: MemAvailable where the caller knows it better (a container's limit).
    """
    if (loader := _option(args, "--load-format")) in _BYPASS:
        return HeadStart(because=f"the loader {loader} does not read through the page cache")
    if "--direct-io" in args or "-dio" in args:
        return HeadStart(because="the engine reads past the page cache")
    files = _weight_files(checkpoint)
    total = sum(size for _, size in files)
    if total < SMALLEST:
        return HeadStart(because=f"{format_bytes(total)} load at once")
    path = checkpoint.path or ""
    if (kind := _file_system(host, path)) in _MEMORY_FILE_SYSTEMS:
        return HeadStart(because=f"the files are in memory already ({kind})")
    available = _available(host) if available_bytes is None else available_bytes
    if available is None:
        return HeadStart(because="free memory is unknown")
    keep = max(KEEP_FREE_BYTES, int(available * KEEP_FREE_SHARE)) + engine_memory_bytes
    limit = min(total, available - keep)
    if limit < SMALLEST:
        return HeadStart(because=f"only {format_bytes(available)} of memory is free")
    part = "all" if limit == total else f"the first {format_bytes(limit)}"
    because = f"{part} of {format_bytes(total)} fits into free memory"
    return HeadStart(files=[name for name, _ in files], limit_bytes=limit, keep_free_bytes=keep, because=because)


def _weight_files(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Weight files in the order in which loaders open them: by name, as both engines sort. A GGUF's path is the file itself."""
    if checkpoint.path is None:
        return []
    if checkpoint.path.endswith(".gguf"):
        folder = posixpath.dirname(checkpoint.path)
        names = {n: s for n, s in checkpoint.files.items() if n.endswith(".gguf")}
        names = names or {posixpath.basename(checkpoint.path): checkpoint.file_bytes or 0}
        return [(posixpath.join(folder, n), s) for n, s in sorted(names.items())]
    names = {n: s for n, s in checkpoint.files.items() if _WEIGHTS.search(n) and "/" not in n}
    if any(n.endswith(".safetensors") for n in names):
        names = {n: s for n, s in names.items() if n.endswith(".safetensors")}
    return [(posixpath.join(checkpoint.path, n), s) for n, s in sorted(names.items())]


def _option(args: Sequence[str], name: str) -> str | None:
    for at, word in enumerate(args):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            return value if equals else (args[at + 1] if at + 1 < len(args) else None)
    return None


def _file_system(host: Host, path: str) -> str | None:
    try:
        return host.run(["stat", "-L", "-f", "-c", "%T", "--", path]).text.strip() or None
    except HostError:
        return None


def _available(host: Host) -> int | None:
    """MemAvailable in bytes."""
    try:
        text = host.read("/proc/meminfo").decode()
    except (HostError, UnicodeDecodeError):
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else None
