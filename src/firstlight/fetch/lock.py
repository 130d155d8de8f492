"""One fetch of a model at a time; the others wait, see its progress, and find its files."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from firstlight.core.fetch import FetchProgress


@contextmanager
def shared_work(folder: Path, on_wait: Callable[[FetchProgress | None], None], stop: threading.Event) -> Iterator[None]:
    """Holds `folder/lock`; the kernel lets go of it when its holder dies. on_wait: what the holder last said, four times a second."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd):
            on_wait(read_progress(folder))
            if stop.wait(0.25):
                break
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True  # some shares know no locks: then nobody waits, and files still land whole, by rename


def publish_progress(folder: Path, progress: FetchProgress) -> None:
    """For those who wait. Progress is never a reason to fail."""
    path = folder / "progress.json"
    try:
        fresh = path.with_name("progress.json.new")
        fresh.write_bytes(msgspec.json.encode(progress))
        fresh.replace(path)
    except OSError:
        pass


def read_progress(folder: Path) -> FetchProgress | None:
    try:
        return msgspec.json.decode((folder / "progress.json").read_bytes(), type=FetchProgress)
    except (OSError, msgspec.DecodeError):
        return None


def is_busy(folder: Path) -> bool:
    """Whether somebody fetches into the folder whose `.firstlight` this is."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)
