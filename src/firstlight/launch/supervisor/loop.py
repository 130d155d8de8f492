"""One thread, one selector: descriptors, signals, and tasks that are generators of waits. Nothing here knows what an engine is."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Generator

Task = Generator[float, None, None]
OnSignal = Callable[[int], None]


class Loop:
    """`run` until `stop`. A task yields how many seconds to wait; `hurry` runs all of them at the next turn."""

    def __init__(self, on_signal: OnSignal, on_turn: Callable[[], None]) -> None:
        self.selector = selectors.DefaultSelector()
        self._tasks: dict[str, tuple[float, Task]] = {}
        self._on_signal, self._on_turn = on_signal, on_turn
        self._going = True
        self._listen_to_signals()

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)  # the wakeup descriptor carries it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.selector.register(reader, selectors.EVENT_READ, lambda events: self._signals(reader))

    def _signals(self, reader: int) -> None:
        try:
            for number in os.read(reader, 4096):
                self._on_signal(number)
        except BlockingIOError:
            pass

    def start(self, name: str, task: Task, *, after: float = 0.0) -> None:
        """Starts a task; one of the same name that runs is closed."""
        self.cancel(name)
        self._tasks[name] = (time.monotonic() + after, task)

    def cancel(self, name: str) -> None:
        found = self._tasks.pop(name, None)
        if found is not None:
            found[1].close()

    def hurry(self) -> None:
        self._tasks = {name: (0.0, task) for name, (_, task) in self._tasks.items()}

    def stop(self) -> None:
        self._going = False

    def run(self) -> None:
        while self._going:
            due = min((when for when, _ in self._tasks.values()), default=time.monotonic() + 1.0)
            for key, events in self.selector.select(max(0.0, min(1.0, due - time.monotonic()))):
                if self.selector.get_map().get(key.fd) is key:
                    key.data(events)  # unless an earlier one of this turn closed it
            self._on_turn()
            self._run_due(time.monotonic())

    def _run_due(self, now: float) -> None:
        for name, (when, task) in list(self._tasks.items()):
            if when > now or self._tasks.get(name) != (when, task):
                continue
            try:
                wait = next(task)
            except StopIteration:
                if self._tasks.get(name, (0.0, None))[1] is task:
                    del self._tasks[name]
            else:
                if self._tasks.get(name, (0.0, None))[1] is task:
                    self._tasks[name] = (time.monotonic() + wait, task)
