"""The supervisor's children: all are waited for in one place, the engine's orphans too; hooks run beside the loop."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .members import FOLDER, HOOK, MARKER

# A tuple: a set among the constants would give the packed supervisor other bytes with each hash seed.
NOTED = ("ready", "failed", "died", "restarted", "wedged", "stopping", "ended", "supervisor-died")
HOOKS_AT_ONCE = 16  # those of a command that hangs must not pile up in a crash loop
DATA_LIMIT = 100_000  # of the 128 KiB that one variable of an environment may have


class Children:
    """Reaps, and runs commands: the user's `on_event` for what is NOTED, and our own helpers."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._status: dict[int, int | None] = {}
        self._hooks: dict[int, str] = {}

    def reap(self) -> list[tuple[int, int]]:
        """(pid, wait status) of every child that ended, stopped or went on since the last call."""
        found: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            found.append((pid, status))
            if pid in self._status and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                self._status[pid] = os.waitstatus_to_exitcode(status)

    def status(self, pid: int) -> int | None:
        """Its exit status; None while it runs."""
        return self._status.get(pid, 0)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], *, stdout: int = subprocess.DEVNULL) -> int | None:
        """A session of its own and without the run's marker, so that ending the run does not end it. None: not startable."""
        inherited = {k: v for k, v in os.environ.items() if k not in (MARKER, FOLDER)}
        try:
            child = subprocess.Popen(list(argv), env={**inherited, **env}, stdin=subprocess.DEVNULL, stdout=stdout, start_new_session=True)
        except (OSError, ValueError):
            return None
        child.returncode = 0  # waited for by `reap`
        self._status[child.pid] = None
        return child.pid

    def hook(self, argv: Sequence[str] | None, kind: str, data: Mapping[str, Any]) -> str | None:
        """Runs the user's command for what is NOTED; why it was not run, else None."""
        if not argv or kind not in NOTED:
            return None
        if sum(self.status(pid) is None for pid in self._hooks) >= HOOKS_AT_ONCE:
            return f"{HOOKS_AT_ONCE} of them still run"
        text = json.dumps(data)
        text = text if len(text) < DATA_LIMIT else '{"too_large": true}'
        pid = self.spawn(argv, {"FIRSTLIGHT_EVENT": kind, HOOK: self._run, "FIRSTLIGHT_DATA": text})
        if pid is None:
            return "it cannot be started"
        self._hooks[pid] = kind
        return None

    def ended_hooks(self) -> list[tuple[str, int]]:
        """(what it was told of, exit status) of each of the user's commands that ended since the last call."""
        over = [(pid, status) for pid in self._hooks if (status := self.status(pid)) is not None]
        return [(self._hooks.pop(pid), status) for pid, status in over]
