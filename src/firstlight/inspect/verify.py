"""`verify_content`: the files' sha256 against what is known about them: the hub, a manifest, or the cache's own names."""

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import msgspec

from firstlight.core.errors import FirstlightError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.safetensors import problem

PIECE = 8 << 20
_SUM_LINE = re.compile(r"^([0-9a-fA-F]{64})\s+[ *]?(.+?)\s*$", re.MULTILINE)
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_SUM_FILES = ("SHA256SUMS", "sha256sums.txt", "checksums.sha256", "SHA256SUMS.txt")
_METADATA = re.compile(r"^\.cache/huggingface/download/(.+)\.metadata$")
_MANIFEST = ".firstlight/manifest.json"


def verify_content(
    source: Source,
    *,
    expected: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> list[Finding]:
    """Hashes every file whose sha256 is known, several at once. on_progress: (bytes done, bytes in all), from any thread, one at a time.

    Findings: content-mismatch and file-missing (blockers), content-unverified (warning: nothing to hold against), content-verified (note).
    """
    files = {f.path: f for f in source.list()}
    known = dict(expected) if expected is not None else expected_hashes(source, files)
    todo = [files[name] for name in sorted(known) if name in files]
    found = [problem("file-missing", f"{name} is not there", "a manifest names it") for name in sorted(known) if name not in files]
    progress = _Progress(sum(f.size for f in todo), on_progress)
    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8), thread_name_prefix="sha256") as pool:
        wrong = [f for f in pool.map(lambda f: _check(source, f, known[f.path], progress), todo) if f is not None]
    return found + wrong + list(_summary(files.values(), known, len(todo), len(wrong)))


class _Progress:
    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self.total, self.done, self._report, self._lock = total, 0, report, Lock()

    def add(self, n: int) -> None:
        if self._report is None:
            return
        with self._lock:
            self.done += n
            self._report(self.done, self.total)


def _check(source: Source, info: FileInfo, expected: str, progress: _Progress) -> Finding | None:
    """hashlib lets other threads run while it works on large pieces."""
    digest = hashlib.sha256()
    try:
        for offset in range(0, info.size, PIECE):
            piece = source.read(info.path, offset, min(PIECE, info.size - offset))
            digest.update(piece)
            progress.add(len(piece))
    except FirstlightError as e:
        return problem(e.code, e.message, *e.evidence)
    if digest.hexdigest() == expected.lower():
        return None
    evidence = (f"expected: sha256 {expected.lower()}", f"found: sha256 {digest.hexdigest()}")
    return problem("content-mismatch", f"{info.path} is not the file it should be", *evidence, hint="download it again")


def _summary(files: Iterable[FileInfo], known: Mapping[str, str], checked: int, wrong: int) -> Iterator[Finding]:
    weights = [f.path for f in files if f.path.endswith((".safetensors", ".gguf")) and f.path not in known]
    if weights:
        evidence = [*weights[:4], *([f"and {len(weights) - 4} more"] if len(weights) > 4 else [])]
        message = "there is no sha256 to hold these weights against"
        yield problem("content-unverified", message, *evidence, severity=Severity.WARNING, hint="put a SHA256SUMS file beside them")
    if checked > wrong:
        of = f" of {checked}" if wrong else ""
        message = f"{checked - wrong}{of} file(s) were read whole and are what they should be, by sha256"
        yield problem("content-verified", message, severity=Severity.NOTE)


def expected_hashes(source: Source, files: Mapping[str, FileInfo]) -> dict[str, str]:
    """sha256 by file, least trusted first: cache names, hub download metadata, our manifest, a SHA256SUMS, the hub itself."""
    known = dict(_cache_names(source, files))
    for path in files:
        match = _METADATA.match(path)
        if match and match[1] in files:
            lines = _text(source, path).splitlines()
            if len(lines) > 1 and _SHA256.match(lines[1].strip()):
                known[match[1]] = lines[1].strip()
    known |= _manifest(source, files)
    for name in _SUM_FILES:
        if name in files:
            known |= {path.removeprefix("./"): digest.lower() for digest, path in _SUM_LINE.findall(_text(source, name))}
    return known | {f.path: f.sha256 for f in files.values() if f.sha256}


def _cache_names(source: Source, files: Mapping[str, FileInfo]) -> Iterator[tuple[str, str]]:
    """In the hub's cache a snapshot's large files are links to blobs named by their sha256."""
    host = getattr(source, "host", None)
    if source.root is None or host is None or not host.is_local:
        return
    for path in files:
        full = posixpath.join(source.root, path)
        blob = posixpath.basename(os.readlink(full)) if os.path.islink(full) else ""
        if _SHA256.match(blob):
            yield path, blob


def _manifest(source: Source, files: Mapping[str, FileInfo]) -> dict[str, str]:
    """What `fetch` verified: beside the files, or, in the hub's cache, beside the blobs under the commit's name."""
    text = _text(source, _MANIFEST) if _MANIFEST in files else _cache_manifest(source)
    try:
        listed = msgspec.json.decode(text or "{}").get("files") or []
        return {f["name"]: f["sha256"] for f in listed if isinstance(f, dict) and f.get("name") and f.get("sha256")}
    except (msgspec.DecodeError, AttributeError):
        return {}


def _cache_manifest(source: Source) -> str:
    folder, commit = posixpath.split(source.root or "")
    repository, snapshots = posixpath.split(folder)
    return _text(source, f"../../.firstlight/{commit}.json") if snapshots == "snapshots" and repository else ""


def _text(source: Source, path: str) -> str:
    try:
        return source.read(path, 0, 4 << 20).decode("utf-8", "replace")
    except FirstlightError:
        return ""
