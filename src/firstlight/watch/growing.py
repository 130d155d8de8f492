"""A log file that grows, and what else may happen to it: it is deleted, cut, or another takes its name. One look at a time."""

import asyncio

from msgspec import Struct

from firstlight.core.ports import Host

CHUNK = 1 << 20
HEAD = 256
GONE_SECONDS, GIVEN_UP_SECONDS = 1.0, 15.0


class Look(Struct, frozen=True, kw_only=True):
    """What one look brought. chunk: bytes behind those read before; again: they are of another file, or of one that was cut; note: what
    a person is told; over: the file is gone and did not come back.
    """

    chunk: bytes = b""
    again: bool = False
    note: str | None = None
    over: bool = False


class GrowingFile:
    """path on a host. A file that has not been there yet is waited for; one that is gone is, for GIVEN_UP_SECONDS."""

    def __init__(self, host: Host, path: str) -> None:
        self._host, self._path = host, path
        self._position = 0
        self._head = b""
        self._gone: float | None = None
        self._told = False

    async def look(self, now: float) -> Look:
        """now: seconds of any clock. Raises HostError when the file cannot be read."""
        info = await asyncio.to_thread(self._host.stat, self._path)
        if info is None or (info.kind == "link" and self._host.is_local):  # a link to nothing
            return self._missing(now)
        self._gone, self._told = None, False
        if info.size == self._position:
            return Look()
        if again := info.size < self._position or await self._other():
            self._position, self._head = 0, b""
        chunk = await asyncio.to_thread(self._host.read, self._path, self._position, CHUNK)
        if len(self._head) < HEAD:
            self._head = (self._head + chunk)[:HEAD] if self._position == len(self._head) else self._head
        self._position += len(chunk)
        note = "the file was cut or replaced: it is read from its beginning" if again else None
        return Look(chunk=chunk, again=bool(again), note=note)

    async def _other(self) -> bool:
        """Whether another file has this name: it begins with other bytes. On another host this would be a command more at every look."""
        if not self._head or not self._host.is_local:
            return False
        return await asyncio.to_thread(self._host.read, self._path, 0, len(self._head)) != self._head

    def _missing(self, now: float) -> Look:
        if self._position == 0:
            return Look()
        self._gone = now if self._gone is None else self._gone
        if now - self._gone >= GIVEN_UP_SECONDS:
            return Look(note=f"no file of this name came back within {GIVEN_UP_SECONDS:.0f} s: nothing more can be read", over=True)
        if now - self._gone < GONE_SECONDS or self._told:
            return Look()
        self._told = True
        return Look(
            note="the file is gone (deleted, or being rotated): waiting for one of its name; what is written meanwhile is not heard"
        )
