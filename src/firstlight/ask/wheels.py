"""The Python files of an engine's released wheel, by ranged reads: a few megabytes of several hundred."""

import os
import re
import shutil
import ssl
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from io import RawIOBase
from pathlib import Path

import httpx2
import msgspec

from firstlight.ask.indexes import PIP, Distribution, resolve
from firstlight.core.errors import FirstlightError
from firstlight.core.ports import Host

CONTENTS = "wheel.json"
# What reading a zip that is cut, damaged, or none at all raises; a wheel without metadata, too.
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, httpx2.HTTPError)
_GAP = 64 << 10
_TAIL = 512 << 10
Range = tuple[int, int]


class WheelContents(msgspec.Struct, frozen=True, kw_only=True):
    """`wheel.json` beside the unpacked files. extensions: the compiled modules that the wheel ships, as their file names;
    built: the day its metadata was written."""

    name: str
    version: str
    sha256: str | None
    built: str
    extensions: list[str]
    requires: list[str]
    files: int
    bytes_read: int


def engine_source(host: Host, python: str, requirement: str, cache: str, *, on_step: Callable[[str], None] = lambda t: None) -> str:
    """A folder that holds the `*.py` of `requirement` (`vllm==0.16.0`) and `wheel.json`; made once, whole or not at all.

    Raises FirstlightError `release-not-found`, `wheel-not-read`.
    """
    pinned = re.fullmatch(r"([\w.-]+)==([\w.+!-]+)", requirement)
    if pinned and Path(cache, f"{pinned[1]}-{pinned[2]}", CONTENTS).is_file():
        return str(Path(cache, f"{pinned[1]}-{pinned[2]}"))
    on_step(f"asking the package index about {requirement}")
    found = resolve(host, python, requirement)
    folder = Path(cache, f"{found.name}-{found.version}")
    if not (folder / CONTENTS).is_file():
        on_step(f"reading the Python files of {found.name} {found.version}")
        _read(host, python, found, folder)
    return str(folder)


def _read(host: Host, python: str, found: Distribution, folder: Path) -> None:
    try:
        with _open(host, python, found) as file:
            _unpack(file, found, folder)
    except _DAMAGED as e:
        raise FirstlightError(
            "wheel-not-read",
            f"the wheel of {found.name} {found.version} could not be unpacked",
            evidence=(f"{type(e).__name__}: {e}", found.url),
            hint="it is cut, damaged or no wheel: try again, or get it with `pip download --no-deps` and look",
        ) from None


def read_contents(folder: str) -> WheelContents:
    return msgspec.json.decode(Path(folder, CONTENTS).read_bytes(), type=WheelContents)


class Ranges(RawIOBase):
    """A remote or local file that is read in ranges and remembers what it has read; `fetch` gets (start, end) of it."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes], release: Callable[[], None]) -> None:
        self.size, self.bytes_read, self._release = size, 0, release
        self._fetch, self._at, self._have = fetch, 0, dict[int, bytes]()

    def prefetch(self, ranges: Sequence[Range]) -> None:
        for start, end in merged(ranges):
            self._have[start] = self._get(start, min(end, self.size))

    def _get(self, start: int, end: int) -> bytes:
        self.bytes_read += end - start
        return self._fetch(start, end)

    def close(self) -> None:
        if not self.closed:
            self._release()
        super().close()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        end = self.size if length is None or length < 0 else min(self._at + length, self.size)
        for start, data in self._have.items():
            if start <= self._at and end <= start + len(data):
                piece = data[self._at - start : end - start]
                break
        else:
            piece = self._get(self._at, end) if end > self._at else b""
        self._at = end
        return piece


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in order, joined where the gap between two is cheaper to read than to ask for anew."""
    out: list[Range] = []
    for start, end in sorted(ranges):
        if out and start - out[-1][1] <= _GAP:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def _open(host: Host, python: str, found: Distribution) -> Ranges:
    """The wheel in ranges; where its server has none, or wants more than a plain request, pip downloads it whole."""
    if found.url.startswith("file:"):
        return _local(Path(str(httpx2.URL(found.url).path)))
    try:
        return _remote(found.url)
    except (httpx2.HTTPError, ssl.SSLError):
        return _downloaded(host, python, found)


def _remote(url: str) -> Ranges:
    client = httpx2.Client(follow_redirects=True, timeout=60, verify=_context())
    try:
        size = _size(client, url)
    except BaseException:
        client.close()
        raise

    def fetch(start: int, end: int) -> bytes:
        answer = client.get(url, headers={"Range": f"bytes={start}-{end - 1}"})
        answer.raise_for_status()
        if answer.status_code != 206 or len(answer.content) != end - start:
            raise httpx2.RequestError("the server does not answer in ranges", request=answer.request)
        return answer.content

    return Ranges(size, fetch, client.close)


def _size(client: httpx2.Client, url: str) -> int:
    with client.stream("GET", url, headers={"Range": "bytes=0-0"}) as answer:
        match = re.fullmatch(r"bytes 0-0/(\d+)", answer.headers.get("content-range", ""))
        if answer.status_code != 206 or match is None:
            raise httpx2.RequestError("the server does not answer in ranges", request=answer.request)
    return int(match[1])


def _context() -> ssl.SSLContext:
    """The certificates that pip is told to trust, else the system's."""
    file = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=file if file and os.path.isfile(file) else None)


def _local(path: Path) -> Ranges:
    data = path.open("rb")
    return Ranges(path.stat().st_size, lambda start, end: os.pread(data.fileno(), end - start, start), data.close)


def _downloaded(host: Host, python: str, found: Distribution) -> Ranges:
    with tempfile.TemporaryDirectory() as folder:
        argv = [python, *PIP, "download", "--quiet", "--no-deps", "--dest", folder, f"{found.name}=={found.version}"]
        done = host.run(argv, timeout=3600)
        wheels = list(Path(folder).glob("*.whl"))
        if not done.ok or not wheels:
            raise FirstlightError(
                "wheel-not-read",
                f"the wheel of {found.name} {found.version} could not be read",
                evidence=tuple(done.stderr.decode("utf-8", "replace").splitlines()[-3:]),
                hint="try `pip download --no-deps` for it: the index must answer for this machine",
            )
        return _local(wheels[0])


def _unpack(file: Ranges, found: Distribution, folder: Path) -> None:
    """Writes into a folder beside the final one and renames it: a reader sees all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        contents = _extract(file, found, temporary)
        (temporary / CONTENTS).write_bytes(msgspec.json.format(msgspec.json.encode(contents)))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(file: Ranges, found: Distribution, folder: Path) -> WheelContents:
    file.prefetch([(max(0, file.size - _TAIL), file.size)])
    with zipfile.ZipFile(file) as wheel:
        members = [m for m in wheel.infolist() if wanted(m.filename)]
        # A local header may be longer than the central one says (its own extra field): room for that.
        file.prefetch([(m.header_offset, m.header_offset + 30 + len(m.filename) + 256 + m.compress_size) for m in members])
        wheel.extractall(folder, members=members)
        return WheelContents(
            name=found.name,
            version=found.version,
            sha256=found.sha256,
            built=_built(members),
            extensions=sorted(m.filename for m in wheel.infolist() if m.filename.endswith(".so")),
            requires=found.requires,
            files=len(members),
            bytes_read=file.bytes_read,
        )


def _built(members: list[zipfile.ZipInfo]) -> str:
    year, month, day = max(m.date_time for m in members if m.filename.endswith(".dist-info/METADATA"))[:3]
    return f"{year}-{month:02}-{day:02}"


def wanted(name: str) -> bool:
    """Whether a member is read: Python files (third-party copies of kernels too) and the wheel's own metadata."""
    return name.endswith((".py", ".dist-info/METADATA", ".dist-info/entry_points.txt"))
