"""A port that is ours before anything listens at it: between the choice and the engine's bind lie seconds to minutes.

The claim is a socket in Linux's abstract namespace, named after the port. It belongs to the network namespace, as ports do, so that
all users of a host see it; binding is atomic; and the kernel takes it back when its process ends, however it ends.
"""

from __future__ import annotations

import re
import socket
import sys

_NAME = "firstlight/port/{}"
_SEEN = re.compile(rb"@firstlight/port/(\d{1,5})(?:/|\s|$)", re.MULTILINE)
CHOSEN = "/chosen"  # by an `up` whose supervisor has not started yet; the supervisor's own claim has no such ending


class PortClaim:
    """Held until `release`, or until this process ends."""

    def __init__(self, held: socket.socket | None) -> None:
        self._held = held

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def claim_port(port: int, stage: str = "") -> PortClaim | None:
    """None: another process holds the claim. Where the kernel has no abstract sockets nothing is held, and nobody is kept out."""
    if not sys.platform.startswith("linux") or not port:
        return PortClaim(None)
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0{_NAME.format(port)}{stage}")
    except OSError:
        held.close()
        return None
    return PortClaim(held)


def claimed_ports(table: bytes) -> set[int]:
    """Ports under claim, chosen or supervised. table: /proc/net/unix."""
    return {int(port) for port in _SEEN.findall(table)}
