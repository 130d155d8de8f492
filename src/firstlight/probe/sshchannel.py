"""A Unix socket of another host, relayed over ssh."""

import os
import subprocess
from typing import IO, BinaryIO

from firstlight.core.errors import HostError
from firstlight.probe.local import kill_group
from firstlight.probe.problems import host_error
from firstlight.probe.sshscript import out_mark


def past_noise(stream: IO[bytes], token: str) -> None:
    """Reads up to our own mark: what a login's start files print comes first."""
    while (line := stream.readline()) and not line.endswith(out_mark(token)):
        continue


class SshChannel:
    """A relayed Unix socket. `receive` returns b"" at its end and raises `host-unreachable` when the connection was lost."""

    def __init__(self, process: subprocess.Popen[bytes], path: str, host: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._path, self._host = process, path, host
        self._in: BinaryIO = process.stdin  # type: ignore[assignment]
        self._out: BinaryIO = process.stdout  # type: ignore[assignment]

    def send(self, data: bytes) -> None:
        try:
            self._in.write(data)
            self._in.flush()
        except OSError as e:
            raise host_error(e.errno, "write to", self._path, host=self._host) from None

    def receive(self, limit: int = 65536) -> bytes:
        data = os.read(self._out.fileno(), limit)
        if not data and self._ended() == 255:
            raise HostError("host-unreachable", f"{self._host}: the connection was lost", evidence=(f"socket: {self._path}",))
        return data

    def _ended(self) -> int | None:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        for pipe in (self._in, self._out, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            kill_group(self._process)
