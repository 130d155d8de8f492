"""Files to another host one by one: by sftp, or through a plain command where there is no sftp. A cut goes on from its byte."""

import asyncio
import hashlib
import os
import posixpath
import re
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from firstlight.core.errors import HostError
from firstlight.core.ports import Host
from firstlight.probe.cuts import FIRST_PAUSE, LONGEST_PAUSE
from firstlight.probe.ssh import SshHost

PATIENCE_SECONDS = 600.0
PIECE = 32 << 20
HASH_SECONDS = 3600.0
FRUITLESS = 3
_NO_SFTP = (b"subsystem request failed", b"Received message too long", b"sftp-server")
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


async def send_files(host: SshHost, copy: Copy, on_progress: Progress) -> None:
    """A whole file is not sent again, and none has its name before it is whole and its SHA-256 agrees.

    Raises HostError `copy-failed`, `copy-damaged`.
    """
    done, sender = 0, _Sender(host)
    for name, size in copy.files:
        await sender.bring(os.path.join(copy.root, name), posixpath.join(copy.target, name), size)
        done += size
        on_progress(done, copy.total)


class _Sender:
    """by_sftp: until a host turns out to have none."""

    def __init__(self, host: SshHost) -> None:
        self.host, self.by_sftp = host, shutil.which("sftp") is not None

    async def bring(self, source: str, there: str, size: int) -> None:
        if await self._size(there) == size:
            return
        part = there + ".part"
        for fresh in (False, True):
            if fresh:
                await asyncio.to_thread(self.host.remove, part)
            await self._whole(source, part, size)
            if await self._same(source, part):
                await asyncio.to_thread(self.host.rename, part, there)
                return
        raise HostError("copy-damaged", f"{source} arrives on {self.host.name} with another content, twice", evidence=(part,))

    async def _size(self, path: str) -> int:
        found = await asyncio.to_thread(self.host.stat, path)
        return -1 if found is None else found.size

    async def _whole(self, source: str, part: str, size: int) -> None:
        """Until the part has every byte; ten minutes without one more are enough. An sftp that only closes (no subsystem) is given up."""
        most, stuck, pause, deadline = -2, 0, FIRST_PAUSE, time.monotonic() + PATIENCE_SECONDS
        while (have := await self._size(part)) != size:
            if have > size:
                await asyncio.to_thread(self.host.remove, part)
                continue
            if have > most:
                most, stuck, pause, deadline = have, 0, FIRST_PAUSE, time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise not_copied(self.host, source, f"{have} of {size} bytes".encode())
            else:
                stuck += 1
                self.by_sftp = self.by_sftp and stuck < FRUITLESS
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
            await self._send(source, part, max(have, 0))

    async def _send(self, source: str, part: str, have: int) -> None:
        """Some more of it. Raises HostError `copy-failed` for what is no cut: an sftp that ends without a word was cut."""
        if not (self.by_sftp and _speakable(source + part)):
            await self._piece(source, part, have)
            return
        verb = "put -a" if have else "put"
        code, said = await run_tool(_sftp(self.host), os.fsencode(f"{verb} {_quoted(source)} {_quoted(part)}\n"))
        if any(word in said for word in _NO_SFTP):
            self.by_sftp = False
        elif code not in (0, 255) and said.strip() and b"connection" not in said.lower():
            raise not_copied(self.host, source, said)

    async def _piece(self, source: str, part: str, have: int) -> None:
        """`dd` puts a piece at its own place, however often it is sent."""
        data = await asyncio.to_thread(_read, source, have)
        script = 'exec dd of="$1" bs=65536 seek="$2" oflag=seek_bytes conv=notrunc iflag=fullblock 2>/dev/null'
        argv = ["sh", "-c", script if have else 'exec cat >"$1"', "sh", part, str(have)]
        done = await asyncio.to_thread(self.host.run, argv, stdin=data, timeout=PATIENCE_SECONDS)
        if not done.ok:
            raise not_copied(self.host, source, done.stderr)

    async def _same(self, source: str, part: str) -> bool:
        """Whether both ends read the same content; True where that host has nothing to hash with."""
        done = await asyncio.to_thread(self.host.run, ["sh", "-c", _HASH, "sh", part], timeout=HASH_SECONDS)
        found = re.match(rb"\\?([0-9a-f]{64})\b", done.stdout)
        return found is None or found[1].decode() == await asyncio.to_thread(_sha256, source)


_HASH = 'command -v sha256sum >/dev/null && exec sha256sum <"$1"; true'


def _read(path: str, position: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(position)
        return file.read(PIECE)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sftp(host: SshHost) -> list[str]:
    words = host.argv()
    options = [w for i, w in enumerate(words[:-2]) if w.startswith("-o") or w == "-F" or words[i - 1] == "-F"]
    return ["sftp", *options, *_login(words), "-b", "-", bracketed(words[-1])]


async def run_tool(argv: list[str], data: bytes, moved: Callable[[int], None] | None = None) -> tuple[int, bytes]:
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


def _login(words: list[str]) -> list[str]:
    """`-l USER` and `-p PORT` in sftp's words."""
    pairs = dict(pairwise(words))
    user = [f"-oUser={pairs['-l']}"] if "-l" in pairs else []
    return [*user, *(["-P", pairs["-p"]] if "-p" in pairs else [])]


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _speakable(path: str) -> bool:
    """Whether a line of sftp's batch can hold it."""
    return "\n" not in path and "\r" not in path


def _quoted(path: str) -> str:
    """As sftp's batch reads it: double quotes, backslashes before both."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def not_copied(host: Host, path: str, stderr: bytes) -> HostError:
    lines = stderr.decode("utf-8", "replace").splitlines()[-4:]
    return HostError("copy-failed", f"{path} could not be copied to {host.name}", evidence=tuple(lines), hint="try again: it goes on there")
