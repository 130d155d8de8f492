"""What a fetch will do, does, and did. Sizes in bytes, times in seconds, rates in bytes per second; unknown is None."""

from msgspec import Struct

from firstlight.core.figures import Figure
from firstlight.core.findings import Finding


class LeftOut(Struct, frozen=True, kw_only=True):
    """A file of the source that no engine needs for this model."""

    name: str
    size: int | None = None
    because: str


class FileProgress(Struct, frozen=True, kw_only=True):
    """state: waiting | fetching | verifying | done | failed."""

    name: str
    bytes_done: int
    bytes_total: int | None
    state: str


class FetchProgress(Struct, frozen=True, kw_only=True):
    """One bar for the whole. phase: listing | waiting | fetching | verifying | done.

    bytes_done includes what earlier attempts left on the disk. bytes_per_second: of the last seconds; eta_seconds: at that rate.
    note: why nothing moves (another fetch holds the lock, the server asked for a pause).
    """

    phase: str
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_per_second: float | None = None
    eta_seconds: float | None = None
    connections: int = 0
    files_done: int = 0
    files_total: int = 0
    files: list[FileProgress] = []
    note: str | None = None


class Space(Struct, frozen=True, kw_only=True):
    """Room at the folder where the bytes will really lie. available: what this user may still write (reserved blocks and quota taken off).

    path: the nearest folder that exists, symlinks resolved. persistent: False where a restart loses the files (tmpfs, a container's layer).
    """

    path: str
    filesystem: str | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None
    quota_bytes: int | None = None
    persistent: bool | None = None


class FetchEstimate(Struct, frozen=True, kw_only=True):
    """What `fetch` would do, from metadata alone. bytes_present: already on the disk, whole files and parts.

    gated: False, `auto` or `manual` as the hub says it. expected_seconds: known when a rate was measured before.
    """

    ref: str
    source: str
    destination: str
    revision: str | None = None
    name: str | None = None
    bytes_total: int | None = None
    bytes_present: int = 0
    bytes_to_fetch: int | None = None
    files: dict[str, int | None] = {}
    left_out: list[LeftOut] = []
    license: str | None = None
    gated: str | None = None
    space: Space | None = None
    expected_seconds: Figure = Figure()
    findings: list[Finding] = []


class Fetched(Struct, frozen=True, kw_only=True):
    """A model on this machine's disk. path: the folder, or the one .gguf. bytes_fetched: moved by this call (0: all was here)."""

    ref: str
    source: str
    path: str
    revision: str | None = None
    name: str | None = None
    bytes_total: int | None = None
    bytes_fetched: int = 0
    seconds: float = 0.0
    files: dict[str, int] = {}
    left_out: list[LeftOut] = []
    license: str | None = None
    manifest: str | None = None
    findings: list[Finding] = []


class ManifestFile(Struct, frozen=True, kw_only=True):
    """size, modified (nanoseconds) and inode are the file's own when it was verified: the same three mean that it was not written since."""

    name: str
    size: int
    sha256: str
    etag: str | None = None
    modified: int | None = None
    inode: int | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """What was fetched and verified, beside the files. time: Unix seconds. name: the model's, without its revision."""

    ref: str
    source: str
    name: str | None = None
    revision: str | None = None
    time: float
    license: str | None = None
    files: list[ManifestFile] = []
