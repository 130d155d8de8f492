"""The bytes: many connections over many files, adapted to the link, resumable, hashed as they arrive. Threads; memory is flat."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firstlight.core.errors import HostError
from firstlight.core.fetch import FileProgress
from firstlight.fetch.disk import disk_error
from firstlight.fetch.job import FileJob, Segment
from firstlight.fetch.limit import RateLimit, wait_seconds
from firstlight.fetch.source import Body, Changed, RemoteFile, Retry

FIRST_CONNECTIONS = 4
# a large piece costs as many turns of the interpreter as a small one; of the pages, a slow connection touches only what it fills
BUFFER, LATER_BUFFER = 4 << 20, 1 << 20  # of the first connections; of those that come because each one is slow
TUNE_SECONDS, TUNE_AGAIN = 1.0, 20.0
SPLIT_SECONDS = 1.0
WRONG_BYTES_ATTEMPTS = 3
WHOLE_ANSWERS = 20
Opener = Callable[[RemoteFile, int, int | None], Body]
Landed = Callable[[FileJob, str], None]


@dataclass
class Settings:
    """connections: at most so many. patience: seconds without one new byte, whatever was tried, before the fetch gives up.

    silence: seconds without a byte after which one connection counts as broken.
    """

    connections: int = 16
    limit_rate: float | None = None
    patience: float = 300.0
    silence: float = 30.0


@dataclass
class Share:
    """What the workers share, under `Transfer.changed`."""

    allowed: int = FIRST_CONNECTIONS
    active: int = 0
    received: int = 0
    pause_until: float = 0.0
    slowed_at: float = -1e9
    last_byte: float = field(default_factory=time.monotonic)
    failures_in_a_row: int = 0
    note: str | None = None
    error: BaseException | None = None

    @property
    def was_slowed(self) -> bool:
        """The server asked for fewer requests: the rate says nothing about the link."""
        return self.slowed_at > 0


class Transfer:
    """`run` blocks until every job has landed, one has failed, or `cancel` was called. landed: called with (job, sha256) in a worker."""

    def __init__(self, jobs: Sequence[FileJob], opener: Opener, landed: Landed, settings: Settings) -> None:
        self.jobs, self._opener, self._landed, self._settings = list(jobs), opener, landed, settings
        self._unfinished, self._begun = deque(self.jobs), time.monotonic()
        self.stop = threading.Event()
        self.limit = RateLimit(settings.limit_rate, self.stop)
        self.changed = threading.Condition()
        self.share = Share(allowed=min(FIRST_CONNECTIONS, settings.connections))
        self._bodies: set[Body] = set()
        self._finishing: set[FileJob] = set()

    def run(self) -> None:
        """Raises FirstlightError; Changed when the source no longer has what it listed."""
        workers = [
            threading.Thread(target=self._worker, args=(i,), name=f"fetch-{i}", daemon=True) for i in range(self._settings.connections)
        ]
        tuner = threading.Thread(target=self._tune, name="fetch-tune", daemon=True)
        hasher = threading.Thread(target=self._hash_behind, name="fetch-hash", daemon=True)
        threads = [*workers, tuner, hasher]
        for thread in threads:
            thread.start()
        for thread in workers:
            thread.join()
        self.stop.set()
        tuner.join()
        hasher.join()
        for job in self.jobs:
            job.close()
        if self.share.error is not None:
            raise self.share.error

    def cancel(self) -> None:
        """Ends at once; everything that arrived stays for the next time."""
        self.stop.set()
        with self.changed:
            bodies = list(self._bodies)
            self.changed.notify_all()
        for body in bodies:
            body.abort()

    def progress(self) -> list[FileProgress]:
        return [
            FileProgress(
                name=j.file.name, bytes_done=(j.size or 0) if j.state == "done" else j.bytes_done, bytes_total=j.size, state=j.state
            )
            for j in self.jobs
        ]

    # one connection

    def _worker(self, index: int) -> None:
        buffer = memoryview(b"")
        try:
            while (claim := self._claim(index)) is not None:
                buffer = buffer or memoryview(bytearray(BUFFER if index < FIRST_CONNECTIONS else LATER_BUFFER))
                self._work(index, *claim, buffer)
        except BaseException as e:
            self._fail(e)

    def _claim(self, index: int) -> tuple[FileJob, Segment | None] | None:
        """The next piece of work; waits for some while others may still give theirs back."""
        with self.changed:
            while not self.stop.is_set():
                while self._unfinished and self._unfinished[0].state == "done":
                    self._unfinished.popleft()
                if index < self.share.allowed and time.monotonic() >= self.share.pause_until and (found := self._next()):
                    self.share.active += 1
                    return found
                if not self._unfinished:
                    return None
                self.changed.wait(0.05 if time.monotonic() < self.share.pause_until else 0.25)
        return None

    def _next(self) -> tuple[FileJob, Segment | None] | None:
        """A file that is begun, then a new file, then half of what another connection has left. No segment: the file is to be landed."""
        for job in self._unfinished:
            if job.state == "waiting":
                self._open(job)
            if job.state == "fetching":
                segment = job.claim()
                if segment is not None:
                    return job, segment
                if self._may_land(job):
                    return job, None
        longest = max((j for j in self._unfinished if j.state == "fetching"), key=FileJob.rest, default=None)
        half = longest.split() if longest and longest.rest() >= SPLIT_SECONDS * self._pace() else None
        return (longest, half) if longest and half else None

    def _pace(self) -> float:
        """Bytes per second of one connection so far: what it has left for less than a second, another request would not bring sooner."""
        return self.share.received / max(time.monotonic() - self._begun, 0.05) / max(1, self.share.active)

    def _may_land(self, job: FileJob) -> bool:
        """True once per complete file."""
        if job in self._finishing or not job.complete or any(s.owned for s in job.segments):
            return False
        self._finishing.add(job)
        return True

    def _open(self, job: FileJob) -> None:
        try:
            job.open()
        except OSError as e:
            raise disk_error(e, job.part) from e

    def _work(self, index: int, job: FileJob, segment: Segment | None, buffer: memoryview) -> None:
        try:
            if segment is not None:
                self._pull(index, job, segment, buffer)
                with self.changed:
                    segment = None if self._may_land(job) else segment
            if segment is None:
                self._land(job)
        except Retry as e:
            self._put_off(e)
        except OSError as e:
            raise disk_error(e, job.part) from e
        finally:
            with self.changed:
                self.share.active -= 1
                self.changed.notify_all()

    def _pull(self, index: int, job: FileJob, segment: Segment, buffer: memoryview) -> None:
        """Bytes of one segment, until it is full, shrunk by a split, or this connection is one too many. Raises Retry, Changed."""
        try:
            body = self._opener(job.file, segment.at, segment.end)
        except BaseException:
            job.release(segment)
            raise
        with self.changed:
            self._bodies.add(body)
        try:
            segment = self._agree(job, segment, body)
            while not segment.done and not segment.dead and not self.stop.is_set() and index < self.share.allowed:
                room = self.limit.read_size(len(buffer))
                if segment.end is not None:
                    room = min(room, segment.end - segment.at)
                n = body.readinto(buffer[:room])
                if n == 0:
                    self._body_over(job, segment)
                    break
                job.write(segment, buffer[:n])
                self._received(n)
                self.limit.take(n)
        finally:
            with self.changed:
                self._bodies.discard(body)
            body.close()
            job.release(segment)

    def _agree(self, job: FileJob, segment: Segment, body: Body) -> Segment:
        """The answer must be about the bytes that were listed, and start where it was asked to."""
        if body.total is not None and job.size is None and body.start == segment.at == 0:
            with job.lock:
                job.size = segment.end = body.total
        if body.total is not None and job.size is not None and body.total != job.size:
            raise Changed(f"{job.file.name}: {body.total} bytes now, {job.size} listed")
        if body.start == segment.at or segment.dead:
            segment.ranged = body.ranged
            return segment
        job.whole_answers += 1
        if job.whole_answers > WHOLE_ANSWERS:
            raise HostError("network-failed", f"{job.file.name} breaks off each time, and the server cannot go on in the middle of a file",
                            evidence=(f"{job.whole_answers} attempts",), hint="try later, or another mirror")  # fmt: skip
        if body.start != 0:
            raise Retry(f"the server answered from byte {body.start} on where {segment.at} was asked for")
        if job.whole_answers == 1:
            raise Retry("the server sent the whole file where a part was asked for")
        return job.restart(ranged=False)

    def _body_over(self, job: FileJob, segment: Segment) -> None:
        if segment.end is None:
            job.ended(segment)
        elif not self.stop.is_set():
            raise Retry("the answer ended early")

    def _received(self, n: int) -> None:
        share = self.share
        with self.changed:
            share.received += n
            share.last_byte, share.failures_in_a_row, share.note = time.monotonic(), 0, None

    # a file is there

    def _land(self, job: FileJob) -> None:
        """Checks the whole file and moves it to its place; wrong bytes are fetched anew a few times, then are an error."""
        job.state = "verifying"
        sha256 = job.digest()
        wrong = mismatch(job, sha256)
        if wrong is None:
            self._landed(job, sha256)
            return
        job.attempts += 1
        if job.attempts >= WRONG_BYTES_ATTEMPTS:
            job.discard()
            raise HostError("wrong-bytes", f"{job.file.name} arrives with other bytes than the source promises", evidence=wrong,
                            hint="a proxy or mirror may serve a broken copy: try without it, or another HF_ENDPOINT")  # fmt: skip
        fresh = job.restart()
        with self.changed:
            self._finishing.discard(job)
            fresh.owned = False
            job.state = "fetching"

    # trouble

    def _put_off(self, trouble: Retry) -> None:
        """All connections wait: what one meets, the others meet too. Gives up when nothing came for `patience` seconds."""
        now, share = time.monotonic(), self.share
        with self.changed:
            share.failures_in_a_row += 1
            wait = wait_seconds(share.failures_in_a_row, trouble.after)
            share.pause_until = max(share.pause_until, now + wait)
            share.note = f"{trouble.reason}; trying again in {wait:.0f} s" if wait >= 1 else trouble.reason
            if trouble.slower:
                share.allowed, share.slowed_at = max(1, share.allowed // 2), now
        if now - share.last_byte > self._settings.patience:
            raise HostError(
                "network-failed",
                "no byte has come for a long time",
                evidence=(trouble.reason, f"waited {self._settings.patience:.0f} s"),
                hint="the same command goes on where this one stopped",
            )

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            if self.share.error is None and not (self.stop.is_set() and isinstance(error, Retry)):
                self.share.error = error
        self.cancel()

    # beside the connections

    def _tune(self) -> None:
        """Half as many connections more while each step brings at least 8 %; a step that does not is taken back, and tried again later."""
        base, step, settled_at, before, then = 0.0, 0, 0.0, 0, time.monotonic()
        while not self.stop.wait(TUNE_SECONDS):
            now = time.monotonic()
            rate, before, then = (self.share.received - before) / (now - then), self.share.received, now
            if self.limit.bytes_per_second or self.share.slowed_at > now - TUNE_AGAIN:
                step, settled_at = 0, now
                continue
            if step and rate < base * 1.08:
                self._allow(self.share.allowed - step)
                step, settled_at = 0, now
            elif step or now - settled_at >= TUNE_AGAIN or not settled_at:
                base, step = rate, self._allow(self.share.allowed + max(1, self.share.allowed // 2))

    def _allow(self, connections: int) -> int:
        """Returns how many more these are than before."""
        with self.changed:
            before, self.share.allowed = self.share.allowed, max(1, min(connections, self._settings.connections))
            self.changed.notify_all()
            return self.share.allowed - before

    def _hash_behind(self) -> None:
        """Hashes what was resumed or came out of order while the rest still arrives."""
        while not self.stop.is_set():
            if not sum(job.catch_up() for job in self.jobs if job.state == "fetching"):
                self.stop.wait(0.1)


def mismatch(job: FileJob, sha256: str) -> tuple[str, ...] | None:
    """What was found and what was promised; None when the bytes are right as far as the source lets us know."""
    file = job.file
    if file.sha256 is not None:
        return None if sha256 == file.sha256 else (f"sha256 found    {sha256}", f"sha256 promised {file.sha256}")
    if file.git_sha1 is not None:
        found = job.git_digest()
        return None if found == file.git_sha1 else (f"git blob found    {found}", f"git blob promised {file.git_sha1}")
    return None
