"""What was verified, beside the files: makes the next fetch and `inspect --verify` cheap."""

import contextlib
import os
from pathlib import Path

import msgspec

from firstlight.core.errors import FirstlightError
from firstlight.core.fetch import Manifest, ManifestFile
from firstlight.core.schema import decode, encode

WORK = ".firstlight"
MANIFEST, LANDED = "manifest.json", "landed.jsonl"


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest | None:
    """The manifest in `folder/.firstlight`; None when there is none or it cannot be read."""
    try:
        return decode((folder / WORK / name).read_bytes(), Manifest, origin=str(folder))
    except (OSError, FirstlightError):
        return None


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> Path:
    """Atomic. Raises OSError."""
    path = folder / WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{name}.{os.getpid()}.new")
    fresh.write_bytes(encode(manifest))
    fresh.replace(path)
    return path


def entry(name: str, path: Path, sha256: str, etag: str | None) -> ManifestFile:
    """A file as it is on the disk now. Raises OSError."""
    state = path.stat()
    return ManifestFile(name=name, size=state.st_size, sha256=sha256, etag=etag, modified=state.st_mtime_ns, inode=state.st_ino)


def untouched(known: ManifestFile, path: Path) -> bool:
    """Whether the file is, by size, time and inode, the one that was verified. Says nothing about bit rot."""
    try:
        state = path.stat()
    except OSError:
        return False
    return (state.st_size, state.st_mtime_ns, state.st_ino) == (known.size, known.modified, known.inode)


def note_landed(folder: Path, file: ManifestFile) -> None:
    """One line more about what is whole and checked: what a killed fetch leaves to the next one. Raises OSError."""
    path = folder / WORK / LANDED
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, msgspec.json.encode(file) + b"\n")
    finally:
        os.close(fd)


def known_files(folder: Path, name: str = MANIFEST) -> dict[str, ManifestFile]:
    """Everything that was ever verified here: the manifest, and after it what landed since. A torn line is ignored."""
    manifest = read_manifest(folder, name)
    known = {f.name: f for f in manifest.files} if manifest else {}
    try:
        lines = (folder / WORK / LANDED).read_bytes().splitlines()
    except OSError:
        lines = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            file = msgspec.json.decode(line, type=ManifestFile)
            known[file.name] = file
    return known
