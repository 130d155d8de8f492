"""One file on its way: the segments that tile it, its part file, its journal, and the hash that follows the bytes."""

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from firstlight.fetch.journal import Journal, Range
from firstlight.fetch.source import RemoteFile

MIN_SPLIT = 8 << 20
RECORD_BYTES, RECORD_SECONDS = 8 << 20, 0.5
CATCH_UP = 4 << 20


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes [start, end) of a file, written up to `at`. end is None until the size is known. dead: its file began anew.

    ranged: the answer that fills it is one of a server that knows ranges."""

    start: int
    end: int | None
    at: int
    owned: bool = False
    ranged: bool = False
    dead: bool = False
    recorded: int = 0
    recorded_at: float = 0.0

    @property
    def done(self) -> bool:
        return self.end is not None and self.at >= self.end


class FileJob:
    """Thread-safe. `size`: None until an answer or the end tells it."""

    def __init__(self, file: RemoteFile, part: Path) -> None:
        self.file, self.part, self.size = file, part, file.size
        self.state, self.attempts, self.ranged = "waiting", 0, True
        self.whole_answers = 0
        self.lock = threading.Lock()
        self._hash_lock = threading.Lock()
        self._fd = -1
        self._journal: Journal | None = None
        self.segments: list[Segment] = []
        self._sha256, self.hashed = hashlib.sha256(), 0

    def open(self) -> None:
        """Creates or continues the part file. Raises OSError."""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(self.part, self.file.identity, self.file.size)
        self._fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.segments = tile(self._journal.ranges, self.size)
        self.state = "fetching"

    @property
    def opened(self) -> bool:
        return self._fd >= 0

    @property
    def bytes_done(self) -> int:
        return sum(s.at - s.start for s in tuple(self.segments))  # a copy: a split may insert one meanwhile

    @property
    def complete(self) -> bool:
        return self.opened and all(s.done for s in self.segments)

    def claim(self) -> Segment | None:
        """A segment that nobody works on."""
        with self.lock:
            segment = next((s for s in self.segments if not s.owned and not s.done), None)
            if segment is None or (not self.ranged and any(s.owned for s in self.segments)):
                return None
            return self._own(segment)

    def split(self) -> Segment | None:
        """The second half of the longest rest that somebody works on, when it is worth a connection."""
        with self.lock:
            longest = self._longest()
            if longest is None or longest.end is None:
                return None
            middle = (longest.at + longest.end) // 2
            half = Segment(middle, longest.end, middle, ranged=True)
            longest.end = middle
            self.segments.insert(self.segments.index(longest) + 1, half)
            return self._own(half)

    def rest(self) -> int:
        """Bytes of the longest segment in work; 0 when it is not worth a split."""
        with self.lock:
            longest = self._longest()
            return longest.end - longest.at if longest and longest.end is not None else 0

    def write(self, segment: Segment, view: memoryview) -> int:
        """Puts arrived bytes where they belong; returns how many still belonged to the segment. Raises OSError."""
        with self.lock:
            at, room = segment.at, len(view) if segment.end is None else segment.end - segment.at
        if segment.dead:
            return 0
        view = view[: max(0, room)]
        written = 0
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], at + written)
        self._hash_arrived(at, view)
        with self.lock:
            segment.at = at + written
        self._record(segment)
        return written

    def release(self, segment: Segment) -> None:
        """Given back; from then on another connection may land the file and close it."""
        try:
            self._record(segment, now=True)
        finally:
            with self.lock:
                segment.owned = False

    def ended(self, segment: Segment) -> None:
        """The body of unknown length is over: the size is what came."""
        with self.lock:
            segment.end = self.size = segment.at

    def restart(self, *, ranged: bool | None = None) -> Segment:
        """Throws away what is here; one segment from 0, owned by the caller. ranged=False: the server only sends whole files."""
        with self._hash_lock, self.lock:
            for segment in self.segments:
                segment.dead = True
            if ranged is not None:
                self.ranged = ranged
            self._sha256, self.hashed = hashlib.sha256(), 0
            whole = Segment(0, self.size, 0)
            self.segments = [whole]
            self._own(whole)
        os.ftruncate(self._fd, 0)
        assert self._journal is not None
        self._journal.restart()
        return whole

    def catch_up(self, limit: int = CATCH_UP) -> int:
        """Hashes bytes that lie on the disk but were not hashed as they came (a resumed or split file). Returns how many."""
        if not self.opened or not self._hash_lock.acquire(blocking=False):
            return 0
        try:
            return self._hash_from_disk(limit)
        finally:
            self._hash_lock.release()

    def digest(self) -> str:
        """sha256 of the complete part file; only what was not hashed yet is read. Raises OSError."""
        with self._hash_lock:
            while self._hash_from_disk(CATCH_UP):
                pass
            return self._sha256.hexdigest()

    def git_digest(self) -> str:
        """The part file's git blob id, which is how hubs name small files."""
        h = hashlib.sha1(b"blob %d\0" % os.fstat(self._fd).st_size, usedforsecurity=False)
        at = 0
        while block := os.pread(self._fd, 1 << 20, at):
            h.update(block)
            at += len(block)
        return h.hexdigest()

    def finish(self, target: Path) -> None:
        """The part becomes the file, atomically. Raises OSError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self.close()
        self.part.replace(target)
        if self._journal:
            self._journal.remove()
        self.state = "done"

    def discard(self) -> None:
        """Wrong bytes are not kept for the next attempt."""
        self.close()
        self.part.unlink(missing_ok=True)
        if self._journal:
            self._journal.remove()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._journal:
            self._journal.close()

    def _own(self, segment: Segment) -> Segment:
        segment.owned, segment.recorded, segment.recorded_at = True, segment.at, time.monotonic()
        return segment

    def _longest(self) -> Segment | None:
        if not self.ranged or self.size is None:
            return None
        busy = [s for s in self.segments if s.owned and s.ranged and s.end is not None and s.end - s.at >= 2 * MIN_SPLIT]
        return max(busy, key=lambda s: (s.end or 0) - s.at, default=None)

    def _record(self, segment: Segment, *, now: bool = False) -> None:
        due = segment.at - segment.recorded >= RECORD_BYTES or time.monotonic() - segment.recorded_at >= RECORD_SECONDS
        if (due or now) and not segment.dead and self._journal:
            self._journal.record(segment.recorded, segment.at)
            segment.recorded, segment.recorded_at = segment.at, time.monotonic()

    def _hash_arrived(self, at: int, view: memoryview) -> None:
        """From memory when these are the next bytes; otherwise they are read back later, from the page cache."""
        if at == self.hashed and self._hash_lock.acquire(blocking=False):
            try:
                if at == self.hashed:
                    self._sha256.update(view)
                    self.hashed += len(view)
            finally:
                self._hash_lock.release()

    def _hash_from_disk(self, limit: int) -> int:
        n = min(self._prefix() - self.hashed, limit)
        if n <= 0:
            return 0
        block = os.pread(self._fd, n, self.hashed)
        self._sha256.update(block)
        self.hashed += len(block)
        return len(block)

    def _prefix(self) -> int:
        """How far the file is written without a hole."""
        with self.lock:
            at = 0
            for segment in self.segments:
                at = segment.at
                if not segment.done:
                    break
            return at


def tile(ranges: list[Range], size: int | None) -> list[Segment]:
    """Segments that cover the whole file: those on the disk done, the holes to be fetched."""
    if size is None:
        return [Segment(0, None, 0)]
    segments, at = [], 0
    for start, end in [(a, min(b, size)) for a, b in ranges if a < size]:
        if start > at:
            segments.append(Segment(at, start, at))
        segments.append(Segment(start, end, end))
        at = end
    if at < size or not segments:
        segments.append(Segment(at, size, at))
    return segments
