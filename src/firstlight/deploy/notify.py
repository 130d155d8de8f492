"""systemd's notification protocol (sd_notify(3)): one datagram a message to the socket that the manager named."""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends where a manager listens, does nothing elsewhere. watchdog_seconds: how often WATCHDOG=1 is expected, None: never."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self.address, self.watchdog_seconds = address, watchdog_seconds

    @classmethod
    def from_environment(cls, env: Mapping[str, str], pid: int) -> "Notifier":
        """NOTIFY_SOCKET and WATCHDOG_USEC, the latter only where WATCHDOG_PID is this process."""
        micros = env.get("WATCHDOG_USEC", "")
        meant = env.get("WATCHDOG_PID", str(pid)) == str(pid)
        return cls(env.get("NOTIFY_SOCKET") or None, int(micros) / 1e6 if micros.isdigit() and meant else None)

    def send(self, *, patience: float = 0.0, **fields: object) -> bool:
        """`send(READY=1, STATUS="…")`. False where the manager is busy: its queue (10 messages in a new network namespace) stayed full.

        A manager that is gone costs the message, never the service. patience: seconds to wait for room in the queue.
        """
        if self.address is None:
            return True
        text = "\n".join(f"{name}={_one_line(value)}" for name, value in fields.items())
        target = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
                s.settimeout(patience)
                s.connect(target)
                s.send(os.fsencode(text))
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True
        return True

    def extend(self, seconds: float) -> None:
        """The start (or the stop) may take `seconds` more from now on."""
        self.send(EXTEND_TIMEOUT_USEC=int(seconds * 1e6))


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
