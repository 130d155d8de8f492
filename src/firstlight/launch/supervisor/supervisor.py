"""The supervisor of one run: starts its engine, knows at once when it dies, answers on its socket, ends it and proves it."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping
from typing import Any

from . import engine as engines
from . import procfs
from .children import Children
from .control import Client, Control
from .ending import port_holders, proof, send, sweep, wake
from .headstart import HeadStart
from .health import Health
from .inquest import Inquest
from .keeping import Keeper
from .logfile import EngineLog
from .loop import Loop, Task
from .members import Claim, members, remove_cgroup
from .oom import OomWatch
from .policy import RestartPolicy
from .portclaim import PortClaim, claim_port
from .records import EventFile, give_up_reserve, keep_reserve, visible_arguments, visible_environment, write_json
from .requests import VERSION, Requests, status_of

HOLDER_SECONDS = 15.0
ONE_REQUEST_SECONDS = 0.5


class Supervisor:
    """States: starting, ready, stopping, restarting, stopped, failed; the last two are final."""

    def __init__(self, folder: str, request: Mapping[str, Any], guardian: int | None = None) -> None:
        self.folder, self.request = folder, request
        self.guardian = procfs.process(guardian) if guardian else None
        self.spec: Mapping[str, Any] = request["spec"]
        self.options: Mapping[str, Any] = request.get("options") or {}
        self.run_id = str(request["run"])
        self.loop = Loop(self._signalled, self._turn)
        self.events = EventFile(self._path("supervisor.jsonl"))
        self.children = Children(self.run_id)
        self.policy = RestartPolicy(self.options.get("restart") or {})
        self.runtime = engines.runtime_folder(folder)
        self.control = Control(self.loop.selector, [folder, self.runtime], Requests(self).answer, self._let_go)
        self.log = self._make_log()
        self.health = Health(self)
        self.keeper = Keeper(self)
        self.head_start = HeadStart(self)
        self.inquest = Inquest(self.children, self.run_id, self.options.get("before_restart"), scratch=self.runtime)
        self.engine: engines.Engine | None = None
        self._port_claim: PortClaim | None = None
        self.state = "starting"
        self.reason: str | None = None
        self.restarts = 0
        self.ready_seconds: float | None = None
        self.exit: dict[str, Any] | None = None
        self.waiting: list[Client] = []
        self.started = self._engine_started = time.monotonic()
        self.oom = OomWatch()
        self._stop_requests = self._log_offset = 0
        self._stop_signal = -ONE_REQUEST_SECONDS

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _make_log(self) -> EngineLog:
        try:
            secrets = engines.read_secrets(self.spec.get("secret_files") or {})
        except engines.StartError:
            secrets = {}  # the start itself says so
        return EngineLog(
            self._path("engine.log"),
            max_bytes=int(self.options.get("log_max_bytes", 256 << 20)),
            keep=int(self.options.get("log_keep", 3)),
            secrets=[v.encode() for v in secrets.values()],
            tee=1 if self.options.get("tee") else None,
        )

    # life

    def serve(self) -> int:
        """Runs to the end of the run; returns the exit status: 0 stopped, 5 failed."""
        self.event("supervisor-started", {"pid": os.getpid(), "version": VERSION})
        keep_reserve(self.folder)
        self.loop.start("keep", self.keeper.task())
        self._begin()
        if self.options.get("held"):
            self.loop.start("held", self._expect_holder(HOLDER_SECONDS))
        self.loop.run()
        self.control.close()
        self.events.flush()
        return 5 if self.state == "failed" else 0

    def _expect_holder(self, seconds: float) -> Task:
        yield seconds
        if not any(c.holds for c in self.control.clients):
            self._released()

    def _let_go(self) -> None:
        """Nobody holds the run now."""
        grace = float(self.options.get("hold_grace_seconds") or 0.0)
        if grace > 0:
            self.loop.start("held", self._expect_holder(grace))
        else:
            self._released()

    def _released(self) -> None:
        """A held run ends with the process that wanted it: nobody else would."""
        if self.options.get("held") and self.state not in ("stopped", "failed", "stopping"):
            self.event("released", {})
            self.stop()

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        self.control.broadcast(self.events.write(kind, data))
        if problem := self.children.hook(self.options.get("on_event"), kind, data):
            self.event("hook-failed", {"event": kind, "problem": problem})

    def enter(self, state: str, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self.save()

    def save(self) -> None:
        write_json(self._path("supervisor.json"), self.status())

    def status(self) -> dict[str, Any]:
        return status_of(self)

    # start

    def _begin(self) -> None:
        adopted = self.request.get("adopt")
        try:
            engine = self._adopt(adopted) if adopted else self._start()
        except engines.StartError as e:
            self._cannot_start(e)
            return
        self.engine, self.exit, self.ready_seconds = engine, None, None
        self._engine_started = time.monotonic()
        self.oom = OomWatch()
        self._watch_engine(engine)
        self._record(engine)
        self.enter("starting")
        self._log_offset = self.log.bytes
        self.event("engine-adopted" if adopted else "engine-started", {"pid": engine.pid, "log_offset": self._log_offset})
        self.loop.start("health", self.health.task())
        if self.restarts == 0 and not adopted:
            self.head_start.begin()

    def _start(self) -> engines.Engine:
        port = int(self.spec.get("port") or 0)
        if holders := port_holders(port):
            raise engines.StartError("port-in-use", f"port {port} is held by {'; '.join(holders)}")
        self._port_claim = self._port_claim or claim_port(port)
        if self._port_claim is None:
            raise engines.StartError("port-in-use", f"port {port} is claimed by another firstlight, whose engine has yet to listen there")
        keep = self.options.get("on_supervisor_death") == "keep"
        return engines.start(self.spec, run=self.run_id, folder=self.folder, runtime=self.runtime, keep_on_our_death=keep)

    def _adopt(self, ref: Mapping[str, Any]) -> engines.Engine:
        pid, ticks = int(ref["pid"]), int(ref["start_ticks"])
        if procfs.same(pid, ticks) is None:
            raise engines.StartError("engine-gone", f"pid {pid} is not the engine any more")
        return engines.Engine(pid, ticks, Claim(self.run_id, pid, ticks, ref.get("cgroup"), supervisor=os.getpid()), None, {})

    def _cannot_start(self, error: engines.StartError) -> None:
        self.exit = {"returncode": None, "signal": None, "reason": error.code, "message": str(error), "time": time.time(), "ready": False}
        self.enter("failed", error.code)
        self.event("failed", {"reason": error.code, "message": str(error)})
        self._finish("failed", error.code, Claim(self.run_id), killed=False)

    def _watch_engine(self, engine: engines.Engine) -> None:
        if engine.output is not None:
            self.loop.selector.register(engine.output, selectors.EVENT_READ, lambda events: self._read_output())
        self.keeper.watch(engine.pid)

    def _record(self, engine: engines.Engine) -> None:
        record = {
            "argv": visible_arguments(self.spec["argv"]),
            "env": visible_environment(engine.environment, list(self.spec.get("secret_files") or {})),
            "pid": engine.pid,
            "start_ticks": engine.start_ticks,
            "cgroup": engine.claim.cgroup,
            "time": time.time(),
        }
        write_json(self._path("engine.json"), record)

    # output

    def _read_output(self, *, final: bool = False) -> None:
        if self.engine is None or self.engine.output is None:
            return
        output, turns = self.engine.output, 256 if final else 8
        for _ in range(turns):
            try:
                data = os.read(output, 1 << 18)
            except BlockingIOError:
                break
            if not data:
                self._close_output()
                break
            lost = self.log.lost
            if self.log.write(data):
                self.event("log-rotated", {"path": self.log.path})
            if self.log.lost and not lost:
                self.event("log-lost", {"problem": self.log.problem})
        if final:
            self.log.write(b"", final=True)

    def _close_output(self) -> None:
        if self.engine is not None and self.engine.output is not None:
            self.loop.selector.unregister(self.engine.output)
            os.close(self.engine.output)
            self.engine = self.engine._replace(output=None)

    # death

    def _turn(self) -> None:
        for pid, status in self.children.reap():
            if self.engine is None or pid != self.engine.pid:
                continue
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self.event("paused" if os.WIFSTOPPED(status) else "continued", {"pid": pid})
            else:
                self.engine_exited(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        for kind, code in self.children.ended_hooks():
            if code:
                self.event("hook-failed", {"event": kind, "problem": f"exit status {code}" if code > 0 else f"killed by signal {-code}"})
        self.health.expire(time.monotonic())

    def note_ready(self) -> None:
        self.head_start.end()
        self.ready_seconds = round(time.monotonic() - self._engine_started, 3)
        self.enter("ready")
        self.event("ready", {"seconds": self.ready_seconds, "port": self.spec.get("port")})

    def engine_exited(self, returncode: int | None) -> None:
        """The engine's main process is gone (None: adopted, so that its status is not ours to know)."""
        assert self.engine is not None
        self._read_output(final=True)
        self.health.cancel()
        self.head_start.end()
        self.loop.cancel("health")
        self._note_exit(returncode)
        self.loop.hurry()
        if self.state == "stopping":
            self.event("engine-exited", self.exit or {})
            return
        self.event("died", self.exit or {})
        self._after_death()

    def _note_exit(self, returncode: int | None) -> None:
        assert self.engine is not None
        number = -returncode if returncode is not None and returncode < 0 else None
        self.exit = {
            "returncode": returncode,
            "signal": signal.Signals(number).name if number in set(signal.Signals) else number,
            "oom_killed": self.state != "stopping" and self.oom.struck(killed=number == signal.SIGKILL),
            "time": time.time(),
            "seconds": round(time.monotonic() - self._engine_started, 3),
            "ready": self.ready_seconds is not None,
            "pid": self.engine.pid,
            "log_bytes": self.log.bytes,
            "reason": "stopped" if self.state == "stopping" else "engine-killed" if number else "engine-exited",
        }
        write_json(self._path("exit.json"), self.exit)

    def _after_death(self) -> None:
        delay = self.policy.delay(time.monotonic(), was_ready=self.ready_seconds is not None)
        reason = "crash-loop" if self.policy.crash_loop else (self.exit or {}).get("reason")
        if delay is None:
            self.enter("failed", reason)
            self.event("failed", {"reason": reason})
            self.loop.start("end", self._end_after_death())
        else:
            self.enter("restarting", reason)
            self.event("restarting", {"delay_seconds": delay, "restart": self.restarts + 1})
            self.loop.start("end", self._restart_after_death(delay))

    def _end_after_death(self) -> Task:
        claim = self._claim()
        yield from self._clear(claim, patience=0.5)
        self._finish("failed", self.reason, claim)

    def _restart_after_death(self, delay: float) -> Task:
        claim = self._claim()
        yield from self._clear(claim, patience=0.5)
        self.inquest.begin({**(self.exit or {}), "log_offset": self._log_offset})
        until = time.monotonic() + delay
        while time.monotonic() < until:
            yield until - time.monotonic()
        found = yield from self.inquest.result()
        self.event("diagnosed" if found["made"] else "not-diagnosed", found)
        if not found["restart"]:
            reason = str(found.get("code") or "restart-refused")
            self.event("failed", {"reason": reason, "message": found.get("because"), "diagnosis": found})
            self._finish("failed", reason, claim)
            return
        self._start_again(claim, found.get("code"))

    def _start_again(self, claim: Claim, cause: str | None = None) -> None:
        self._prove(claim)
        self.restarts += 1
        self._begin()
        if self.engine is not None:
            self.event("restarted", {"restarts": self.restarts, "pid": self.engine.pid, "cause": cause})

    # stop

    def stop(self, *, grace: float | None = None, again: bool = False) -> None:
        """Graceful; a second call kills. again: start anew afterwards."""
        self._stop_requests += 1
        if self.state in ("stopped", "failed"):
            return
        seconds = float(self.spec.get("stop_grace_seconds") or 15.0) if grace is None else grace
        if self.state == "stopping":
            seconds = 0.0
        self.enter("stopping")
        self.event("stopping", {"grace_seconds": seconds, "request": self._stop_requests})
        self.loop.cancel("health")
        self.health.cancel()
        self.head_start.end()
        self.loop.start("end", self._stop(seconds, again))

    def _stop(self, grace: float, again: bool) -> Task:
        claim, engine = self._claim(), self.engine
        found = members(claim)
        if engine is not None and procfs.same(engine.pid, engine.start_ticks) and grace > 0:
            send([engine.pid], engines.signal_number(self.spec))
            wake(found)
            until = time.monotonic() + grace
            while procfs.same(engine.pid, engine.start_ticks) and time.monotonic() < until:
                yield 0.05
            if procfs.same(engine.pid, engine.start_ticks):
                self.event("grace-over", {"grace_seconds": grace})
        yield from self._clear(claim, patience=3.0 if grace > 0 else 0.0)
        if again:
            self._start_again(claim)
        else:
            self._finish("stopped", "stopped", claim)

    def _claim(self) -> Claim:
        known = frozenset((pid, ticks) for pid, ticks in self.keeper.known())
        return self.engine.claim._replace(known=known) if self.engine else Claim(self.run_id, supervisor=os.getpid())

    def _clear(self, claim: Claim, *, patience: float) -> Task:
        """Others may leave by themselves for `patience` seconds; then they are killed. Output is read to its end."""
        until = time.monotonic() + patience
        while members(claim) and time.monotonic() < until:
            yield 0.05
        self.keeper.look()
        yield from sweep(claim)
        until = time.monotonic() + 1.0
        while self.engine is not None and self.exit is None and time.monotonic() < until:
            yield 0.01  # its status arrives with the next turn
        self._read_output(final=True)
        self._close_output()

    def _prove(self, claim: Claim, *, killed: bool = True) -> dict[str, Any]:
        port = int(self.spec.get("port") or 0) if killed else 0
        found = proof(claim, port=port, shm=self.keeper.shared_memory, gpu_before=self.keeper.gpu, runtime=None)
        self.exit = {**(self.exit or {"reason": "stopped", "time": time.time()}), "proof": found}
        write_json(self._path("exit.json"), self.exit)
        return found

    def _finish(self, state: str, reason: str | None, claim: Claim, *, killed: bool = True) -> None:
        self.inquest.end()
        found = self._prove(claim, killed=killed)
        remove_cgroup(claim.cgroup)
        self.engine = None
        if self._port_claim is not None:
            self._port_claim.release()  # before anybody can know that the run is over and start at the same port
        self.enter(state, reason)
        self.event("ended", {"state": state, "reason": reason, "clean": found["clean"], "proof": found})
        self.control.stop_listening()
        for client in self.waiting:
            client.reply({"ok": True, **self.status()})
        self.keeper.remove_runtime()
        give_up_reserve(self.folder)
        if self.guardian is not None and procfs.same(self.guardian.pid, self.guardian.start_ticks):
            send([self.guardian.pid], signal.SIGCONT)  # one that somebody stopped would stay, with nothing to wait for
        self.loop.stop()

    # requests

    def _signalled(self, number: int) -> None:
        """Whoever stops a whole group reaches us twice, by ourselves and through the guardian: that is one request, not the second."""
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        before, self._stop_signal = self._stop_signal, time.monotonic()
        if self._stop_signal - before > ONE_REQUEST_SECONDS:
            self.stop()
