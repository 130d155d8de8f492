"""From a reference to what must be moved: listing, selection, target, what is here already. Shared by `estimate` and `fetch`."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from firstlight.core.errors import FirstlightError, HostError, InputError
from firstlight.core.fetch import LeftOut, Manifest, ManifestFile
from firstlight.core.findings import Finding, Severity
from firstlight.core.hub import is_offline
from firstlight.fetch.journal import read_ranges
from firstlight.fetch.limit import wait_seconds
from firstlight.fetch.manifest import Begun, earlier_files, known_files, read_manifest
from firstlight.fetch.offline import offline_listing, require_whole
from firstlight.fetch.options import Options
from firstlight.fetch.select import Selection, order, select
from firstlight.fetch.source import FetchSource, Listing, RemoteFile, Retry, checked, find_source
from firstlight.fetch.sources.https import place
from firstlight.fetch.target import CacheTarget, PlainTarget, Target, is_here
from firstlight.fetch.wire import Wire

T = TypeVar("T")
LISTING_PATIENCE, WITH_A_COPY = 30.0, 10.0
Say = Callable[[str], None]


@dataclass
class Work:
    """Everything that is known before the first byte moves. kept: in the order in which they are fetched."""

    source: FetchSource
    listing: Listing
    kept: list[RemoteFile]
    left_out: list[LeftOut]
    target: Target
    findings: list[Finding] = field(default_factory=list)

    @property
    def manifest(self) -> Manifest | None:
        return read_manifest(self.target.base, self.target.manifest_name)

    @property
    def known(self) -> dict[str, ManifestFile]:
        """What was verified here before."""
        return known_files(self.target.base, self.target.manifest_name)

    def once(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Each place on the disk once: in the cache, files of one content share their blob."""
        return list({self.target.path(f): f for f in reversed(files)}.values())[::-1]

    def missing(self) -> list[RemoteFile]:
        """Files that are not here. The cache names its blobs by content; elsewhere what was verified before must be the same."""
        if isinstance(self.target, CacheTarget):
            return [f for f in self.kept if not is_here(self.target, f)]
        known = self.known
        return [f for f in self.kept if not is_here(self.target, f) or not self.is_known(f, known) or self._was_written(f, known)]

    def is_known(self, file: RemoteFile, known: Mapping[str, ManifestFile]) -> bool:
        """What was verified under this name is what the source has now."""
        entry = known.get(file.name)
        return entry is not None and (entry.sha256 == file.sha256 if file.sha256 else entry.etag == file.etag)

    def _was_written(self, file: RemoteFile, known: Mapping[str, ManifestFile]) -> bool:
        """Since it was verified. By size and time: some shares give out other inodes after each mount."""
        entry, state = known[file.name], self.target.path(file).stat()
        return (state.st_size, state.st_mtime_ns) != (entry.size, entry.modified)

    @property
    def begun(self) -> Begun:
        return Begun(model=f"{self.listing.source} {self.listing.name}", revision=self.listing.revision)

    def replaces_another(self) -> bool:
        """Whether the folder holds something else that is complete: another revision, or another model."""
        manifest = self.manifest
        if manifest is None or self.listing.archive:
            return False
        if manifest.revision != self.listing.revision:
            return True
        known = {f.name: f for f in manifest.files}
        return self.listing.revision is None and any(f.name in known and not self.is_known(f, known) for f in self.kept)

    def earlier(self) -> list[ManifestFile]:
        """What an earlier revision left here that this one does not have."""
        names = {f.name for f in self.listing.files}
        return list({f.name: f for f in earlier_files(self.target.base, self.begun) if f.name not in names}.values())


def cache_root(env: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/firstlight`."""
    value = env.get("XDG_CACHE_HOME", "")
    return (Path(value) if os.path.isabs(value) else Path(env.get("HOME") or Path.home()) / ".cache") / "firstlight"


def prepare(ref: str, options: Options, wire: Wire, env: Mapping[str, str], *, stop: threading.Event, say: Say = lambda _: None) -> Work:
    """Raises FirstlightError. Touches no file."""
    source = find_source(ref)
    patience = min(LISTING_PATIENCE, options.settings.patience)
    listing, findings = _listing(source, ref, options, wire, env, partial(patiently, stop=stop, say=say, patience=patience))
    listing = checked(listing)
    kept, left = _select(listing, options)
    return Work(source, listing, order(kept), left, _target(source, listing, options, env), findings)


def _select(listing: Listing, options: Options) -> Selection:
    """Of an archive there is nothing to choose: its one member is named."""
    if listing.archive:
        return list(listing.files), []
    return select(listing.files, variant=listing.variant, include=options.include, exclude=options.exclude)


def patiently(call: Callable[[], T], *, stop: threading.Event, say: Say, patience: float, at_most: float = LISTING_PATIENCE) -> T:
    """Calls until it succeeds; waits between attempts as the server asks. Raises HostError: network-failed."""
    patience, begun, attempt = min(patience, at_most), time.monotonic(), 0
    while True:
        try:
            return call()
        except Retry as e:
            attempt += 1
            wait = wait_seconds(attempt, e.after)
            if time.monotonic() - begun + wait > patience or stop.is_set():
                raise HostError("network-failed", "the source cannot be asked", evidence=(e.reason,), hint="try again later") from None
            if wait >= 1:
                say(f"{e.reason}; trying again in {wait:.0f} s")
            stop.wait(wait)


def bytes_in_part(target: Target, file: RemoteFile) -> int:
    """What an earlier attempt left, by its journal; 0 when that belongs to other bytes."""
    part = target.part(file)
    ranges = read_ranges(part.with_name(f"{part.name}.journal"), {"identity": file.identity, "size": file.size})
    return sum(b - a for a, b in ranges) if part.exists() else 0


def _cached(ref: str, options: Options, env: Mapping[str, str]) -> Listing:
    """What the cache holds, where that is the model (or all that was asked for by name). Raises FirstlightError."""
    listing = offline_listing(ref, env)
    if not options.include:
        require_whole(listing.name, _select(listing, options)[0])
    return listing


def _listing(
    source: FetchSource, ref: str, options: Options, wire: Wire, env: Mapping[str, str], patience: Callable[..., Listing]
) -> tuple[Listing, list[Finding]]:
    """The source's word, or, for a hub that is offline or away, what its cache holds complete."""
    if source.name != "hub":
        return patience(lambda: source.list(ref, wire, env)), []
    if is_offline(env):
        return _cached(ref, options, env), []
    try:
        copy = _cached(ref, options, env)
    except FirstlightError:
        return patience(lambda: source.list(ref, wire, env)), []
    try:
        return patience(lambda: source.list(ref, wire, env), at_most=WITH_A_COPY), []
    except HostError as e:
        if e.code != "network-failed":
            raise
        message = "the hub cannot be reached; the cached copy is used"
        return copy, [Finding(code="hub-unreachable", severity=Severity.WARNING, message=message, evidence=list(e.evidence))]


def _target(source: FetchSource, listing: Listing, options: Options, env: Mapping[str, str]) -> Target:
    if options.destination is not None:
        folder = Path(options.destination).expanduser().absolute()
        if folder.is_file():
            raise InputError("not-a-folder", f"{folder} is a file", hint="--to names a folder")
        if listing.local and _is_inside(folder, Path(listing.local)):
            hint = "leave --to away: they are used where they are; or name another folder"
            raise InputError("target-inside-source", "the files lie there already", evidence=(str(folder), listing.local), hint=hint)
        return PlainTarget(folder)
    cache = source.cache(listing, env)
    if cache is not None:
        return CacheTarget(cache, listing)
    return PlainTarget((Path(options.cache) if options.cache else cache_root(env)) / "models" / place(listing))


def _is_inside(folder: Path, model: Path) -> bool:
    """The model's own folder, or one below it: what is copied there would be part of the model the next time."""
    source = os.path.realpath(model.parent if model.is_file() else model)
    real = os.path.realpath(folder)
    return real == source or (model.is_dir() and real.startswith(source.rstrip("/") + "/"))
