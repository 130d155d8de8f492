"""A model that is here and must be on another host: the same content gets the same place there, and a copy goes on where it was cut."""

import asyncio
import hashlib
import os
import posixpath
import re
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from firstlight.app.elsewhere import places_of
from firstlight.core.errors import Exit, FirstlightError, HostError
from firstlight.core.ids import digest
from firstlight.core.ports import Host
from firstlight.core.units import format_bytes
from firstlight.probe.patient import LOST, across_cuts
from firstlight.probe.ssh import SshHost

MARGIN = 64 << 20
LOOK = 64 << 10
PATIENCE_SECONDS = 600.0
AGAIN_SECONDS = 1.0
_FOR_GOOD = frozenset({1, 2, 3, 4, 5, 6, 11, 13, 22, 23, 25})  # rsync(1): usage, versions, files; all else is a stream that broke
_SKIPPED = frozenset({".git", ".cache"})
_SPLIT = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf$")
Progress = Callable[[int, int], None]


class Copy(NamedTuple):
    """root: the folder here that `files` (relative path, bytes) are in; target: their folder there; path: the model's own there."""

    root: str
    files: list[tuple[str, int]]
    target: str
    path: str

    @property
    def total(self) -> int:
        return sum(size for _, size in self.files)


def plan_copy(path: str, host: Host) -> Copy:
    """What is to be copied and where to: `models/DIGEST/NAME` in the host's cache, or a hub cache's own name and commit."""
    path = path.rstrip("/")
    root = path if os.path.isdir(path) else os.path.dirname(path)
    files = sorted(_files(path))
    base = posixpath.join(places_of(host).cache, "models", _address(path, root, files))
    target = posixpath.join(base, os.path.basename(path)) if root == path else base
    return Copy(root, files, target, target if root == path else posixpath.join(base, os.path.basename(path)))


def _files(path: str) -> Iterator[tuple[str, int]]:
    """(relative path, bytes); links are followed, but none twice into the same folder. A split GGUF is all of its parts."""
    if not os.path.isdir(path):
        split = _SPLIT.fullmatch(path)
        count = int(split["count"]) if split else 0
        parts = [f"{split['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)] if split else [path]
        yield from ((os.path.basename(p), os.path.getsize(p)) for p in parts)
        return
    seen: set[str] = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))
        folders[:] = [f for f in folders if f not in _SKIPPED and os.path.realpath(os.path.join(folder, f)) not in seen]
        for name in names:
            if os.path.isfile(file := os.path.join(folder, name)):
                yield os.path.relpath(file, path), os.path.getsize(file)


def _address(path: str, root: str, files: list[tuple[str, int]]) -> str:
    """A hub cache names its content itself; of any other, names, sizes, and the first and last bytes of every file."""
    parts = path.split("/")
    named = next((p for p in parts if p.startswith("models--")), None)
    if named and "snapshots" in parts[:-1]:
        return posixpath.join(named, parts[parts.index("snapshots") + 1])
    return digest([(name, size, _ends(os.path.join(root, name), size)) for name, size in files])


def _ends(path: str, size: int) -> str:
    with open(path, "rb") as file:
        read = hashlib.sha256(file.read(LOOK))
        file.seek(max(0, size - LOOK))
        read.update(file.read(LOOK))
    return read.hexdigest()


async def copy_model(host: Host, copy: Copy, on_progress: Progress) -> str:
    """Copies what is not there yet; returns the model's path there.

    Raises FirstlightError `no-space`; HostError `copy-failed`, `copy-impossible`.
    """
    assert isinstance(host, SshHost)
    folders = {posixpath.join(copy.target, posixpath.dirname(name)).rstrip("/") for name, _ in copy.files}
    await asyncio.to_thread(across_cuts, lambda: _prepare(host, copy, folders))
    has_rsync = await asyncio.to_thread(across_cuts, lambda: host.run(["sh", "-c", "command -v rsync"]).ok)
    if shutil.which("rsync") and has_rsync:
        await _rsync(host, copy, on_progress)
    elif shutil.which("sftp"):
        await _sftp(host, copy, on_progress)
    else:
        message = f"neither rsync nor sftp can bring the model to {host.name}"
        raise HostError("copy-impossible", message, hint="install rsync here and there")
    return copy.path


def _prepare(host: Host, copy: Copy, folders: set[str]) -> None:
    """Its folders, and the proof that it fits. Raises FirstlightError `no-space`."""
    for folder in sorted(folders):
        host.mkdir(folder)
    there = _kib(host, ["du", "-sk", copy.target], 0)
    free = _kib(host, ["df", "-Pk", copy.target], 3)
    missing = copy.total - (there or 0)
    if free is not None and missing > 0 and missing + MARGIN > free:
        raise FirstlightError(
            "no-space",
            f"the model does not fit on the disk of {host.name}",
            evidence=(f"needed {format_bytes(missing)}", f"available {format_bytes(free)} at {copy.target}"),
            hint="make room there, or set XDG_CACHE_HOME there to a larger disk",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )


def _kib(host: Host, argv: list[str], field: int) -> int | None:
    """A figure of the last line that `du -k` or `df -Pk` says, in bytes."""
    done = host.run(argv, timeout=120)
    fields = done.text.strip().splitlines()[-1].split() if done.ok and done.text.strip() else []
    return int(fields[field]) << 10 if len(fields) > field and fields[field].isdigit() else None


async def _rsync(host: SshHost, copy: Copy, on_progress: Progress) -> None:
    """Again after every cut, until ten minutes have brought nothing."""
    words = host.argv()
    argv = ["rsync", "-aL", "--partial", "--timeout=60", "--info=progress2", "--from0", "--files-from=-", "-s", "-e", _shell(words[:-2])]
    argv += ["--", f"{copy.root}/", f"{_bracketed(words[-1])}:{copy.target}/"]
    names = b"".join(os.fsencode(name) + b"\0" for name, _ in copy.files)
    most, deadline = 0, time.monotonic() + PATIENCE_SECONDS

    def moved(done: int) -> None:
        nonlocal most, deadline
        if done > most:
            most, deadline = done, time.monotonic() + PATIENCE_SECONDS
            on_progress(min(done, copy.total), copy.total)

    while True:
        code, said = await _run(argv, names, moved)
        if code == 0:
            on_progress(copy.total, copy.total)
            return
        if (code in _FOR_GOOD and said.strip()) or time.monotonic() > deadline:
            raise _not_copied(host, copy.root, said + f"\nrsync: exit status {code}".encode())
        await asyncio.sleep(AGAIN_SECONDS)


async def _run(argv: list[str], data: bytes, moved: Callable[[int], None] | None = None) -> tuple[int, bytes]:
    """Exit status and standard error; ended with whoever waits for it. moved: is told rsync's count of bytes as it grows."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, "LC_ALL": "C"})
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.ensure_future(process.stderr.read())
    try:
        process.stdin.write(data)
        process.stdin.close()
        while piece := await process.stdout.read(4096):
            found = re.findall(rb"(?:^|\r)\s*([\d,]+)\s+\d+%", piece)
            if found and moved:
                moved(int(found[-1].replace(b",", b"")))
        return await process.wait(), await said
    finally:
        said.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _sftp(host: SshHost, copy: Copy, on_progress: Progress) -> None:
    """File by file: a whole one is not sent again, and none has its name before it is whole."""
    words = host.argv()
    options = [w for i, w in enumerate(words[:-2]) if w.startswith("-o") or w == "-F" or words[i - 1] == "-F"]
    argv = ["sftp", *options, *_login(words), "-b", "-", _bracketed(words[-1])]
    done = 0
    for name, size in copy.files:
        await _put(host, argv, os.path.join(copy.root, name), posixpath.join(copy.target, name), size)
        done += size
        on_progress(done, copy.total)


async def _put(host: SshHost, argv: list[str], source: str, there: str, size: int) -> None:
    line, deadline = os.fsencode(f"put {_quoted(source)} {_quoted(there + '.part')}\n"), time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await asyncio.to_thread(across_cuts, lambda: host.stat(there))
        if found is not None and found.size == size:
            return
        code, said = await _run(argv, line)
        try:
            if code == 0:
                await asyncio.to_thread(host.rename, there + ".part", there)
                return
        except HostError as e:
            if e.code not in LOST:
                raise
        if code not in (0, 255) or time.monotonic() > deadline:
            raise _not_copied(host, source, said)
        await asyncio.sleep(AGAIN_SECONDS)


def _login(words: list[str]) -> list[str]:
    """`-l USER` and `-p PORT` in sftp's words."""
    pairs = dict(pairwise(words))
    user = [f"-oUser={pairs['-l']}"] if "-l" in pairs else []
    return [*user, *(["-P", pairs["-p"]] if "-p" in pairs else [])]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _quoted(path: str) -> str:
    """As sftp's batch reads it: double quotes, backslashes before both. Raises HostError for a name that no batch line can hold."""
    if "\n" in path or "\r" in path:
        message = "sftp cannot send a file whose name has a line break"
        raise HostError("copy-impossible", message, evidence=(repr(path),), hint="install rsync here and there")
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shell(words: list[str]) -> str:
    """rsync splits `-e` at spaces and knows quotes, doubled within."""
    return " ".join("'" + w.replace("'", "''") + "'" if any(c in w for c in " '\"") else w for w in words)


def _not_copied(host: Host, path: str, stderr: bytes) -> HostError:
    lines = stderr.decode("utf-8", "replace").splitlines()[-4:]
    return HostError("copy-failed", f"{path} could not be copied to {host.name}", evidence=tuple(lines), hint="try again: it goes on there")
