"""One at a time among programs that were given the same lock file."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def alone(lock: str | None) -> Iterator[None]:
    """Waits for the lock, where a file is given."""
    with open(lock or "/dev/null", "w") as file:
        if lock:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
