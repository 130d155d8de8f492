"""The supervisor's events, once each and in order, however often the connection to its host is lost."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

from firstlight.app.session import Session
from firstlight.core.errors import EngineError, FirstlightError

AGAIN_SECONDS = 0.5
UNREACHABLE_SECONDS = 600.0
PAUSE_SECONDS = 2.0
PAUSE_SECONDS_ELSEWHERE = 15.0  # a command there
STOPPED_MEANWHILE = "stopped-meanwhile"


def supervisor_events(session: Session, from_byte: int = 0) -> "asyncio.Queue[Any]":
    """The supervisor's events as a queue, None when the supervisor is gone."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def read() -> None:
        try:
            for event in through_cuts(session.supervisor, from_byte):
                loop.call_soon_threadsafe(queue.put_nowait, event)
            loop.call_soon_threadsafe(queue.put_nowait, None)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=read, name="supervisor-events", daemon=True).start()
    return queue


def through_cuts(client: Any, from_byte: int = 0, *, hold: bool = False) -> Iterator[Any]:
    """Every event of the supervisor once; a connection that is lost is made again, and reading goes on from the right byte.

    hold: as of `SupervisorClient.events`. Ends when the supervisor is gone, or its host cannot be reached for ten minutes.
    """
    byte, seen, last = from_byte, False, time.monotonic()
    while True:
        try:
            for event in client.events(byte, hold=hold):
                if event.kind == "supervisor-died":
                    return  # what follows is the guardian's
                byte, last, seen = event.byte, time.monotonic(), event.kind == "ended"
                yield event
            gone = seen or client.host.is_local or not client.status().answering
        except FirstlightError:
            gone = client.host.is_local
        if gone and not seen and not client.host.is_local:
            yield from client.past_events(byte)  # what was written after the cut
        if gone or time.monotonic() - last > UNREACHABLE_SECONDS:
            return
        time.sleep(AGAIN_SECONDS)


class Pauses:
    """Says once when somebody stopped the supervisor (SIGSTOP), and once when it goes on: nothing at all would be heard meanwhile."""

    def __init__(self, session: Session) -> None:
        self._session, self._stopped = session, False
        self._every = PAUSE_SECONDS if session.host.is_local else PAUSE_SECONDS_ELSEWHERE
        self._due = time.monotonic() + self._every

    async def look(self) -> None:
        if time.monotonic() < self._due:
            return
        pid = await asyncio.to_thread(self._session.supervisor.paused)
        self._due = time.monotonic() + self._every
        if (pid is not None) == self._stopped:
            return
        self._stopped = pid is not None
        told = f"somebody stopped the supervisor: `kill -CONT {pid}` lets it go on, `firstlight down {self._session.name}` ends the run"
        self._session.emitter.emit("say", text=told if self._stopped else "the supervisor goes on")


def was_stopped(session: Session) -> bool:
    """Whether somebody told the supervisor of the session's attempt to end, and it did."""
    if session.supervisor is None:
        return False
    try:
        status = session.supervisor.status()
    except FirstlightError:
        return False
    return bool(status.state == "stopped" and status.reason == "stopped")


def stopped_meanwhile(session: Session, doing: str = "started") -> EngineError:
    """`firstlight down` elsewhere, or a SIGTERM to the supervisor: nothing failed, so that there is nothing to diagnose or to heal."""
    return EngineError(
        STOPPED_MEANWHILE,
        f"the run was stopped while it {doing}",
        evidence=("its supervisor was told to stop: by `firstlight down`, or by a signal",),
        hint=f"firstlight up {session.intent.model}",
    )


def supervisor_gone(session: Session) -> EngineError:
    """Somebody ended the supervisor: its guardian ends the engine, else the sweep that follows."""
    record = f"{session.folder.attempt_there}/supervisor.log" if session.folder else ""
    return EngineError(
        "supervisor-killed",
        "the supervisor of this run is gone",
        evidence=(f"its own output: {record}",),
        hint=f"firstlight up {session.intent.model}",
    )
