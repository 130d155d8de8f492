"""Whose server answers on the run's port. A 200 alone proves nothing: a stranger may have taken the port, or be about to leave it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from . import procfs
from .members import Member, owner_line
from .procfs import Listener

_ANY = frozenset({"0.0.0.0", "::"})


class Verdict(NamedTuple):
    """whose: `ours`, `stranger`, `nobody` (no such socket, or one that is just being closed), `unseen` (this kernel shows no table).

    sockets: inodes of the listeners that were judged. holder: the stranger, for people.
    """

    whose: str
    sockets: frozenset[str] = frozenset()
    holder: str | None = None
    holder_pid: int | None = None


def judge(address: str, port: int, found: Sequence[Member]) -> Verdict:
    """Whether every socket that can answer at address:port is held by one of these members of the run."""
    table = procfs.listeners(port)
    if table is None:
        return Verdict("unseen")
    answering = _answering(table, address)
    sockets = frozenset(listener.inode for listener in answering)
    if not answering:
        return Verdict("nobody")
    pids = [m.process.pid for m in found]
    held = _held(pids)
    foreign = [listener for listener in answering if listener.inode not in held]
    return _stranger(foreign, sockets, pids) if foreign else Verdict("ours", sockets)


def _answering(table: Sequence[Listener], address: str) -> list[Listener]:
    """The kernel prefers a socket that is bound to the very address to one that is bound to all."""
    exact = [listener for listener in table if listener.address == address]
    any_address = [listener for listener in table if listener.address in _ANY]
    return (exact or any_address) if _numeric(address) else list(table)


def _numeric(address: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        return False
    return True


def _held(pids: Sequence[int]) -> set[str]:
    return {text[8:-1] for pid in pids for text in procfs.descriptors(pid) if text.startswith("socket:[")}


def _stranger(foreign: Sequence[Listener], sockets: frozenset[str], pids: Sequence[int]) -> Verdict:
    """Who holds what no member holds. A socket in nobody's hands is one that is being closed, unless we may not look into its owner."""
    others = procfs.holders({listener.inode for listener in foreign}, [p.pid for p in procfs.processes()])
    if others:
        return Verdict("stranger", sockets, owner_line(others[0]), others[0])
    own = {os.geteuid(), *(uid for pid in pids if (uid := procfs.owner(pid)) is not None)}
    if foreign[0].uid not in own:
        return Verdict("stranger", sockets, f"a process of uid {foreign[0].uid} that cannot be looked into")
    hidden = [pid for pid in pids if not os.access(f"/proc/{pid}/fd", os.R_OK)]
    return Verdict("ours" if hidden else "nobody", sockets)
