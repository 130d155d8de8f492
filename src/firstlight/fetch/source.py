"""Where models come from: the protocol that sources implement, and the registry that finds them (entry points `firstlight.sources`)."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from firstlight.core.errors import FirstlightError, InputError
from firstlight.fetch.wire import Wire

GROUP = "firstlight.sources"
BROKEN_HINT = "upgrade or uninstall the package that registers it"


class RemoteFile(Struct, frozen=True, kw_only=True):
    """One file of a model as its source describes it.

    name: relative, with `/`. locator: what the source needs to open it (an address, a path). etag: changes when the bytes change.
    sha256, git_sha1: what the bytes must hash to, where the source knows.
    """

    name: str
    locator: str
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    etag: str | None = None

    @property
    def identity(self) -> str:
        """The same identity means the same bytes: parts are only ever continued under it. Without the query: signatures live there."""
        return self.sha256 or self.git_sha1 or f"{self.locator.partition('?')[0]} {self.etag} {self.size}"


class Archive(Struct, frozen=True, kw_only=True):
    """The listed file is a zip (a wheel) out of which `member` is taken; sha256 and size are the member's when pinned."""

    member: str
    sha256: str | None = None
    size: int | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """A model at one revision. `gated`: `auto` or `manual` where the hub asks for consent. local: the files lie there already."""

    ref: str
    source: str
    files: Sequence[RemoteFile]
    name: str | None = None
    revision: str | None = None
    asked_revision: str | None = None
    license: str | None = None
    gated: str | None = None
    variant: str | None = None
    archive: Archive | None = None
    local: str | None = None


class Body(Protocol):
    """Bytes of one file from `start` on. ranged: it answers for a range, others may be asked for at the same time.

    total: the file's size as this answer says it; etag: as this answer says it.
    """

    start: int
    ranged: bool
    total: int | None
    etag: str | None

    def readinto(self, view: memoryview) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Retry(Exception):
    """This attempt failed, a later one may not. after: seconds the server asked for; slower: it asked for fewer requests."""

    def __init__(self, reason: str, *, after: float | None = None, slower: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.after, self.slower = reason, after, slower


class Changed(Exception):
    """The source no longer has the bytes that it listed."""


@runtime_checkable
class FetchSource(Protocol):
    """One kind of place. Methods block; they run in threads.

    accepts: how surely `ref` is this source's, 0 for never; the highest wins.
    list: one revision, resolved once, so that two are never mixed. Raises FirstlightError, or Retry.
    open: bytes from `start` to `end` (exclusive; None: the end); may start at 0 where the server knows no ranges. Raises Retry,
    Changed, FirstlightError.
    cache: where the files belong when the user names no destination (None: firstlight's own).
    """

    name: str

    def accepts(self, ref: str) -> int: ...
    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing: ...
    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> Body: ...
    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None: ...


@cache
def load_sources() -> tuple[FetchSource, ...]:
    """Every installed source; the built-in ones come through the same door. None is skipped silently: FirstlightError `source-broken`."""
    return tuple(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda p: p.name))


def _load(point: EntryPoint) -> FetchSource:
    evidence = f"{GROUP}: {point.name} = {point.value}"
    try:
        source: object = point.load()
    except Exception as e:
        words = (evidence, f"{type(e).__name__}: {e}")
        raise FirstlightError("source-broken", f"the source {point.name} cannot be loaded", evidence=words, hint=BROKEN_HINT) from e
    if not isinstance(source, FetchSource):
        message = f"the source {point.name} lacks parts of FetchSource"
        raise FirstlightError("source-broken", message, evidence=(evidence,), hint=BROKEN_HINT)
    return source


def find_source(ref: str) -> FetchSource:
    """The source that reads `ref`. Raises InputError: model-not-found."""
    best = max(load_sources(), key=lambda s: s.accepts(ref), default=None)
    if best is not None and best.accepts(ref) > 0:
        return best
    raise InputError(
        "model-not-found",
        f"{ref!r} is neither a folder, a file nor a model that firstlight can fetch",
        hint="a folder, a .gguf file, org/name[@revision], org/name:Q4_K_M, https://…, pypi:NAME==VERSION, or the preset demo",
    )


def safe_name(name: str) -> str:
    """A file name that stays inside its folder. Raises FirstlightError: unsafe-file-name (a hostile or broken source)."""
    parts = name.split("/")
    if any(p in ("", ".", "..") for p in parts) or parts[0] == ".firstlight" or not _is_plain(name):
        raise FirstlightError(
            "unsafe-file-name", "the source lists a file name that leaves the folder or acts on a terminal", evidence=(ascii(name),)
        )
    return name


def _is_plain(name: str) -> bool:
    """No control characters (they would act on the terminal), no backslash, nothing that a file system cannot carry."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return not any(c == "\\" or c < " " or "\x7f" <= c <= "\x9f" for c in name)


def checked(listing: Listing) -> Listing:
    """A listing is somebody else's word: names that stay inside, each once, sizes that are sizes, a revision that is a name.

    Raises FirstlightError: unsafe-file-name, listing-senseless.
    """
    seen: dict[str, RemoteFile] = {}
    for file in listing.files:
        if seen.setdefault(safe_name(file.name), file).identity != file.identity:
            raise _senseless(listing, f"{file.name!a} twice, with other content")
        if file.size is not None and (not isinstance(file.size, int) or file.size < 0):
            raise _senseless(listing, f"{file.name!a}: {file.size!r} bytes")
    if listing.revision is not None and not re.fullmatch(r"[\w+][\w.+!-]*", str(listing.revision)):
        raise _senseless(listing, f"revision {listing.revision!a}")
    license = listing.license and "".join(c if c.isprintable() else "?" for c in listing.license)
    return msgspec.structs.replace(listing, files=list(seen.values()), license=license)


def _senseless(listing: Listing, words: str) -> FirstlightError:
    return FirstlightError("listing-senseless", f"what the source says about {listing.ref} makes no sense", evidence=(words[:200],))
