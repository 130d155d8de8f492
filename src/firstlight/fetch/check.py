"""Hashes of files on the disk."""

import hashlib
import threading
from pathlib import Path

from firstlight.core.fetch import ManifestFile
from firstlight.fetch.source import RemoteFile

BLOCK = 4 << 20


def sha256_of(path: Path, stop: threading.Event | None = None) -> str:
    """Hex digest; ends early (with a digest that fits nothing) when `stop` is set. Raises OSError."""
    h = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while (n := file.readinto(buffer)) and not (stop and stop.is_set()):
            h.update(buffer[:n])
    return h.hexdigest()


def git_sha1_of(path: Path) -> str:
    """The git blob id of a (small) file. Raises OSError."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_right(file: RemoteFile, path: Path, sha256: str, known: ManifestFile | None) -> bool:
    """Against the source's digest, else against what was verified when it came; True where nobody knows better."""
    if file.sha256:
        return sha256 == file.sha256
    if file.git_sha1:
        return git_sha1_of(path) == file.git_sha1
    return known is None or sha256 == known.sha256
