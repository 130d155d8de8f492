"""What clients may ask of the supervisor, and what it says of itself."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from . import procfs
from .control import Client
from .ending import send

if TYPE_CHECKING:
    from .supervisor import Supervisor

VERSION = 1


def status_of(s: Supervisor) -> dict[str, Any]:
    """What the supervisor says of itself, on its socket and in `supervisor.json`."""
    me, engine = procfs.process(os.getpid()), s.engine
    boot = procfs.boot_id()
    return {
        "version": VERSION,
        "run": s.run_id,
        "state": s.state,
        "reason": s.reason,
        "supervisor": {"pid": os.getpid(), "start_ticks": me.start_ticks if me else 0, "boot_id": boot},
        "guardian": {"pid": s.guardian.pid, "start_ticks": s.guardian.start_ticks, "boot_id": boot} if s.guardian else None,
        "engine": {"pid": engine.pid, "start_ticks": engine.start_ticks, "boot_id": boot} if engine else None,
        "cgroup": engine.claim.cgroup if engine else None,
        "members": s.keeper.known(),
        "shared_memory": sorted(s.keeper.shared_memory),
        "gpu_memory": s.keeper.gpu,
        "runtime": s.runtime,
        "socket": s.control.path,
        "port": int(s.spec.get("port") or 0),
        "ready_seconds": s.ready_seconds,
        "seconds": round(time.monotonic() - s.started, 3),
        "restarts": s.restarts,
        "health": s.health.last,
        "log": {"path": s.log.path, "bytes": s.log.bytes, "lost_bytes": s.log.lost, "problem": s.log.problem},
        "events_bytes": s.events.bytes,
        "exit": s.exit,
    }


class Requests:
    """status, events (from a byte on, then live), stop, restart, signal."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor

    def answer(self, client: Client, request: dict[str, Any]) -> None:
        op = request.get("op")
        if op == "status":
            client.reply({"ok": True, **self._s.status()})
        elif op == "events":
            client.holds = bool(request.get("hold"))
            self._stream(client, int(request.get("from_byte") or 0))
        elif op in ("stop", "restart", "signal") and client.left():
            return  # it gave up while we were stopped, and told its user so
        elif op in ("stop", "restart"):
            self._s.waiting += [client] if request.get("wait", True) and op == "stop" else []
            self._s.stop(grace=request.get("grace_seconds"), again=op == "restart")
            if client not in self._s.waiting:
                client.reply({"ok": True, **self._s.status()})
        elif op == "signal":
            self._pass_signal(client, str(request.get("signal")))
        else:
            client.reply({"ok": False, "error": f"unknown request: {op}"})

    def _stream(self, client: Client, start: int) -> None:
        try:
            with open(self._s.events.path, "rb") as file:
                file.seek(start)
                client.send(file.read())
        except OSError:
            pass  # what comes from now on is still sent
        client.wants_events = True

    def _pass_signal(self, client: Client, name: str) -> None:
        number = getattr(signal, name, None)
        if self._s.engine is None or not isinstance(number, signal.Signals):
            client.reply({"ok": False, "error": f"no engine, or no signal {name}"})
            return
        send([self._s.engine.pid], number)
        client.reply({"ok": True})
