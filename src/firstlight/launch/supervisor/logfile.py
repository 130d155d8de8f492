"""The engine's log: everything it prints, secrets blanked, rotated, and never a reason for the engine to wait or die."""

from __future__ import annotations

import os
from collections.abc import Sequence

BLANK = b"(secret removed)"
TAIL_BYTES = 256 * 1024


class EngineLog:
    """`engine.log`, and when it grows past `max_bytes`: `engine.log.start` (the first part, kept for good) and `.1` to `.KEEP`.

    lost: bytes that could not be written (full disk); the newest TAIL_BYTES stay in memory all the same.
    """

    def __init__(self, path: str, *, max_bytes: int, keep: int, secrets: Sequence[bytes] = (), tee: int | None = None) -> None:
        self.path = path
        self.lost = 0
        self.problem: str | None = None
        self.tail = bytearray()
        self._max_bytes, self._keep, self._tee = max_bytes, keep, tee
        self._secrets = sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True)
        self._held = b""
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.bytes = os.fstat(self._descriptor).st_size

    def write(self, data: bytes, *, final: bool = False) -> bool:
        """Appends; True where the file was rotated. A piece that may begin a secret is held until it is decided, or `final`."""
        data = self._blank(self._held + data)
        self._held = b"" if final else self._suspect(data)
        data = data[: len(data) - len(self._held)]
        self.tail += data
        del self.tail[:-TAIL_BYTES]
        self._to_terminal(data)
        self._to_file(data)
        return self._rotate() if self.bytes > self._max_bytes else False

    def _blank(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, BLANK)
        return data

    def _suspect(self, data: bytes) -> bytes:
        """The longest end of `data` that begins a secret."""
        longest = max((len(s) for s in self._secrets), default=0) - 1
        for length in range(min(longest, len(data)), 0, -1):
            if any(s.startswith(data[-length:]) for s in self._secrets):
                return data[-length:]
        return b""

    def _to_file(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._descriptor, view)
                view = view[written:]
                self.bytes += written
            self.problem = None
        except OSError as e:
            self.lost += len(view)
            self.problem = e.strerror or str(e)

    def _to_terminal(self, data: bytes) -> None:
        if self._tee is not None:
            try:
                os.write(self._tee, data)
            except OSError:
                self._tee = None

    def _rotate(self) -> bool:
        """The start of a log explains a failure, so the first part is never dropped."""
        try:
            if not os.path.exists(f"{self.path}.start"):
                os.replace(self.path, f"{self.path}.start")
            else:
                for number in range(self._keep, 1, -1):
                    if os.path.exists(f"{self.path}.{number - 1}"):
                        os.replace(f"{self.path}.{number - 1}", f"{self.path}.{number}")
                os.replace(self.path, f"{self.path}.1")
            old = self._descriptor
            self._open()
            os.close(old)
        except OSError as e:
            self.problem = e.strerror or str(e)
            return False
        return True

    def reopen_if_gone(self) -> bool:
        """Opens the path again where somebody removed the file; True where that was needed."""
        try:
            there, here = os.stat(self.path), os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return False
        except OSError:
            pass
        old = self._descriptor
        try:
            self._open()
        except OSError:
            return False
        os.close(old)
        return True
