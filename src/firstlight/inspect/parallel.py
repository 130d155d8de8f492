"""A second process for the headers of very large local checkpoints: decoding JSON holds the interpreter, so threads would not help."""

import marshal
import os
import threading
from collections.abc import Callable
from typing import Any


def may_fork() -> bool:
    """Two processors, and no other thread whose locks a child would inherit."""
    return hasattr(os, "fork") and threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1


class Child:
    """Runs `work` in a forked process; its result is made of plain values (lists, dicts, sets, strings, numbers)."""

    def __init__(self, work: Callable[[], Any]) -> None:
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reader)
            _answer(work, writer)
        os.close(writer)
        self._reader = reader

    def result(self) -> Any | None:
        """What `work` returned; None when the child could not do it."""
        with open(self._reader, "rb") as pipe:
            raw = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        return marshal.loads(raw) if status == 0 and raw else None


def _answer(work: Callable[[], Any], writer: int) -> None:
    """The child's whole life: no exit handlers, no flushed buffers, whatever happens."""
    status = 1
    try:
        raw = marshal.dumps(work())
        with open(writer, "wb") as pipe:
            pipe.write(raw)
        status = 0
    finally:
        os._exit(status)
