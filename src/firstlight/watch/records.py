"""Log records as data, from the plugin inside the engine: no text is parsed that was a number before. The text log stays the fallback."""

import contextlib
import os
import socket
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.engines.lines import Line, own_name

PLUGIN_MODULE = "firstlight_log_plugin"
ENVIRONMENT = "FIRSTLIGHT_LOG_SOCKET"
_DATAGRAM = 65536


class Record(Struct, frozen=True, kw_only=True):
    """One log record as the plugin sends it. format, args: the message before it was formatted."""

    time: float
    format: str
    pid: int | None = None
    process: str | None = None
    logger: str | None = None
    level: str = "INFO"
    source: str | None = None
    args: list[Any] = []

    @property
    def text(self) -> str:
        try:
            return self.format % tuple(self.args) if self.args else self.format
        except (TypeError, ValueError):
            return self.format

    def as_line(self, number: int) -> Line:
        worker = own_name(self.process, self.pid) if self.process else None
        return Line(number, self.text.split("\n", 1)[0], worker, self.pid, self.level, None, self.source, True)


def read_record(datagram: bytes) -> Record | None:
    """None for what is not a record: anybody may write to a socket."""
    try:
        return msgspec.json.decode(datagram, type=Record)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def plugin_files() -> dict[str, bytes]:
    """The plugin as files of a folder for the engine's PYTHONPATH: the module and the metadata by which vLLM finds it."""
    source = (resources.files("firstlight.engines.vllm") / "inside" / "log_plugin.py").read_bytes()
    info = f"{PLUGIN_MODULE}-1.dist-info"
    return {
        f"{PLUGIN_MODULE}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PLUGIN_MODULE}\nVersion: 1\n".encode(),
        f"{info}/entry_points.txt": f"[vllm.general_plugins]\n{PLUGIN_MODULE} = {PLUGIN_MODULE}:register\n".encode(),
    }


class RecordSocket:
    """A Unix datagram socket that an engine's processes send their records to. What nobody reads in time is dropped, text is the fallback.

    path: at most 107 bytes long. Raises OSError when the socket cannot be made there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.setblocking(False)
        try:
            self._socket.bind(path)
        except OSError:
            self._socket.close()
            raise

    def drain(self, most: int = 2000) -> list[Record]:
        """The records that are there now, in the order in which they came."""
        found: list[Record] = []
        with contextlib.suppress(BlockingIOError):
            while len(found) < most:
                if record := read_record(self._socket.recv(_DATAGRAM)):
                    found.append(record)
        return found

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
