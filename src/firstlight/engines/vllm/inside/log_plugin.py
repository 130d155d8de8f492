"""Runs inside vLLM (entry point `vllm.general_plugins`): sends every log record of every process to a Unix socket, before it is formatted.

Needs nothing but Python. Does nothing when FIRSTLIGHT_LOG_SOCKET is not set, and never disturbs the engine: what cannot be sent is dropped.
"""

import json
import logging
import os
import socket
import sys
from typing import Any

_LOGGERS = ("vllm", "uvicorn")
_LONGEST_TEXT = 20000
_LONGEST_DATAGRAM = 60000
_registered = False


def register() -> None:
    """Wraps the record factory once per process; a forked child gets a socket of its own. vLLM may wrap it again."""
    global _registered
    path = os.environ.get("FIRSTLIGHT_LOG_SOCKET")
    if not path or _registered:
        return
    _registered = True
    before, sender = logging.getLogRecordFactory(), _Sender(path)

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        if record.name.startswith(_LOGGERS):
            sender.send(record)
        return record

    logging.setLogRecordFactory(factory)


class _Sender:
    def __init__(self, path: str) -> None:
        self._path, self._pid, self._socket = path, 0, None  # type: tuple[str, int, socket.socket | None]

    def send(self, record: logging.LogRecord) -> None:
        try:
            if self._socket is None or self._pid != os.getpid():
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._pid = os.getpid()
            data = json.dumps(_fields(record)).encode()
            if len(data) <= _LONGEST_DATAGRAM:
                self._socket.sendto(data, self._path)
        except (OSError, TypeError, ValueError):
            self._socket = None


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    # logging keeps a single dict as it is; named fields (`%(x)s`) are filled in here, `%s` of the whole is an argument like any other.
    single = isinstance(record.args, dict)
    named = single and "%(" in str(record.msg)
    arguments = () if named else (record.args,) if single else record.args or ()
    return {
        "time": record.created,
        "pid": record.process,
        "process": _process_name(record),
        "logger": record.name,
        "level": record.levelname,
        "source": f"{record.filename}:{record.lineno}",
        "format": (record.getMessage() if named else str(record.msg))[:_LONGEST_TEXT],
        "args": [a if isinstance(a, int | float | bool) or a is None else str(a)[:_LONGEST_TEXT] for a in arguments],
    }


def _process_name(record: logging.LogRecord) -> str | None:
    """The name that vLLM prints in front of a line: kept in its logger module from 0.32 on, before that the process's own."""
    kept = getattr(sys.modules.get("vllm.logger"), "_vllm_process_info", None)
    name = kept[0] if kept and kept[1] == os.getpid() else record.processName
    return "APIServer" if name == "MainProcess" else name
