"""What a fetch will cost: bytes, room, time, license and gate."""

import threading
from collections.abc import Mapping
from pathlib import Path

from firstlight.core.fetch import FetchEstimate
from firstlight.core.figures import Figure
from firstlight.core.findings import Finding, Severity
from firstlight.fetch.archive import present
from firstlight.fetch.meter import expected_seconds, place_key
from firstlight.fetch.options import Options
from firstlight.fetch.prepare import Work, bytes_in_part, cache_root, prepare
from firstlight.fetch.source import RemoteFile
from firstlight.fetch.space import read_space, space_findings
from firstlight.fetch.wire import Wire


def measure(ref: str, options: Options, env: Mapping[str, str], stop: threading.Event) -> FetchEstimate:
    """Blocks. Raises FirstlightError."""
    wire = Wire(env)
    try:
        work = prepare(ref, options, wire, env, stop=stop)
    finally:
        wire.close()
    return _estimate(work, options, env)


def _estimate(work: Work, options: Options, env: Mapping[str, str]) -> FetchEstimate:
    listing = work.listing
    missing = _missing(work, options)
    total = _sum(work.kept)
    parts = sum(bytes_in_part(work.target, f) for f in missing)
    left = None if any(f.size is None for f in missing) else sum(f.size or 0 for f in missing) - parts
    space = read_space(work.target.base)
    unpacked = (listing.archive.size or 0) if listing.archive and missing else 0
    cache = Path(options.cache) if options.cache else cache_root(env)
    key = place_key(work.source.name, work.kept[-1].locator)
    return FetchEstimate(
        ref=listing.ref,
        source=listing.source,
        destination=str(work.target.result) if missing or not listing.local else listing.local,
        revision=listing.revision,
        name=listing.name,
        bytes_total=total,
        bytes_present=(total or 0) - left if left is not None else 0,
        bytes_to_fetch=left,
        files={f.name: f.size for f in work.kept},
        left_out=work.left_out,
        license=listing.license,
        gated=listing.gated,
        space=space,
        expected_seconds=expected_seconds(cache, key, left) if left else Figure(because="nothing is to be fetched"),
        findings=[*work.findings, *space_findings(space, (left or 0) + unpacked), *_unverified(work, missing)],
    )


def _missing(work: Work, options: Options) -> list[RemoteFile]:
    if work.listing.local and options.destination is None:
        return []
    if work.listing.archive:
        return [] if present(work) else list(work.kept)
    return work.missing()


def _sum(files: list[RemoteFile]) -> int | None:
    return None if any(f.size is None for f in files) else sum(f.size or 0 for f in files)


def _unverified(work: Work, missing: list[RemoteFile]) -> list[Finding]:
    """Files that somebody else put into the cache are taken by name and size; that is said."""
    if work.listing.local or work.listing.archive:
        return []
    manifest = work.manifest
    known = {f.name for f in manifest.files} if manifest else set()
    strange = [f.name for f in work.kept if f not in missing and f.name not in known]
    if not strange:
        return []
    message = f"{len(strange)} files were in the cache already and were never hashed by firstlight"
    return [
        Finding(
            code="not-verified",
            severity=Severity.NOTE,
            message=message,
            evidence=strange[:4],
            hint=f"firstlight fetch {work.listing.ref} --verify",
        )
    ]
