"""The one event stream of a run: written to its folder and handed to whoever listens."""

import threading
import time
from collections.abc import Callable
from typing import Any

from firstlight.app.store import RunFolder
from firstlight.core.events import Event

Listener = Callable[[Event], None]


class Emitter:
    """Numbers events within a run; a listener that fails is a fault of ours and is not hidden."""

    def __init__(self, folder: RunFolder | None, listeners: list[Listener]) -> None:
        self.folder = folder
        self.listeners = listeners
        self.stage = "run"
        self._seq = sum(1 for _ in folder.events()) if folder else 0
        self._one = threading.RLock()  # looking asks a host from several threads

    def emit(self, kind: str, /, **data: Any) -> Event:
        with self._one:
            run = self.folder.path.name if self.folder else ""
            event = Event(seq=self._seq, time=time.time(), run=run, stage=self.stage, kind=kind, data=data)
            self._seq += 1
            if self.folder:
                self.folder.append_event(event)
            for listener in self.listeners:
                listener(event)
            return event
