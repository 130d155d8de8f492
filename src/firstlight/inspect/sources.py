"""Where a model's files are: a folder, a .gguf, the Hugging Face cache, or a hub read in ranges. Never more than is asked for."""

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping, Sequence

from firstlight.core.errors import HostError, InputError
from firstlight.core.hub import hub_cache, is_offline, repo_folder
from firstlight.core.ports import FileInfo, Host, Source
from firstlight.inspect.remote import list_files, read_ranges

DEPTH = 4  # folders below the model's own that are looked into
FILES = 100_000
_REPO = re.compile(r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<rev>[\w./-]+))?(?::(?P<quant>[\w.-]+))?$")
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.(?:safetensors|gguf|bin)$")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def open_source(ref: str, host: Host, *, revision: str | None = None, env: Mapping[str, str] | None = None) -> Source:
    """The files behind `ref`: an existing path wins, then `org/name[@rev][:QUANT]` in the Hugging Face cache, then the hub.

    env: where HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are read from (default: the host's). Raises InputError `model-not-found`.
    """
    path = _existing(ref, host)
    if path is not None:
        return _open_path(ref, path, host)
    match = _REPO.match(ref)
    if match is None or ref.startswith((".", "/", "~")):
        raise InputError(
            "model-not-found",
            f"there is no file or folder {ref}",
            evidence=(f"looked on {host.name}",),
            hint="give a folder, a .gguf, or org/name of a hub",
        )
    env = host.environ() if env is None else env
    rev = revision or match["rev"]
    cached = _cached_snapshot(match["repo"], rev, host, env)
    if cached is not None:
        return FolderSource(ref, cached, host, revision=posixpath.basename(cached), quant=match["quant"])
    if is_offline(env):
        raise InputError(
            "model-not-cached",
            f"{match['repo']} is not in the Hugging Face cache, and HF_HUB_OFFLINE forbids asking the hub",
            evidence=(f"looked in {hub_cache(env)}",),
            hint="unset HF_HUB_OFFLINE, or name a folder",
        )
    from firstlight.inspect.hub import HubSource

    return HubSource(ref, match["repo"], revision=rev, quant=match["quant"], env=env)


def _existing(ref: str, host: Host) -> str | None:
    home = host.environ().get("HOME", "") if ref.startswith("~/") else ""
    path = home + ref[1:] if home else ref
    if host.is_local:
        return os.path.abspath(path) if os.path.lexists(path) else None
    return path if host.stat(path) is not None else None


def _open_path(ref: str, path: str, host: Host) -> Source:
    if _is_folder(path, host):
        return FolderSource(ref, path, host)
    if path.endswith((".safetensors", ".json", ".bin")):
        folder = posixpath.dirname(path)
        raise InputError("not-a-checkpoint", f"{ref} is one file of a checkpoint", evidence=(path,), hint=f"name its folder: {folder}")
    return GgufSource(ref, path, host)


def _is_folder(path: str, host: Host) -> bool:
    if host.is_local:
        return os.path.isdir(path)
    info = host.stat(path)
    return info is not None and info.kind == "directory"


def _cached_snapshot(repo: str, revision: str | None, host: Host, env: Mapping[str, str]) -> str | None:
    """The snapshot folder of a revision in the cache, when its weights are all there or nobody could fetch the rest."""
    base = posixpath.join(hub_cache(env), repo_folder(repo))
    commit = _read_text(posixpath.join(base, "refs", revision or "main"), host) or revision
    folder = posixpath.join(base, "snapshots", commit) if commit else ""
    if not commit or not _is_folder(folder, host):
        return None
    names = [info.path for info in FolderSource(repo, folder, host).list() if info.kind == "file"]
    return folder if _complete(names) or is_offline(env) else None


def _complete(names: Sequence[str]) -> bool:
    """Weights are there, and of numbered shards all."""
    weights = [n for n in names if n.endswith((".safetensors", ".gguf", ".bin"))]
    numbered = [m for m in map(_SHARD.search, weights) if m]
    return bool(weights) and (not numbered or len(numbered) >= int(numbered[0][1]))


def _read_text(path: str, host: Host) -> str | None:
    try:
        if host.is_local:
            with open(path, encoding="utf-8") as f:
                return f.read(200).strip() or None
        return host.read(path, 0, 200).decode().strip() or None
    except (OSError, HostError, UnicodeDecodeError):
        return None


class FolderSource:
    """A folder on a host. On the local host files are read directly, elsewhere through the port."""

    first_read = 1 << 19  # what is read of a shard before its header's length is known
    one_file = False

    def __init__(self, ref: str, root: str, host: Host, *, revision: str | None = None, quant: str | None = None) -> None:
        self.ref = ref
        self.root: str | None = root
        self.revision = revision
        self.quant = quant
        self.host = host
        self._folder = root
        self._listed: list[FileInfo] | None = None

    def list(self) -> Sequence[FileInfo]:
        """Files below the folder, at most DEPTH deep, sorted; a link that leads nowhere or in a circle has kind `link` and size 0."""
        if self._listed is None:
            self._listed = sorted(self._walk_local() if self.host.is_local else self._walk_remote(), key=lambda f: f.path)
        return self._listed

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        full = posixpath.join(self._folder, path)
        if not self.host.is_local:
            return self.host.read(full, offset, length)
        try:
            with open(full, "rb", buffering=0) as f:
                return _read_at(f.fileno(), offset, length)
        except OSError as e:
            raise unreadable(full, e) from None

    def read_many(self, ranges: Sequence[tuple[str, int, int]]) -> Iterable[bytes]:
        together = None if self.host.is_local or not ranges else read_ranges(self.host, self._folder, ranges)
        return (self.read(*r) for r in ranges) if together is None else together

    def _walk_local(self) -> Iterable[FileInfo]:
        seen = {os.path.realpath(self._folder)}
        pending = [("", 0)]
        count = 0
        while pending:
            prefix, depth = pending.pop()
            for entry in self._scan(prefix):
                count += 1
                if count > FILES:
                    raise InputError("too-many-files", f"{self._folder} has more than {FILES:,} files", hint="name the model's own folder")
                path = prefix + entry.name
                if not _is_real_folder(entry):
                    yield _local_info(entry, path)
                elif depth < DEPTH and entry.name != ".git":
                    real = os.path.realpath(entry.path)
                    if real not in seen:
                        seen.add(real)
                        pending.append((path + "/", depth + 1))

    def _scan(self, prefix: str) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self._folder, prefix)) as entries:
                return list(entries)
        except OSError as e:
            if prefix:
                return []  # a folder inside that may not be read is no part of what can be told
            raise unreadable(self._folder, e) from None

    def _walk_remote(self) -> Iterable[FileInfo]:
        together = list_files(self.host, self._folder, DEPTH)
        return self._walk_by_steps() if together is None else together

    def _walk_by_steps(self) -> Iterable[FileInfo]:
        """For a host without Python: a round trip a folder."""
        pending = [("", 0)]
        while pending:
            prefix, depth = pending.pop()
            for info in self.host.list(posixpath.join(self._folder, prefix)):
                path = prefix + posixpath.basename(info.path)
                if info.kind != "directory":
                    yield FileInfo(path=path, size=info.size, kind=info.kind, modified=info.modified)
                elif depth < DEPTH and posixpath.basename(path) != ".git":
                    pending.append((path + "/", depth + 1))


def _is_real_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _local_info(entry: "os.DirEntry[str]", path: str) -> FileInfo:
    try:
        info = entry.stat()
    except OSError:
        return FileInfo(path=path, size=0, kind="link")
    kind = "file" if stat.S_ISREG(info.st_mode) else "other"
    return FileInfo(path=path, size=info.st_size, kind=kind, modified=info.st_mtime)


def _read_at(fd: int, offset: int, length: int | None) -> bytes:
    """Exactly `length` bytes, less only at the end of the file."""
    if length is None:
        length = max(os.fstat(fd).st_size - offset, 0)
    data = os.pread(fd, length, offset)
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data


def unreadable(path: str, error: OSError) -> InputError:
    return InputError("file-unreadable", f"{path} cannot be read", evidence=(error.strerror or str(error),))


class GgufSource(FolderSource):
    """One .gguf, or a split one named by any of its parts: its siblings belong to it, the folder's other files do not."""

    one_file = True

    def __init__(self, ref: str, path: str, host: Host) -> None:
        folder, name = posixpath.split(path)
        super().__init__(ref, folder, host)
        self.root = path
        self._names = split_names(name)

    def list(self) -> Sequence[FileInfo]:
        if self._listed is None:
            found = ((n, self.host.stat(posixpath.join(self._folder, n))) for n in sorted(self._names))
            self._listed = [FileInfo(path=n, size=i.size, kind=i.kind, modified=i.modified) for n, i in found if i is not None]
        return self._listed


def split_names(name: str) -> frozenset[str]:
    """The parts of a split GGUF, from any part's name; the name itself otherwise."""
    match = _SPLIT.match(name)
    if match is None:
        return frozenset((name,))
    return frozenset(f"{match['stem']}-{n:05d}-of-{match['count']}.gguf" for n in range(1, min(int(match["count"]), 10_000) + 1))
