"""Following a file on a host whose connection comes and goes: what was cut is asked again, so that reading goes on from its byte."""

import time
from collections.abc import Callable
from typing import TypeVar

from firstlight.core.errors import HostError
from firstlight.core.ports import FileInfo, Host
from firstlight.probe.hosts import open_host
from firstlight.probe.ssh import SshHost

T = TypeVar("T")
LOST = frozenset({"host-unreachable", "command-timeout"})
PATIENCE_SECONDS = 600.0
AGAIN_SECONDS = 0.5


class PatientSshHost(SshHost):
    """An SshHost that, once it has been reached, asks `read` and `stat` again for ten minutes when the connection is lost.

    on_lost: told once per loss. A host that was never reached fails at once, as always.
    """

    def __init__(self, name: str, *, config: str | None = None, on_lost: Callable[[HostError], None] | None = None) -> None:
        super().__init__(name, config=config)
        self._on_lost = on_lost
        self._reached = False

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        return self._across_cuts(lambda: super(PatientSshHost, self).read(path, offset, limit))

    def stat(self, path: str) -> FileInfo | None:
        return self._across_cuts(lambda: super(PatientSshHost, self).stat(path))

    def _lost(self, stderr: bytes) -> HostError:
        self._reached = True  # the command had begun
        return super()._lost(stderr)

    def _across_cuts(self, ask: Callable[[], T]) -> T:
        found = across_cuts(ask, patient=lambda: self._reached, on_lost=self._on_lost)
        self._reached = True
        return found


def across_cuts(
    ask: Callable[[], T], *, patient: Callable[[], bool] = lambda: True, on_lost: Callable[[HostError], None] | None = None
) -> T:
    """Asks again for ten minutes when the connection was lost; for what may be done twice. Raises HostError."""
    deadline: float | None = None
    while True:
        try:
            return ask()
        except HostError as e:
            if e.code not in LOST or not patient() or (deadline is not None and time.monotonic() > deadline):
                raise
            if deadline is None:
                deadline = time.monotonic() + PATIENCE_SECONDS
                if on_lost:
                    on_lost(e)
            time.sleep(AGAIN_SECONDS)


def open_patient_host(name: str, on_lost: Callable[[HostError], None] | None = None) -> Host:
    """As `open_host`, for who reads a file to its end however often the way there breaks. Raises UsageError `unknown-host`."""
    return PatientSshHost(name, on_lost=on_lost) if name.startswith("ssh://") else open_host(name)
