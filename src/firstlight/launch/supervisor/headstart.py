"""The head start as the supervisor runs it: a process beside the engine that is ended at the latest when the engine is ready."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from .ending import send
from .loop import Task

if TYPE_CHECKING:
    from .supervisor import Supervisor


class HeadStart:
    """Does nothing without `options.head_start.files`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._pid: int | None = None
        self._wanted = supervisor.options.get("head_start") or {}

    def begin(self) -> None:
        if not self._wanted.get("files"):
            return
        argv = [sys.executable, "-I", "-S", sys.argv[0], "read-ahead", json.dumps(self._wanted)]
        path = os.path.join(self._s.folder, "headstart.json")
        try:
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._pid = self._s.children.spawn(argv, {"FIRSTLIGHT_NAME": self._s.run_id}, stdout=output)
        os.close(output)
        self._s.event("head-start", {"files": len(self._wanted["files"]), "limit_bytes": self._wanted.get("limit_bytes")})
        self._s.loop.start("head-start", self._follow(path))

    def _follow(self, path: str) -> Task:
        while self._pid is not None and self._s.children.status(self._pid) is None:
            yield 0.1
        self._pid = None
        try:
            with open(path, encoding="utf-8") as file:
                self._s.event("head-start-finished", json.load(file))
        except (OSError, ValueError):
            return

    def end(self) -> None:
        """The engine is ready or gone: nothing is left to be read ahead of it."""
        if self._pid is not None:
            send([self._pid], signal.SIGKILL)
            self._pid = None
            self._s.loop.cancel("head-start")
            self._s.event("head-start-finished", {"stopped": "overtaken"})
