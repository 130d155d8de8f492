"""Before an engine that died is started again, the cause of its death is asked for. Nobody to ask is no reason to stay down."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from .children import Children
from .ending import send
from .members import HOOK

PATIENCE_SECONDS = 60.0


class Inquest:
    """Runs `before_restart` beside the back-off. It prints one JSON object: `restart` (false stops), code, title, because, remedy.

    What came of it is `{"made": bool, "restart": bool, …}`; where none was made, `because` says why.
    """

    def __init__(self, children: Children, run: str, argv: Sequence[str] | None, *, scratch: str) -> None:
        self._children, self._run, self._argv = children, run, argv
        self._path = os.path.join(scratch, "inquest.json")
        self._pid: int | None = None
        self._since = 0.0

    def begin(self, death: Mapping[str, Any]) -> None:
        self._pid, self._since = None, time.monotonic()
        if not self._argv:
            return
        try:
            output = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._pid = self._children.spawn(self._argv, {HOOK: self._run, "FIRSTLIGHT_DATA": json.dumps(death)}, stdout=output)
        os.close(output)

    def result(self) -> Generator[float, None, dict[str, Any]]:
        if self._pid is None:
            return _none("nobody was asked" if not self._argv else f"{self._argv[0]} could not be started")
        while (status := self._children.status(self._pid)) is None:
            if time.monotonic() - self._since > PATIENCE_SECONDS:
                return _none(f"no answer within {PATIENCE_SECONDS:.0f} s")
            yield 0.05
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            return {**found, "made": True, "restart": found.get("restart") is not False}
        except (OSError, ValueError, TypeError, AttributeError):
            return _none(f"exit status {status} without an answer")

    def end(self) -> None:
        """The run is over: nobody waits for an answer."""
        if self._pid is not None and self._children.status(self._pid) is None:
            send([self._pid], signal.SIGKILL)


def _none(because: str) -> dict[str, Any]:
    return {"made": False, "restart": True, "because": because}
