"""A run as something that can be posted: its files, with secrets taken out."""

import io
import re
import tarfile
from pathlib import Path

from firstlight.app.store import RunFolder

LARGEST = 32 << 20
_LEFT_OUT = (".sock", ".pyz", ".lock", ".tmp")
_SECRETS = (
    re.compile(rb"\bhf_[A-Za-z0-9]{20,}"),
    re.compile(rb"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(rb"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(rb"(?i)((?:api[_-]?key|token|password|secret)[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]{6,}"),
    re.compile(rb"(?i)(://[^/\s:@]+:)[^@\s/]+(?=@)"),
)


def mask(data: bytes) -> bytes:
    """`data` with everything that looks like a secret replaced by `(removed)`."""
    for pattern in _SECRETS:
        data = pattern.sub(lambda m: (m[1] if m.re.groups else b"") + b"(removed)", data)
    return data


def write_bundle(folder: RunFolder, target: Path) -> list[str]:
    """Packs the run into `target` (.tar.gz) and returns the names in it. Large logs keep their first and last halves."""
    names: list[str] = []
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(p for p in folder.path.rglob("*") if p.is_file() and not p.is_symlink()):
            name = str(path.relative_to(folder.path))
            if path.suffix in _LEFT_OUT or path.name.startswith("."):
                continue
            data = mask(_read(path))
            member = tarfile.TarInfo(f"{folder.path.name}/{name}")
            member.size, member.mtime = len(data), int(path.stat().st_mtime)
            archive.addfile(member, io.BytesIO(data))
            names.append(name)
    return names


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    with open(path, "rb") as f:
        if size <= LARGEST:
            return f.read()
        head = f.read(LARGEST // 2)
        f.seek(-(LARGEST // 2), 2)
        return head + b"\n[... %d bytes left out ...]\n" % (size - LARGEST) + f.read()
