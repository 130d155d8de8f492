"""One HTTP request that never blocks: the supervisor asks and goes on with its work."""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LIMIT = 4 * 1024 * 1024


class Answer(NamedTuple):
    """status: None where there was none, then `problem` says why: refused, timeout, closed, garbage, …"""

    status: int | None
    body: bytes
    problem: str | None
    seconds: float


class Probe:
    """A request in flight, driven by the selector. `done` is called once with its Answer."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        path: str,
        done: Callable[[Answer], None],
        *,
        timeout: float,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        self._selector, self._done = selector, done
        self._out = _request(address, path, body, key)
        self._in = bytearray()
        self._started = time.monotonic()
        self.deadline = self._started + timeout
        self._socket: socket.socket | None = None
        self._connect(address)

    def _connect(self, address: tuple[str, int]) -> None:
        connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        self._socket = connection
        try:
            code = connection.connect_ex(address)
        except (OSError, OverflowError, UnicodeError):  # a name that nobody knows, a port that cannot be: the engine will say so
            self._finish(None, "unreachable")
            return
        if code not in (0, errno.EINPROGRESS):
            self._finish(None, _word(code))
            return
        self._selector.register(connection, selectors.EVENT_WRITE, self._writable)

    def _writable(self, events: int) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._finish(None, _word(code))
            return
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError as e:
            self._finish(None, _word(e.errno or 0))
            return
        if not self._out:
            self._selector.modify(self._socket, selectors.EVENT_READ, self._readable)

    def _readable(self, events: int) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as e:
            self._finish(None, _word(e.errno or 0))
            return
        self._in += data
        if not data or len(self._in) > LIMIT or _complete(self._in):
            self._finish(_status(self._in), None if _status(self._in) else "garbage" if self._in else "closed")

    def expire(self, now: float) -> None:
        if self._socket is not None and now >= self.deadline:
            self._finish(None, "timeout")

    def cancel(self) -> None:
        self._done = lambda answer: None
        self._finish(None, "cancelled")

    @property
    def over(self) -> bool:
        return self._socket is None

    def _finish(self, status: int | None, problem: str | None) -> None:
        connection, self._socket = self._socket, None
        if connection is None:
            return
        with contextlib.suppress(KeyError, ValueError):  # refused before it was registered
            self._selector.unregister(connection)
        connection.close()
        self._done(Answer(status, bytes(self._in).partition(b"\r\n\r\n")[2], problem, time.monotonic() - self._started))


def _request(address: tuple[str, int], path: str, body: Mapping[str, Any] | None, key: str | None) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{address[1]}", "Connection: close", "Accept: */*"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"] if body is not None else []
    return "\r\n".join([*lines, "", ""]).encode() + payload


def _status(raw: bytearray) -> int | None:
    head = bytes(raw[:64]).split(b"\r\n")[0].split()
    valid = len(head) >= 2 and head[0].startswith(b"HTTP/1.") and head[1].isdigit()
    return int(head[1]) if valid else None


def _complete(raw: bytearray) -> bool:
    """Whether the announced length has arrived; without one the server closes."""
    head, separator, body = bytes(raw).partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if separator and line.startswith(b"content-length:"):
            value = line.partition(b":")[2].strip()
            return value.isdigit() and len(body) >= int(value)
    return False


def _word(code: int) -> str:
    return "refused" if code == errno.ECONNREFUSED else "closed" if code == errno.ECONNRESET else errno.errorcode.get(code, str(code))
