"""A folder or a .gguf that this machine sees, its own disk or a share: no-op without a destination, a verified copy with one."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from firstlight.core.errors import HostError, InputError
from firstlight.fetch.manifest import read_manifest
from firstlight.fetch.source import Changed, Listing, RemoteFile


class FileBody:
    """A file's bytes in ranges; every read is `pread`, so that many connections share one file."""

    def __init__(self, path: Path, start: int) -> None:
        self.start = self._at = start
        self.ranged = True
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        state = os.fstat(self._fd)
        self.total: int | None = state.st_size
        self.etag: str | None = f"{state.st_mtime_ns}"

    def readinto(self, view: memoryview) -> int:
        n = os.preadv(self._fd, [view], self._at)
        self._at += n
        return n

    def close(self) -> None:
        os.close(self._fd)

    def abort(self) -> None:
        """Reads of files end by themselves."""


class FolderSource:
    """A path, `~/path` or `file://…`."""

    name = "folder"

    def accepts(self, ref: str) -> int:
        return 80 if ref.startswith(("file://", "/", "./", "../", "~")) or os.path.exists(as_path(ref)) else 0

    def list(self, ref: str, wire: object, env: Mapping[str, str]) -> Listing:
        root = as_path(ref).absolute()
        if not os.path.exists(root):
            raise InputError("model-not-found", f"{ref} does not exist")
        paths = [root] if root.is_file() else _files(root)
        base = root.parent if root.is_file() else root
        manifest = read_manifest(base)
        known = {f.name: f for f in manifest.files} if manifest else {}
        files = []
        for path in paths:
            name, state = path.relative_to(base).as_posix(), path.stat()
            if name.startswith(".firstlight/"):
                continue
            entry = known.get(name)
            sha256 = entry.sha256 if entry and entry.size == state.st_size else None
            tag = f"{state.st_mtime_ns}"
            files.append(RemoteFile(name=name, locator=str(path), size=state.st_size, sha256=sha256, etag=tag))
        name = root.stem if root.is_file() else root.name
        license = manifest.license if manifest else None
        return Listing(ref=ref, source=self.name, files=files, name=name, license=license, local=str(root))

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return None

    def open(self, file: RemoteFile, start: int, end: int | None, wire: object, env: Mapping[str, str]) -> FileBody:
        try:
            body = FileBody(Path(file.locator), start)
        except FileNotFoundError:
            raise Changed(f"{file.name} is gone") from None
        except OSError as e:
            raise unreadable(e, file.locator) from None
        if body.etag != file.etag:
            body.close()
            raise Changed(f"{file.name} was written since it was listed")
        return body


def _files(root: Path) -> list[Path]:
    """Every file below, links to folders not followed. Raises HostError `permission-denied`: half a model is none."""

    def unread(error: OSError) -> None:
        name = os.path.basename(error.filename)
        if error.filename == str(root) or not (name.startswith(".") or name == "lost+found"):
            raise unreadable(error, error.filename) from None

    found = [Path(folder, n) for folder, _, names in os.walk(root, onerror=unread) for n in names]
    return sorted(p for p in found if os.path.isfile(p))


def unreadable(error: OSError, path: str) -> HostError:
    code = "permission-denied" if isinstance(error, PermissionError) else "disk-failed"
    return HostError(code, "the model's own folder cannot be read", evidence=(path, error.strerror or str(error)))


def as_path(ref: str) -> Path:
    return Path(unquote(urlsplit(ref).path)) if ref.startswith("file://") else Path(ref).expanduser()


source = FolderSource()
