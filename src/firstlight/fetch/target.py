"""Where files come to lie: a plain folder, or the Hugging Face cache in its own layout (blobs, snapshots, refs)."""

import os
import shutil
import threading
from pathlib import Path
from typing import Protocol

from firstlight.core.hub import repo_folder
from firstlight.core.ids import digest, slug
from firstlight.fetch.manifest import LANDED, WORK
from firstlight.fetch.source import Listing, RemoteFile, safe_name


class Target(Protocol):
    """base: holds `.firstlight` (parts, lock, manifest). result: what the user gets: a folder of the model's files."""

    base: Path
    result: Path
    manifest_name: str

    def path(self, file: RemoteFile) -> Path: ...
    def part(self, file: RemoteFile) -> Path: ...
    def show(self, file: RemoteFile) -> None: ...
    def seal(self) -> None: ...


class PlainTarget:
    """Files under their own names in one folder; parts in `.firstlight/parts`."""

    def __init__(self, folder: Path) -> None:
        self.base = self.result = folder
        self.manifest_name = "manifest.json"

    def path(self, file: RemoteFile) -> Path:
        return self.base / safe_name(file.name)

    def part(self, file: RemoteFile) -> Path:
        name = safe_name(file.name)
        return self.base / WORK / "parts" / f"{slug(name)[-60:]}-{digest(name.encode())}.part"

    def show(self, file: RemoteFile) -> None:
        """It is where it is looked for."""

    def seal(self) -> None:
        """Nothing names a revision here but the manifest."""
        _tidy(self.base)


class CacheTarget:
    """`models--org--name/blobs/ETAG`, a relative link in `snapshots/COMMIT`, and `refs/REVISION` once everything is there.

    huggingface_hub, vLLM and every other reader of the cache find the model; the ref comes last, so that none finds half of it.
    """

    def __init__(self, cache: Path, listing: Listing) -> None:
        assert listing.name is not None
        assert listing.revision is not None
        self.base = cache / repo_folder(listing.name)
        self.result = self.base / "snapshots" / listing.revision
        self.manifest_name = f"{listing.revision}.json"
        self._revision, self._asked = listing.revision, listing.asked_revision

    def path(self, file: RemoteFile) -> Path:
        safe_name(file.name)
        return self.base / "blobs" / safe_name(file.etag or digest(file.identity))

    def part(self, file: RemoteFile) -> Path:
        return self.base / WORK / "parts" / f"{self.path(file).name}.part"

    def show(self, file: RemoteFile) -> None:
        link, blob = self.result / file.name, self.path(file)
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and link.resolve() == blob.resolve():
            return
        fresh = self.base / WORK / "links" / f"{threading.get_ident()}"
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(os.path.relpath(blob, link.parent))  # relative to where it is moved to
        except OSError:  # no symlinks here (some shares): the cache's layout then holds the file itself
            os.link(blob, fresh)
        fresh.replace(link)

    def seal(self) -> None:
        if self._asked and self._asked != self._revision:
            ref = self.base / "refs" / safe_name(self._asked)
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self._revision)
        _tidy(self.base)


def _tidy(base: Path) -> None:
    """The model is complete: parts of it or of an abandoned revision, and the progress for those who wait, are of no more use."""
    for folder in ("parts", "links"):
        shutil.rmtree(base / WORK / folder, ignore_errors=True)
    for name in ("progress.json", LANDED):
        (base / WORK / name).unlink(missing_ok=True)


def is_here(target: Target, file: RemoteFile) -> bool:
    """By name and size; by content only when asked to verify."""
    path = target.path(file)
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return file.size is None or size == file.size
