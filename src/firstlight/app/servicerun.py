"""The main process of a service: starts the verified plan under a supervisor, is ready after a verified answer, and stays."""

import asyncio
import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from firstlight.app import flow, gpu_room
from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.ending import end
from firstlight.app.notifying import NotifyProgress
from firstlight.app.progress import Board, PlainProgress
from firstlight.app.reconcile import reconcile
from firstlight.app.remotecode import RECORD, refuse_changed_code
from firstlight.app.services import STRUCTS, ServiceRecord, read_record
from firstlight.app.session import Session, UpOptions
from firstlight.app.stages import failing, hearing, prove, start
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.machine import Machine
from firstlight.core.plan import PlanSet
from firstlight.core.run import TERMINAL, Endpoint, LaunchSpec, Overlay, RunState
from firstlight.deploy.notify import Notifier
from firstlight.deploy.unit import CREDENTIAL
from firstlight.launch.client import Alive, Options, Restart
from firstlight.launch.client import start as start_supervisor
from firstlight.probe.local import LocalHost

# what the supervisor finds before the engine runs, and what another start meets again
PERMANENT = frozenset({"program-not-found", "program-not-startable", "folder-not-found", "secret-unreadable"})
TOO_LATE = ": no answer within "  # verify's words for a request that ran into its time limit
BACKOFF_WINDOW = 1800.0
LONGEST_BACKOFF = 60.0
MESSAGE_SECONDS = 2.0
FIRST_BYTES = 2 << 20
ROOM_SECONDS, ROOM_PATIENCE = 5.0, 600.0
GPU_SECONDS, GPU_PATIENCE = 2.0, 300.0


def run_service(folder: Path) -> int:
    """Until the service is told to stop (0) or its engine is over. Raises FirstlightError."""
    return asyncio.run(ServiceRun(folder, Notifier.from_environment(os.environ, os.getpid())).guarded())


class ServiceRun:
    """One life of a service's main process: every start is a run of its own, with its own folder, log and verdict."""

    def __init__(self, folder: Path, notifier: Notifier) -> None:
        self.folder, self.notifier = folder, notifier
        self.record = read_record(folder)
        self.stages = _stages(self.record)
        names = [s.name for s in self.stages]
        self.progress = NotifyProgress(notifier, self.record.name, names)
        self.session = _session(self.record, folder)
        self.session.emitter.listeners += [self.progress, PlainProgress(Board(f"service {self.record.name}", names))]

    async def guarded(self) -> int:
        """SIGTERM and SIGINT end engine and workers in order. SIGHUP ends nothing: systemd would call that a success, and start nothing."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        task = asyncio.ensure_future(self._serve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            await self._close("stopping", RunState.STOPPED, "service stopped", None)
            return Exit.OK
        except FirstlightError as e:
            e.exit_code = exit_of(e)
            await self._close(f"{e.code}: {e.message}", RunState.FAILED, e.code, int(e.exit_code))
            raise
        return Exit.ENGINE_FAILED  # the supervisor ended the run in order, and nobody asked the service for it

    async def _close(self, status: str, state: RunState, reason: str, code: int | None) -> None:
        self.notifier.send(patience=MESSAGE_SECONDS, STOPPING=1, STATUS=status)
        if self.session.supervisor is not None:
            with suppress(FirstlightError):
                await asyncio.to_thread(self.session.supervisor.stop)
        if self.session.folder is not None:
            with suppress(FirstlightError):
                self.session.folder.update(state=state, reason=reason, exit_code=code)

    async def _serve(self) -> None:
        session = self.session
        await self._back_off()
        make_way(session)
        await self._room()
        await self._gpu_memory()
        with session.store.claim(session.name):
            _open_run(session, self.folder)
            await flow.run_stages(session, self.stages)
        endpoint = prove.endpoint_of(session)
        proven = f"verified {time.strftime('%H:%M:%S')}" if session.verdict else "not verified: left out when it was installed"
        await self._ready(f"serving {endpoint.model} at {endpoint.base_url}, {proven}")
        await self._stay()

    async def _ready(self, status: str) -> None:
        """The one message that must not be lost: a busy manager is waited for."""
        while not await asyncio.to_thread(self.notifier.send, patience=MESSAGE_SECONDS, READY=1, STATUS=status):
            continue

    async def _back_off(self) -> None:
        """1, 2, 4, … seconds after failures in a row, where the manager has no back-off of its own."""
        failures = failures_in_a_row(self.session.store, self.session.name) if self.record.backoff else 0
        if failures:
            seconds = min(LONGEST_BACKOFF, 2.0 ** (failures - 1))
            self.notifier.extend(seconds + 300)
            self.progress.tell(f"waiting {seconds:g} s after {failures} failed start{'s' if failures > 1 else ''}")
            await asyncio.sleep(seconds)

    async def _room(self) -> None:
        """A disk that is full at the start (a night's logs, a boot) is waited for; five quick failures would end the service for good."""
        root, deadline = self.session.store.root, time.monotonic() + ROOM_PATIENCE
        while not has_room(root):
            if time.monotonic() > deadline:
                raise FirstlightError("no-space", "the disk stayed full", evidence=(str(root),), hint="free some space there")
            self.progress.tell(f"waiting for space: the disk of {root} is full")
            self.notifier.extend(60)
            await asyncio.sleep(ROOM_SECONDS)

    async def _gpu_memory(self) -> None:
        """What an earlier engine held is free, proven by the driver's own count, before the next one starts. A restart tries again."""
        launch = self.session.launch
        names = launch.env.get("CUDA_VISIBLE_DEVICES", "") if launch else ""
        deadline = time.monotonic() + GPU_PATIENCE
        while lines := await asyncio.to_thread(gpu_room.taken, self.session.machine, names.split(",") if names else None):
            if time.monotonic() > deadline:
                error = gpu_room.held(lines)
                error.exit_code = Exit.ENGINE_FAILED
                raise error
            self.progress.tell(f"waiting for GPU memory: {lines[0]}")
            self.notifier.extend(60)
            await asyncio.sleep(GPU_SECONDS)

    async def _stay(self) -> None:
        """Until the engine is over. The watchdog is fed while tokens advance, and by nothing else."""
        queue = hearing.supervisor_events(self.session, self._events_so_far())
        every = (self.notifier.watchdog_seconds or self.record.watchdog_seconds) / 4
        fed = time.monotonic()
        wedged = False
        while True:
            try:
                async with asyncio.timeout(max(0.05, fed + every - time.monotonic())):  # wait_for can swallow a cancellation
                    event = await queue.get()
            except TimeoutError:
                fed = time.monotonic()
                if not wedged and await asyncio.to_thread(self._answers):
                    await asyncio.to_thread(self.notifier.send, patience=MESSAGE_SECONDS, WATCHDOG=1)
                continue
            if event is None:
                raise hearing.supervisor_gone(self.session)
            if event.kind in ("died", "failed"):
                raise await failing.failed(self.session, event.data)
            if event.kind == "ended":
                return
            if event.kind in ("wedged", "alive"):
                wedged = event.kind == "wedged"
                await self._judged(wedged)

    async def _judged(self, wedged: bool) -> None:
        """A wedged engine writes its Python stacks into its log and ends; were it to stay, the watchdog would expire."""
        self.session.emitter.emit("say", text="wedged: no token advances" if wedged else "tokens advance again")
        if wedged:
            self.progress.tell("wedged: no token advances")
            with suppress(FirstlightError):
                await asyncio.to_thread(self.session.supervisor.signal, "SIGABRT")

    def _events_so_far(self) -> int:
        """The supervisor's events up to `ready` have been read by `watch`."""
        events = self.session.supervisor.past_events()
        return next((e.byte for e in events if e.kind == "ready"), 0)

    def _answers(self) -> bool:
        """Whether supervisor and engine answered lately: a stopped (SIGSTOP) engine does not, and asks nobody for tokens."""
        status = self.session.supervisor.status()
        health = status.health
        return bool(status.answering and status.state == "ready" and health.get("status") == 200)


def has_room(root: Path) -> bool:
    """Whether a run's first documents can be written. Any other trouble is told by who meets it."""
    probe = root / f".room-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(FIRST_BYTES))
    except OSError as e:
        return e.errno not in (errno.ENOSPC, errno.EDQUOT)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return True


def exit_of(error: FirstlightError) -> Exit:
    """What a restart cannot cure ends with a status that systemd does not restart. Answers that only came too late it can cure."""
    if error.code == "verification-failed" and error.evidence and all(TOO_LATE in line for line in error.evidence):
        return Exit.ENGINE_FAILED
    return Exit.PREFLIGHT_BLOCKED if error.code in PERMANENT else error.exit_code


def failures_in_a_row(store: RunStore, name: str) -> int:
    """Latest starts of this name within half an hour that never were verified."""
    runs = [r for _, r in store.scan()[0] if r.name == name and r.updated > time.time() - BACKOFF_WINDOW]
    return next((i for i, r in enumerate(runs) if r.state is RunState.STOPPED or r.verified), len(runs))


def make_way(session: Session) -> None:
    """What an earlier start of this service left is ended; a run that somebody else keeps is not ours to end."""
    for folder, _ in session.store.active(session.name):
        run = reconcile(folder)
        if run.state in TERMINAL:
            continue
        if not (run.reason or "").startswith("orphaned"):
            hint = f"firstlight down {run.name}"
            raise UsageError("name-in-use", f"{run.name!r} runs already, outside of this service", evidence=(f"run {run.id}",), hint=hint)
        end(folder, kill=True)


def _stages(record: ServiceRecord) -> list[flow.Stage]:
    own: dict[str, Any] = {"overlay": _overlay, "launch": _launch}
    names = ("overlay", "launch", "watch", "verify", "report")
    return [s._replace(run=own.get(s.name, s.run)) for s in flow.STAGES if s.name in names and s.name not in record.skip]


def _session(record: ServiceRecord, folder: Path) -> Session:
    """The verified run's own structs; nothing is probed or planned anew."""
    files = RunFolder(folder)
    session = Session(
        intent=files.load(Intent, "intent.json"),
        options=UpOptions(accept=frozenset(record.accept), skip=frozenset(record.skip), restart="never"),
        host=LocalHost(),
        adapters=[],
        store=RunStore(),
        consent=Consent(),
        emitter=Emitter(None, []),
        name=record.name,
    )
    session.checkpoint = files.try_load(Checkpoint, "checkpoint.json")
    session.machine = files.try_load(Machine, "machine.json")
    session.plan_set = files.try_load(PlanSet, "plan.json")
    session.overlay = files.try_load(Overlay, "overlay.json")
    session.launch = with_credential(files.load(LaunchSpec, "launch.json"), os.environ.get("CREDENTIALS_DIRECTORY"))
    endpoint = files.load(Endpoint, "endpoint.json")
    key = next(iter(session.launch.secret_files.values()), endpoint.api_key_file)
    session.endpoint = msgspec.structs.replace(endpoint, api_key_file=key)
    return session


def with_credential(spec: LaunchSpec, folder: str | None) -> LaunchSpec:
    """The key as systemd hands it over: a file that only this service can read."""
    path = os.path.join(folder or "", CREDENTIAL)
    if folder is None or not spec.secret_files or not os.path.exists(path):
        return spec
    return msgspec.structs.replace(spec, secret_files=dict.fromkeys(spec.secret_files, path))


def _open_run(session: Session, folder: Path) -> None:
    """A run folder like that of any `up`, so that every verb works on a service as well."""
    session.folder = session.emitter.folder = session.store.create(name=session.name, model=session.intent.model, host="local")
    for name in (*STRUCTS, RECORD):
        if name != "verdict.json" and (folder / name).exists():
            session.folder.write(name, (folder / name).read_bytes())


async def _overlay(session: Session) -> str:
    """Laid again where a cleaned cache took it away; the same content gives the same path."""
    spec = session.plan_set.best.overlay if session.plan_set and session.plan_set.best else None
    return await start.overlay(session) if spec is not None and session.overlay is not None else "not needed"


async def _launch(session: Session) -> str:
    """The verified launch, exactly. Restarts are systemd's: two that restart would hide each other's crash loops."""
    assert session.folder is not None
    assert session.launch is not None
    refuse_changed_code(session.folder.path / RECORD, session.checkpoint.path if session.checkpoint else None)
    seconds = Notifier.from_environment(os.environ, os.getpid()).watchdog_seconds or 180.0
    options = Options(restart=Restart(policy="never"), liveness=Alive(interval_seconds=seconds / 6, patience_seconds=seconds * 2 / 3))
    session.save(session.launch, f"attempts/{session.attempt}/launch.json")
    session.folder.update(state=RunState.STARTING, engine=session.launch.engine, endpoint=session.endpoint)
    session.supervisor = await asyncio.to_thread(
        start_supervisor,
        session.host,
        folder=str(session.folder.attempt),
        spec=session.launch,
        options=options,
        run=session.folder.path.name,
    )
    status = await asyncio.to_thread(session.supervisor.status)
    session.folder.update(supervisor=status.supervisor, engine_process=status.engine)
    return f"{session.launch.engine} on port {session.launch.port}"
