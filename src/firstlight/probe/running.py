"""The commands that a host runs just now, so that who is interrupted can end them: their readers wait in other threads."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
LOOK_SECONDS = 0.25


@runtime_checkable
class Interruptible(Protocol):
    """A host whose commands can be ended from another thread."""

    def interrupt(self) -> None: ...


class Running:
    """`interrupt` is for good: what is started afterwards is ended at once."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    @contextlib.contextmanager
    def hold(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """While the process runs. It leads a group of its own, and whoever holds it reaps it."""
        with self._lock:
            self._processes.add(process)
            if self._over:
                _kill(process)
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)

    def interrupt(self) -> None:
        with self._lock:
            self._over = True
            for process in self._processes:
                _kill(process)


@contextlib.contextmanager
def workers(host: object, count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads wait for commands of the host: after Ctrl-C none of them is waited for."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(host, Interruptible):
                host.interrupt()
            raise


def results(futures: Iterable[Future[T]]) -> list[T]:
    """Of all, in their order. It looks up now and then: a signal that comes just before a thread begins to wait does not wake it."""
    found = []
    for future in futures:
        while not future.done():
            wait([future], timeout=LOOK_SECONDS)
        found.append(future.result())
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
