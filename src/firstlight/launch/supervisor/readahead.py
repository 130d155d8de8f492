"""Reads files into the page cache, in order, several pieces at once, and stops when memory gets short. Nothing is copied to us."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from .kernel import die_with_parent

PIECE = 64 << 20
PRESSURE_PERCENT = 10.0


class ReadAhead:
    """`threads` readers take the next piece of the list: parallel, and still in loading order. short: says why to stop (see `shortage`)."""

    def __init__(
        self, files: list[str], limit_bytes: int, keep_free_bytes: int, threads: int = 4, short: Callable[[int], str | None] | None = None
    ) -> None:
        self._keep_free, self._short = keep_free_bytes, short or shortage
        self._pieces = itertools.takewhile(lambda piece: piece[3] < limit_bytes, _pieces(files))
        self._lock = threading.Lock()
        self._threads = threads
        self.bytes = 0
        self.stopped: str | None = None

    def run(self) -> dict[str, Any]:
        """Reads to the end; returns bytes, seconds and why it stopped: done, memory, pressure or an error."""
        begun = time.monotonic()
        workers = [threading.Thread(target=self._work) for _ in range(self._threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return {"bytes": self.bytes, "seconds": round(time.monotonic() - begun, 3), "stopped": self.stopped or "done"}

    def _work(self) -> None:
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            while self.stopped is None:
                with self._lock:
                    piece = next(self._pieces, None)
                if piece is None:
                    return
                self.stopped = self.stopped or self._short(self._keep_free)
                done = _touch(sink, piece[0], piece[1], piece[2])
                with self._lock:
                    self.bytes += done
        except OSError as e:
            self.stopped = e.strerror or str(e)
        finally:
            os.close(sink)


def _pieces(files: list[str]) -> Iterator[tuple[str, int, int, int]]:
    """(path, offset, length, bytes before it in the whole list)."""
    before = 0
    for path in files:
        size = os.path.getsize(path)
        for offset in range(0, size, PIECE):
            yield path, offset, min(PIECE, size - offset), before + offset
        before += size


def _touch(sink: int, path: str, offset: int, length: int) -> int:
    """Lets the kernel move the piece from the file to nowhere: it stays in the page cache."""
    source = os.open(path, os.O_RDONLY)
    done = 0
    try:
        while done < length:
            sent = os.sendfile(sink, source, offset + done, length - done)
            if sent == 0:
                break
            done += sent
    finally:
        os.close(source)
    return done


def shortage(keep_free: int) -> str | None:
    """`memory` where less than `keep_free` bytes are available, `pressure` where tasks wait for memory; None: go on."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
        if available < keep_free:
            return "memory"
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/pressure/memory") as file:
        some = file.readline()
        if float(some.split("avg10=")[1].split()[0]) > PRESSURE_PERCENT:
            return "pressure"
    return None


def main(request: str) -> int:
    """The request is JSON: files, limit_bytes, keep_free_bytes. Prints the result as JSON."""
    wanted = json.loads(request)
    die_with_parent(signal.SIGKILL)  # nobody would stop it when the engine is ready
    os.nice(5)
    result = ReadAhead(list(wanted["files"]), int(wanted["limit_bytes"]), int(wanted["keep_free_bytes"])).run()
    print(json.dumps(result), flush=True)
    return 0
