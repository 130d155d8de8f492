"""The disk's refusals as errors that say what to do."""

import errno
import os
from pathlib import Path

from firstlight.core.errors import HostError
from firstlight.core.units import format_bytes

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota on this disk is used up",
    errno.EFBIG: "the file is larger than this file system or `ulimit -f` allows",
}


def disk_error(error: OSError, path: Path) -> HostError:
    """`disk-full` (nothing is lost: the next run goes on), `target-removed`, or `disk-failed`."""
    evidence = (f"{path}", f"{error.strerror or error}")
    if error.errno in FULL:
        return HostError(
            "disk-full",
            FULL[error.errno],
            evidence=(*evidence, f"available: {format_bytes(available_bytes(path))}") if error.errno == errno.ENOSPC else evidence,
            hint="make room (`firstlight models` shows what is cached); the same command then goes on where this one stopped",
        )
    if error.errno == errno.ENOENT:
        hint = "the same command fetches again what is gone; `firstlight models rm` refuses while a fetch is at work"
        return HostError("target-removed", "something removes files while the model is fetched", evidence=evidence, hint=hint)
    return HostError("disk-failed", "the disk refuses to read or write", evidence=evidence, hint="check permissions, mounts and `dmesg`")


def available_bytes(path: Path) -> int | None:
    """Room for this user at the nearest existing folder; None where the system does not say."""
    try:
        at = os.statvfs(nearest(path))
    except OSError:
        return None
    return at.f_bavail * at.f_frsize


def nearest(path: Path) -> Path:
    """The nearest folder above `path` that exists, symlinks resolved: where the bytes will really lie."""
    real = Path(os.path.realpath(path))
    return next((p for p in (real, *real.parents) if p.exists()), Path("/"))
