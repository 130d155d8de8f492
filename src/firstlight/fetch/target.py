"""Where files come to lie: a plain folder, or the Hugging Face cache in its own layout (blobs, snapshots, refs)."""

import os
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from firstlight.core.hub import repo_folder
from firstlight.core.ids import digest, slug
from firstlight.fetch.manifest import LANDED, WORK
from firstlight.fetch.source import Listing, RemoteFile, safe_name


class Target(Protocol):
    """base: holds `.firstlight` (parts, lock, manifest). result: what the user gets: a folder of the model's files.

    path: where a file lies; landing: where a fetched one goes; settle: everything is there; seal: the manifest is, too.
    """

    base: Path
    result: Path
    manifest_name: str

    def path(self, file: RemoteFile) -> Path: ...
    def landing(self, file: RemoteFile) -> Path: ...
    def part(self, file: RemoteFile) -> Path: ...
    def show(self, file: RemoteFile) -> None: ...
    def settle(self) -> None: ...
    def seal(self) -> None: ...


class PlainTarget:
    """Files under their own names in one folder; parts in `.firstlight/parts`.

    waits: another revision (or model) is complete here. Then what lands stays in `.firstlight/next` until all is there, so that nobody
    reads a mix of the two.
    """

    def __init__(self, folder: Path) -> None:
        self.base = self.result = folder
        self.manifest_name = "manifest.json"
        self.waits = False
        self._next = folder / WORK / "next"

    def path(self, file: RemoteFile) -> Path:
        name = safe_name(file.name)
        return self._next / name if (self._next / name).exists() else self.base / name

    def landing(self, file: RemoteFile) -> Path:
        return (self._next if self.waits else self.base) / safe_name(file.name)

    def part(self, file: RemoteFile) -> Path:
        name = safe_name(file.name)
        return self.base / WORK / "parts" / f"{slug(name)[-60:]}-{digest(name.encode())}.part"

    def show(self, file: RemoteFile) -> None:
        """It is where it is looked for."""

    def settle(self) -> None:
        for path in sorted(p for p in self._next.rglob("*") if p.is_file()):
            target = self.base / path.relative_to(self._next)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)

    def set_aside(self, names: Sequence[str], revision: str | None) -> Path:
        """Files of an earlier revision that the new one does not have: out of the engine's sight, and not deleted."""
        folder = self.base / WORK / "earlier" / slug(revision or "unknown")[:12]
        for name in names:
            target = folder / safe_name(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.base / name).replace(target)
        return folder

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
        """By the entity tag, which for a hub's file is its digest; what is no file name is digested."""
        tag = file.etag or ""
        return self.base / "blobs" / (tag if re.fullmatch(r"\w[\w.-]*", tag, re.ASCII) else digest(file.identity, length=40))

    landing = path

    def part(self, file: RemoteFile) -> Path:
        return self.base / WORK / "parts" / f"{self.path(file).name}.part"

    def settle(self) -> None:
        """Each revision has a folder of its own."""

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
            fresh = self.base / WORK / "ref.new"  # a full disk or a kill must not leave an empty ref to the earlier revision's readers
            fresh.write_text(self._revision)
            fresh.replace(ref)
        _tidy(self.base)


def _tidy(base: Path) -> None:
    """The model is complete: parts of it or of an abandoned revision, and the progress for those who wait, are of no more use."""
    for folder in ("parts", "links", "next"):
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
