"""What Python has no word for: prctl. Nothing else is imported here, because the guardian is to stay small."""

from __future__ import annotations

import ctypes
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans beneath this process become its children instead of init's."""
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: int) -> None:
    """The kernel sends the signal to this process once its parent is dead."""
    libc().prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
