"""The supervisor's Unix socket: requests and answers as JSON lines, events as a stream."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

SUN_PATH = 107
PENDING_LIMIT = 8 * 1024 * 1024
REQUEST_LIMIT = 64 * 1024


class Client:
    """One connection. A client that does not read is dropped, never waited for."""

    def __init__(self, control: Control, connection: socket.socket) -> None:
        self._control, self._socket = control, connection
        self._in, self._out = bytearray(), bytearray()
        self.wants_events = False
        self.holds = False
        connection.setblocking(False)
        control.selector.register(connection, selectors.EVENT_READ, self._ready)

    def left(self) -> bool:
        """Whether it closed the connection: nobody is there to be told what came of the request."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def reply(self, value: Mapping[str, Any]) -> None:
        self.send(json.dumps(value, ensure_ascii=False).encode() + b"\n")

    def send(self, data: bytes) -> None:
        self._out += data
        if len(self._out) > PENDING_LIMIT:
            self.close()
        else:
            self._flush()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._in += data
        if not data or len(self._in) > REQUEST_LIMIT:
            self.close()
            return
        while b"\n" in self._in:
            line, _, rest = bytes(self._in).partition(b"\n")
            self._in = bytearray(rest)
            self._control.handle(self, line)

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._socket.fileno() >= 0:
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            self._control.selector.modify(self._socket, mask, self._ready)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._control.selector.unregister(self._socket)
            self._socket.close()
        if self in self._control.clients:
            self._control.clients.discard(self)
            self._control.released(self)


class Control:
    """Listens in the run folder, or in the short private folder where the path is too long or the file system has no sockets."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        places: list[str],
        answer: Callable[[Client, dict[str, Any]], None],
        released: Callable[[], None],
    ) -> None:
        self.selector, self._answer, self._places, self._released = selector, answer, places, released
        self.clients: set[Client] = set()
        self.listen()

    def listen(self) -> None:
        """Raises OSError where no place takes a socket."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = self._bind()
        self._socket.listen(64)
        self._socket.setblocking(False)
        self.selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _bind(self) -> str:
        problem: OSError | None = None
        for place in self._places:
            path = os.path.join(place, "supervisor.sock")
            if len(os.fsencode(path)) > SUN_PATH:
                continue
            try:
                if os.path.lexists(path):
                    os.unlink(path)  # a killed supervisor's: the lock says that no other one lives
                self._socket.bind(path)
                os.chmod(path, 0o600)
            except OSError as e:
                problem = e
                continue
            return path
        raise problem or OSError("no place takes a socket")

    def _accept(self, events: int) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        self.clients.add(Client(self, connection))

    def handle(self, client: Client, line: bytes) -> None:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("not an object")
        except ValueError as e:
            client.reply({"ok": False, "error": f"not a request: {e}"})
            return
        self._answer(client, request)

    def released(self, client: Client) -> None:
        """A client is gone; tells when it was the last one that held the run."""
        if client.holds and not any(c.holds for c in self.clients):
            self._released()

    def broadcast(self, line: bytes) -> None:
        for client in [c for c in self.clients if c.wants_events]:
            client.send(line)

    def close(self) -> None:
        """Sends what is pending, at most a second for each client."""
        for client in list(self.clients):
            client._socket.settimeout(1.0)
            with contextlib.suppress(OSError):
                client._socket.sendall(bytes(client._out))
            client.close()

    def stop_listening(self) -> None:
        self.selector.unregister(self._socket)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
