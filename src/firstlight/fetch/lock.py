"""One fetch of a model at a time; the others wait, see its progress, and find its files."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from firstlight.core.fetch import FetchProgress


@contextmanager
def shared_work(folder: Path, on_wait: Callable[[FetchProgress | None], None], stop: threading.Event) -> Iterator[None]:
    """Holds `folder/lock`; the kernel lets go of it when its holder dies. on_wait: what the holder last said, four times a second."""
    while (fd := claim(folder)) is None:
        on_wait(read_progress(folder))
        if stop.wait(0.25):
            break
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def claim(folder: Path) -> int | None:
    """The lock, held until the descriptor is closed; None while somebody else holds it. Raises OSError.

    A lock whose file was removed (with its model) while we asked for it keeps nobody away: it is asked for anew.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        fd = _opened(folder / "lock")
        if not _try_lock(fd):
            os.close(fd)
            return None
        if _is_at(fd, folder / "lock"):
            return fd
        os.close(fd)


def _opened(path: Path) -> int:
    """To be written to, as network file systems want it; another user's lock in a shared cache is only read."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError as e:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        raise e


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
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
