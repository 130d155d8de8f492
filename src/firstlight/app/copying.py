"""A model that is here and must be on another host: the same content gets the same place there, and a copy goes on where it was cut."""

import asyncio
import hashlib
import os
import posixpath
import re
import shutil
import time
from collections.abc import Iterator

from firstlight.app.elsewhere import places_of
from firstlight.app.sending import PATIENCE_SECONDS, Copy, Progress, bracketed, not_copied, run_tool, send_files
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.ids import digest
from firstlight.core.ports import Host
from firstlight.core.units import format_bytes
from firstlight.probe.cuts import FIRST_PAUSE, LONGEST_PAUSE
from firstlight.probe.ssh import SshHost

MARGIN = 64 << 20
LOOK = 64 << 10
PARTIAL = ".firstlight-partial"  # what a cut leaves lies there, not under the file's own name
_FOR_GOOD = frozenset({1, 2, 3, 4, 5, 6, 11, 13, 22, 23, 25})  # rsync(1): usage, versions, files; all else is a stream that broke
_SKIPPED = frozenset({".git", ".cache", ".firstlight"})  # of the last: parts, earlier revisions, and a record that each look renews
_SPLIT = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf$")
_GARBLED = b"is your shell clean"


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
    """Copies what is not there yet, by rsync, else by sftp, else through a plain command; returns the model's path there.

    A connection that breaks is made again, and the copy goes on from the byte where it broke off; what arrived is compared: by rsync's
    own checksum, else by SHA-256. Raises FirstlightError `no-space`; HostError `copy-failed`, `copy-damaged`.
    """
    assert isinstance(host, SshHost)
    folders = {posixpath.join(copy.target, posixpath.dirname(name)).rstrip("/") for name, _ in copy.files}
    await asyncio.to_thread(_prepare, host, copy, folders)
    has_rsync = shutil.which("rsync") and (await asyncio.to_thread(host.run, ["sh", "-c", "command -v rsync"])).ok
    if not (has_rsync and await _rsync(host, copy, on_progress)):
        await send_files(host, copy, on_progress)
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


async def _rsync(host: SshHost, copy: Copy, on_progress: Progress) -> bool:
    """Again after every cut, until ten minutes have brought nothing. False where the login's own output garbles what rsync says."""
    words = host.argv()
    argv = [
        "rsync",
        "-aL",
        f"--partial-dir={PARTIAL}",
        "--timeout=60",
        "--info=progress2",
        "--from0",
        "--files-from=-",
        "-s",
        "-e",
        _shell(words[:-2]),
    ]
    argv += ["--", f"{copy.root}/", f"{bracketed(words[-1])}:{copy.target}/"]
    names = b"".join(os.fsencode(name) + b"\0" for name, _ in copy.files)
    most, pause, deadline = 0, FIRST_PAUSE, time.monotonic() + PATIENCE_SECONDS

    def moved(done: int) -> None:
        nonlocal most, pause, deadline
        if done > most:
            most, pause, deadline = done, FIRST_PAUSE, time.monotonic() + PATIENCE_SECONDS
            on_progress(min(done, copy.total), copy.total)

    while True:
        code, said = await run_tool(argv, names, moved)
        if code == 0:
            on_progress(copy.total, copy.total)
            return True
        if _GARBLED in said:
            return False
        if (code in _FOR_GOOD and said.strip()) or time.monotonic() > deadline:
            raise not_copied(host, copy.root, said + f"\nrsync: exit status {code}".encode())
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, 2 * pause)


def _shell(words: list[str]) -> str:
    """rsync splits `-e` at spaces and knows quotes, doubled within."""
    return " ".join("'" + w.replace("'", "''") + "'" if any(c in w for c in " '\"") else w for w in words)
