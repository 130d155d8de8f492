"""One line out of a channel, with the time limit that channels do not have."""

import threading
import time
from collections.abc import Callable

from firstlight.core.errors import HostError
from firstlight.core.ports import Channel

LOOK_SECONDS = 0.1


def first_line(channel: Channel, timeout: float, hopeless: Callable[[], bool]) -> bytes:
    """One line, read by a thread because a channel has no time limit.

    Raises HostError `supervisor-gone` at the end of the stream; `supervisor-hangs` after `timeout` seconds, or when it is hopeless.
    """
    box: list[bytes | Exception] = []
    thread = threading.Thread(target=_read_line, args=(channel, box), daemon=True)
    thread.start()
    until = time.monotonic() + timeout
    while thread.is_alive() and time.monotonic() < until:
        thread.join(LOOK_SECONDS)
        if not box and hopeless():
            break
    if not box:
        raise HostError(
            "supervisor-hangs",
            "the supervisor does not answer",
            evidence=(f"waited at most {timeout:g} s",),
            hint="`kill -CONT` its pid where somebody stopped it (firstlight describe RUN); firstlight down RUN ends such a run too",
        )
    if isinstance(box[0], Exception):
        raise box[0]
    return box[0]


def _read_line(channel: Channel, box: list[bytes | Exception]) -> None:
    data = b""
    try:
        while b"\n" not in data:
            piece = channel.receive()
            if not piece:
                raise HostError("supervisor-gone", "the supervisor closed the connection")
            data += piece
        box.append(data.partition(b"\n")[0])
    except Exception as e:
        box.append(e)
