"""What was verified, beside the files: makes the next fetch and `inspect --verify` cheap."""

import contextlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

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
    _append(folder / WORK / LANDED, msgspec.json.encode(file))


def _append(path: Path, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, b"\n" + line + b"\n")  # also ends a line that a full disk tore
    finally:
        os.close(fd)


class Begun(Struct, frozen=True, kw_only=True):
    """A line of `landed.jsonl`: what follows belongs to this model at this revision."""

    model: str
    revision: str | None = None


def note_begun(folder: Path, begun: Begun) -> None:
    """Raises OSError."""
    _append(folder / WORK / LANDED, msgspec.json.encode(begun))


def landed_files(folder: Path) -> list[tuple[Begun | None, ManifestFile]]:
    """What has landed since the last manifest, with what it belongs to. A torn line is ignored."""
    try:
        lines = (folder / WORK / LANDED).read_bytes().splitlines()
    except OSError:
        return []
    landed: list[tuple[Begun | None, ManifestFile]] = []
    begun: Begun | None = None
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            if line.startswith(b'{"model":'):
                begun = msgspec.json.decode(line, type=Begun)
            else:
                landed.append((begun, msgspec.json.decode(line, type=ManifestFile)))
    return landed


def earlier_files(folder: Path, now: Begun) -> list[ManifestFile]:
    """Files that were fetched here for another revision of the same model, and were not touched since."""
    manifest = read_manifest(folder)
    found = [(Begun(model=f"{manifest.source} {manifest.name}", revision=manifest.revision), f) for f in manifest.files] if manifest else []
    theirs = [f for begun, f in (*found, *landed_files(folder)) if begun and begun.model == now.model and begun != now]
    return [f for f in theirs if untouched(f, folder / f.name)]


def known_files(folder: Path, name: str = MANIFEST) -> dict[str, ManifestFile]:
    """Everything that was ever verified here: the manifest, and after it what landed since. A torn line is ignored."""
    manifest = read_manifest(folder, name)
    known = {f.name: f for f in manifest.files} if manifest else {}
    return known | {f.name: f for _, f in landed_files(folder)}
