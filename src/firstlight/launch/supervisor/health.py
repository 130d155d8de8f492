"""Ready, healthy, alive: asked over HTTP without ever blocking the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import procfs
from .ending import send
from .http_probe import Answer, Probe
from .listener import Verdict, judge
from .liveness import Liveness
from .loop import Task
from .members import members

if TYPE_CHECKING:
    from .supervisor import Supervisor

STARTING_SECONDS = 0.1
SOONEST_SECONDS = 0.02
SERVING_SECONDS = 2.0
LOOK_SECONDS = 1.0


class Health:
    """Until ready every 0.02 to 0.1 s, then every 2 s. A 200 counts only where it is proven to be the engine's own."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._probes: set[Probe] = set()
        self.last: dict[str, Any] = {}
        self._stranger: str | None = None
        self._proven: frozenset[str] | None = None
        self._looked = self._begun = 0.0
        self._liveness: Liveness | None = None

    def task(self) -> Task:
        self.last, self._liveness, self._stranger, self._proven = {}, None, None, None
        self._begun = time.monotonic()
        alive_at = time.monotonic()
        while True:
            if not any(self._probes) and self._s.spec.get("port"):
                self._ask_health()
            if self._liveness is not None and time.monotonic() >= alive_at and not self._paused():
                alive_at = time.monotonic() + self._liveness.interval
                self._liveness.tick()
            often = SERVING_SECONDS if self._liveness is None else min(SERVING_SECONDS, self._liveness.interval)
            yield self._soon() if self._s.ready_seconds is None else often

    def _soon(self) -> float:
        """Two percent of the time that the start took so far: what is ready in half a second is not told a tenth of one later."""
        return min(STARTING_SECONDS, max(SOONEST_SECONDS, (time.monotonic() - self._begun) / 50))

    def _ask_health(self) -> None:
        self.ask(str(self._s.spec.get("health_path") or "/health"), self._answered, timeout=5.0)

    def ask(self, path: str, done: Callable[[Answer], None], *, timeout: float, body: Mapping[str, Any] | None = None) -> None:
        env = self._s.engine.environment if self._s.engine else {}
        key = next((env[n] for n in self._s.spec.get("secret_files") or {} if n in env and "API_KEY" in n), None)
        probe = Probe(self._s.loop.selector, self._address(), path, done, timeout=timeout, body=body, key=key)
        if not probe.over:
            self._probes.add(probe)

    def _address(self) -> tuple[str, int]:
        host = str(self._s.spec.get("host") or "127.0.0.1")
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(host, host), int(self._s.spec["port"])

    def expire(self, now: float) -> None:
        for probe in list(self._probes):
            probe.expire(now)
        self._probes = {p for p in self._probes if not p.over}

    def cancel(self) -> None:
        for probe in self._probes:
            probe.cancel()
        self._probes.clear()

    def _answered(self, answer: Answer) -> None:
        if self._s.engine is None or self._s.state not in ("starting", "ready"):
            return
        before = self.last.get("status")
        self.last = {"status": answer.status, "problem": answer.problem, "time": time.time(), "seconds": round(answer.seconds, 4)}
        if self._s.ready_seconds is None:
            self._starting(answer)
        elif (before == 200) != (answer.status == 200) and answer.problem != "timeout":  # busy is not dead
            self._s.event("healthy" if answer.status == 200 else "unhealthy", self.last)

    def _starting(self, answer: Answer) -> None:
        """Ready is a 200 between two looks that found the same sockets, all of them ours: nobody else can have given it."""
        if answer.problem == "refused":
            self._proven = None
            return
        if answer.status != 200 and time.monotonic() - self._looked < LOOK_SECONDS:
            return
        found = self._whose()
        proven, self._proven = self._proven, found.sockets if found.whose == "ours" else None
        if answer.status != 200:
            return
        if found.whose == "unseen" or (self._proven is not None and proven == self._proven):
            self._ready()
        elif self._proven is not None:
            self._ask_health()  # this 200 may be another's; the next one is not

    def _whose(self) -> Verdict:
        """Whose server answers on our port; a stranger's is told once."""
        assert self._s.engine is not None
        self._looked = time.monotonic()
        address, port = self._address()
        found = judge(address, port, members(self._s.engine.claim))
        if found.whose == "stranger" and found.holder != self._stranger:
            self._stranger = found.holder
            self._s.event("port-stolen", {"port": port, "holder": found.holder, "pid": found.holder_pid})
        return found

    def _ready(self) -> None:
        self._s.note_ready()
        wanted = self._s.options.get("liveness")
        if wanted:
            self._liveness = Liveness(
                self.ask,
                self._judged,
                model=str(self._s.spec.get("served_model_name") or ""),
                interval=float(wanted.get("interval_seconds", 30.0)),
                patience=float(wanted.get("patience_seconds", 120.0)),
            )

    def _paused(self) -> bool:
        found = procfs.process(self._s.engine.pid) if self._s.engine else None
        return found is not None and found.state in "Tt"

    def _judged(self, verdict: str, evidence: dict[str, Any]) -> None:
        if self._s.engine is None or self._paused():
            return
        if verdict == "alive":
            self._s.event("alive", evidence)
            return
        found = members(self._s.engine.claim)
        self._s.event("wedged", {**evidence, "processes": [_where(m.process.pid) for m in found]})
        if self._s.policy.enabled:
            # faulthandler writes every Python thread's stack into the log; the death that follows is restarted by the policy
            send([m.process.pid for m in found], 6)
            self._s.loop.start("wedged", self._force())

    def _force(self) -> Task:
        yield 5.0
        if self._s.engine is not None and self._s.state in ("starting", "ready"):
            send([self._s.engine.pid], 9)


def _where(pid: int) -> dict[str, Any]:
    """What a process waits in: name, state, kernel function."""
    found = procfs.process(pid)
    try:
        with open(f"/proc/{pid}/wchan") as file:
            wchan = file.read().strip() or None
    except OSError:
        wchan = None
    return {"pid": pid, "name": found.name if found else None, "state": found.state if found else None, "waits_in": wchan}
