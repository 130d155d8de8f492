"""Room on the disk where the bytes will really lie: reserved blocks, quotas, and file systems that forget."""

import getpass
import os
import re
import shutil
import subprocess
from pathlib import Path

from firstlight.core.fetch import Space
from firstlight.core.findings import Finding, Severity
from firstlight.core.units import format_bytes
from firstlight.fetch.disk import nearest

FORGETFUL = frozenset({"tmpfs", "ramfs", "overlay", "aufs", "squashfs"})
MARGIN = 64 << 20


def read_space(path: Path) -> Space:
    """Facts of the target, symlinks followed. `available_bytes` is the smaller of the file system's (for this user) and the quota's."""
    real = nearest(path)
    kind = filesystem(real)
    try:
        at = os.statvfs(real)
        total, free = at.f_blocks * at.f_frsize, at.f_bavail * at.f_frsize
    except OSError:
        return Space(path=str(real), filesystem=kind)
    quota = quota_left(real, kind)
    room = free if quota is None else min(free, quota)
    forgets = kind in FORGETFUL if kind else None
    return Space(
        path=str(real),
        filesystem=kind,
        total_bytes=total,
        available_bytes=room,
        quota_bytes=quota,
        persistent=None if forgets is None else not forgets,
    )


def space_findings(space: Space, needed: int | None) -> list[Finding]:
    """`no-space` blocks; a target that forgets is a warning."""
    findings = []
    room = space.available_bytes
    if needed and room is not None and needed + MARGIN > room:
        lines = [f"needed {format_bytes(needed)}", f"available {format_bytes(room)} at {space.path} ({space.filesystem or 'unknown'})"]
        lines += [f"your quota leaves {format_bytes(space.quota_bytes)}"] if space.quota_bytes is not None else []
        hint = "make room (`firstlight models` shows what is cached, its size and who uses it), or another place: --to DIR, HF_HOME"
        findings.append(
            Finding(code="no-space", severity=Severity.BLOCKER, message="the model does not fit on this disk", evidence=lines, hint=hint)
        )
    if needed and space.persistent is False:
        message = f"{space.path} is {space.filesystem}: what is fetched there is gone after a restart"
        note = "in tmpfs the model also takes memory" if space.filesystem in ("tmpfs", "ramfs") else "it lies in the container's own layer"
        findings.append(
            Finding(code="target-not-persistent", severity=Severity.WARNING, message=message, note=note, hint="mount a volume, or --to DIR")
        )
    return findings


def filesystem(path: Path) -> str | None:
    """The file system's kind by the longest mount point above `path`."""
    try:
        return filesystem_of(str(path), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """Pure: `mountinfo` as in /proc/self/mountinfo."""
    return mount_of(path, mountinfo)[0]


def mount_of(path: str, mountinfo: str) -> tuple[str | None, str | None]:
    """Kind and device of the mount that holds `path`; a later mount over the same point wins. Pure."""
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best[0]:
            best = (len(point), tail[0], tail[1])
    return best[1], best[2]


def quota_left(path: Path, kind: str | None) -> int | None:
    """Bytes that the user's quota leaves, by the tools that know it; None without a quota or a tool."""
    user = _user()
    if kind == "lustre" and user and shutil.which("lfs"):
        return parse_lfs_quota(_output(["lfs", "quota", "-q", "-u", user, str(path)]))
    if kind and shutil.which("quota"):
        device = mount_of(str(path), _mountinfo())[1]
        return parse_quota(_output(["quota", "-w", "-p", "-u"]), device or "")
    return None


def parse_quota(text: str, device: str) -> int | None:
    """`quota -w -p`: device, KiB used, soft, hard limit. The hard limit counts, the soft one where there is no hard one. Pure."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[0] == device and all(re.fullmatch(r"\d+\*?", f) for f in fields[1:4]):
            return _left(*(int(f.rstrip("*")) for f in fields[1:4]))
    return None


def parse_lfs_quota(text: str) -> int | None:
    """`lfs quota -q -u USER PATH`: path, KiB used, soft, hard limit. Pure."""
    fields = text.split()
    numbers = [f.rstrip("*") for f in fields[1:4]]
    if len(numbers) < 3 or not all(n.isdecimal() for n in numbers):
        return None
    return _left(*map(int, numbers))


def _left(used: int, soft: int, hard: int) -> int | None:
    limit = hard or soft
    return max(0, limit - used) * 1024 if limit else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
