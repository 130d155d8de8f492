"""What a fetch will cost: bytes, room, time, license and gate."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from firstlight.core.errors import FirstlightError
from firstlight.core.fetch import FetchEstimate
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.units import format_bytes
from firstlight.fetch.archive import present
from firstlight.fetch.meter import expected_seconds, place_key
from firstlight.fetch.options import Options
from firstlight.fetch.prepare import Say, Work, bytes_in_part, cache_root, prepare
from firstlight.fetch.room import room_findings
from firstlight.fetch.source import Changed, RemoteFile, Retry
from firstlight.fetch.space import read_space
from firstlight.fetch.transfer import FIRST_CONNECTIONS
from firstlight.fetch.wire import Wire

WORTH_A_TRY = 10**9
TRY_SECONDS, TRY_BYTES = 1.0, 64 << 20


def measure(ref: str, options: Options, env: Mapping[str, str], stop: threading.Event, say: Say) -> FetchEstimate:
    """Blocks; say: why it waits. Raises FirstlightError."""
    wire = Wire(env)
    try:
        work = prepare(ref, options, wire, env, stop=stop, say=say)
        return _estimate(work, options, env, wire)
    finally:
        wire.close()


def _estimate(work: Work, options: Options, env: Mapping[str, str], wire: Wire) -> FetchEstimate:
    listing = work.listing
    missing = work.once(_missing(work, options))
    total = _sum(work.once(work.kept))
    parts = sum(bytes_in_part(work.target, f) for f in missing)
    left = None if any(f.size is None for f in missing) else sum(f.size or 0 for f in missing) - parts
    space = read_space(work.target.base)
    unpacked = (listing.archive.size or 0) if listing.archive and missing else 0
    cache = Path(options.cache) if options.cache else cache_root(env)
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
        expected_seconds=_expected(work, missing, left, cache, wire, env),
        findings=[*work.findings, *room_findings(space, (left or 0) + unpacked, env, cache, work.target.base), *_unverified(work, missing)],
    )


def _expected(work: Work, missing: list[RemoteFile], left: int | None, cache: Path, wire: Wire, env: Mapping[str, str]) -> Figure:
    """At the rate of earlier fetches from there; a large one from a new place is tried for a second."""
    if not left:
        return Figure(because="nothing is to be fetched")
    largest = max(missing, key=lambda f: f.size or 0)
    known = expected_seconds(cache, place_key(work.source.name, largest.locator), left)
    if known.known or left < WORTH_A_TRY:
        return known
    rate = _try_rate(work, largest, wire, env)
    if rate is None:
        return known
    slow, fast = left / rate, left / rate / FIRST_CONNECTIONS
    because = f"one connection, tried for a second, gave {format_bytes(rate)}/s; up to {FIRST_CONNECTIONS} times that with several"
    return Figure(low=fast, mid=(slow * fast) ** 0.5, high=slow, rung=Rung.MEASURED, because=because)


def _try_rate(work: Work, file: RemoteFile, wire: Wire, env: Mapping[str, str]) -> float | None:
    """Bytes per second of one connection, from its first byte on; None when it does not work now."""
    buffer, total = memoryview(bytearray(1 << 20)), 0
    try:
        body = work.source.open(file, 0, min(file.size or TRY_BYTES, TRY_BYTES), wire, env)
    except (FirstlightError, Retry, Changed):
        return None
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < TRY_SECONDS and (n := body.readinto(buffer)):
            total += n
        return total / max(time.monotonic() - begun, 1e-3) if total else None
    except Retry:
        return None
    finally:
        body.close()


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
    known = work.known
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
