"""What was verified, beside the files: makes the next fetch and `inspect --verify` cheap."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from firstlight.core.errors import FirstlightError
from firstlight.core.fetch import Manifest, ManifestFile
from firstlight.core.schema import decode, encode

WORK = ".firstlight"
MANIFEST = "manifest.json"


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


def merged(
    old: Manifest | None, *, ref: str, source: str, revision: str | None, license: str | None, files: Iterable[ManifestFile]
) -> Manifest:
    """The old entries of the same revision with the new ones over them."""
    by_name = {f.name: f for f in old.files} if old and (old.revision, old.source) == (revision, source) else {}
    by_name.update({f.name: f for f in files})
    return Manifest(
        ref=ref, source=source, revision=revision, time=time.time(), license=license, files=[by_name[n] for n in sorted(by_name)]
    )
