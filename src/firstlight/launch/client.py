"""`up`, `down`, `logs` and `watch` are clients of a run's supervisor: this is what they call. All of it through the Host port."""

import json
import posixpath
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.ports import Channel, Host
from firstlight.core.run import LaunchSpec
from firstlight.launch.archive import supervisor_archive
from firstlight.launch.channel import first_line
from firstlight.launch.supervision import FINAL
from firstlight.launch.supervision import Alive as Alive
from firstlight.launch.supervision import Options as Options
from firstlight.launch.supervision import Restart as Restart
from firstlight.launch.supervision import SupervisorEvent as SupervisorEvent
from firstlight.launch.supervision import SupervisorStatus as SupervisorStatus

ARCHIVE, REQUEST, RECORD, EVENTS, LOG, EXIT = (
    "supervisor.pyz", "supervise.json", "supervisor.json", "supervisor.jsonl", "supervisor.log", "exit.json",
)  # fmt: skip
ISOLATED = ("-I", "-S")  # nothing of the user's environment is imported: it is not needed, and it could be broken
DAMAGED = "record-damaged"  # somebody else wrote into the record: it proves nothing
UNKNOWN = frozenset({"host-unreachable", "host-login-refused", "host-key-unknown", "command-timeout"})  # nothing was looked at
START_PATIENCE = 15.0
ANSWER_PATIENCE = 5.0
STOP_PATIENCE = 60.0  # killing, reading the log to its end and the driver's giving memory back


def start(host: Host, *, folder: str, spec: LaunchSpec, options: Options | None = None, run: str | None = None) -> "SupervisorClient":
    """Starts the supervisor of `folder` and, through it, the engine; returns when it answers or has recorded its end.

    Raises FirstlightError `already-supervised`, `supervisor-did-not-start`; HostError. An engine that cannot start is no error here:
    its status says `failed` and why.
    """
    argv = prepare(host, folder=folder, spec=spec, options=options, run=run)
    pid = host.spawn(argv, log=posixpath.join(folder, LOG))
    client = SupervisorClient(host, folder)
    client.wait_for_start(pid)
    return client


def prepare(
    host: Host,
    *,
    folder: str,
    spec: LaunchSpec,
    options: Options | None = None,
    run: str | None = None,
    adopt: dict[str, Any] | None = None,
) -> list[str]:
    """Writes the request and the supervisor into `folder`; returns the argv that supervises in the foreground.

    `--foreground` of `up` runs this argv itself (with Options.tee), for containers and systemd.
    """
    known = SupervisorClient(host, folder)
    if known.find()["supervised"] if host.stat(posixpath.join(folder, RECORD)) else False:
        raise FirstlightError(
            "already-supervised", "this run has a supervisor already", evidence=(f"folder: {folder}",), hint="firstlight get runs"
        )
    for stale in (RECORD, EXIT):
        host.remove(posixpath.join(folder, stale))
    request = {
        "run": run or posixpath.basename(folder.rstrip("/")),
        "spec": msgspec.to_builtins(_shipped(host, folder, spec)),
        "options": msgspec.to_builtins(options or Options()),
        "adopt": adopt,
    }
    host.write(posixpath.join(folder, ARCHIVE), supervisor_archive(), 0o600)
    host.write(posixpath.join(folder, REQUEST), msgspec.json.format(msgspec.json.encode(request)) + b"\n", 0o600)
    return [python_of(host), *ISOLATED, posixpath.join(folder, ARCHIVE), folder]


def python_of(host: Host) -> str:
    """The interpreter for the supervisor: ours here, the host's own elsewhere. Raises FirstlightError `no-python`."""
    if host.is_local:
        return sys.executable
    try:
        found = host.run(["python3", "-c", "import sys; print(sys.executable if sys.version_info >= (3, 9) else '')"])
    except HostError as e:
        raise _no_python(host, e.message) from None
    if not found.ok or not found.text.strip():
        raise _no_python(host, found.stderr.decode("utf-8", "replace").strip() or "python3 is older than 3.9")
    return found.text.strip()


def _no_python(host: Host, why: str) -> FirstlightError:
    return FirstlightError(
        "no-python", f"{host.name} has no Python that can supervise", evidence=(why,), hint="install Python 3.9 or later there"
    )


def _shipped(host: Host, folder: str, spec: LaunchSpec) -> LaunchSpec:
    """On another host, our own runner scripts go along: an argument that is one of our files becomes its copy in the run folder."""
    if host.is_local:
        return spec
    own = posixpath.dirname(posixpath.dirname(posixpath.abspath(__file__)))
    argv = []
    for word in spec.argv:
        if word.startswith(f"{own}/") and word.endswith(".py"):
            target = posixpath.join(folder, "inside", posixpath.basename(word))
            with open(word, "rb") as file:
                host.write(target, file.read())
            word = target
        argv.append(word)
    return msgspec.structs.replace(spec, argv=argv)


class SupervisorClient:
    """A run's supervisor as its folder shows it; it may be gone."""

    def __init__(self, host: Host, folder: str) -> None:
        self.host, self.folder = host, folder.rstrip("/")

    def _path(self, name: str) -> str:
        return posixpath.join(self.folder, name)

    # look

    def status(self) -> SupervisorStatus:
        """What it says, or its last record with `answering` False where it is gone or hangs.

        Raises FirstlightError `never-supervised`; HostError where its host cannot be reached, and nothing is known.
        """
        record = self._record()
        try:
            if not self._paused(record):
                return _status(self._ask({"op": "status"}, timeout=ANSWER_PATIENCE), answering=True)
        except HostError:
            pass
        try:
            return _status(self._record(), answering=False)
        except msgspec.ValidationError:
            return _status(self._damaged(), answering=False)

    def paused(self) -> int | None:
        """The supervisor's pid where somebody stopped it (SIGSTOP); None where it runs, is over, or nothing can be known."""
        try:
            record = self._record()
        except FirstlightError:
            return None
        return record["supervisor"]["pid"] if self._paused(record) else None

    def _paused(self, record: dict[str, Any]) -> bool:
        """Whether somebody stopped the supervisor (SIGSTOP): it would never answer."""
        boss = record.get("supervisor")
        pid = boss.get("pid") if isinstance(boss, dict) else None
        if not isinstance(boss, dict) or not isinstance(pid, int) or record.get("state") in FINAL:
            return False
        try:
            text = self.host.read(f"/proc/{pid}/stat").decode("utf-8", "replace")
        except HostError:
            return False
        fields = text.rpartition(")")[2].split()
        return fields[0] in "Tt" and int(fields[19]) == boss.get("start_ticks")

    def _record(self) -> dict[str, Any]:
        try:
            found = json.loads(self.host.read(self._path(RECORD)))
        except HostError as e:
            if e.code in UNKNOWN:
                raise
            raise FirstlightError(
                "never-supervised", "no supervisor has written into this run folder", evidence=(f"{self._path(RECORD)}: {e.message}",)
            ) from None
        except ValueError:
            return self._damaged()
        return found if isinstance(found, dict) else self._damaged()

    def _damaged(self) -> dict[str, Any]:
        return {"run": posixpath.basename(self.folder), "state": "failed", "reason": DAMAGED}

    def exit(self) -> dict[str, Any] | None:
        """`exit.json`: returncode, signal, reason, seconds, and `proof` once everything was swept; None while it runs."""
        try:
            found = json.loads(self.host.read(self._path(EXIT)))
        except (HostError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def find(self) -> dict[str, Any]:
        """What lives of this run, looked at now: supervised, engine, processes with their proofs."""
        return self._tool("find")

    def _tool(self, verb: str, timeout: float = 60.0) -> dict[str, Any]:
        if self.host.stat(self._path(ARCHIVE)) is None:
            self.host.write(self._path(ARCHIVE), supervisor_archive(), 0o600)
        done = self.host.run([python_of(self.host), *ISOLATED, self._path(ARCHIVE), verb, self.folder], timeout=timeout)
        if not done.ok:
            raise FirstlightError("supervisor-tool-failed", f"`{verb}` failed", evidence=(done.stderr.decode("utf-8", "replace")[-500:],))
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    # talk

    def stop(self, *, grace_seconds: float | None = None) -> SupervisorStatus:
        """Ends the run and returns when it is proven over; grace_seconds 0 kills at once. Calling it again while it stops kills.

        A supervisor that is gone or hangs is swept instead: its processes are found, proven and ended.
        """
        status = self.status()
        if status.over and status.reason != DAMAGED:
            return status
        if status.answering:
            try:
                patience = STOP_PATIENCE + (STOP_PATIENCE if grace_seconds is None else grace_seconds)
                return _status(self._ask({"op": "stop", "grace_seconds": grace_seconds}, timeout=patience), answering=True)
            except HostError:
                if (status := self.status()).over:
                    return status
        self.sweep()
        return self.status()

    def restart(self) -> None:
        """Stops the engine and starts the same spec again under the same supervisor."""
        self._ask({"op": "restart"}, timeout=10.0)

    def signal(self, name: str) -> None:
        """Sends a signal (`SIGUSR1`) to the engine's main process."""
        answer = self._ask({"op": "signal", "signal": name}, timeout=10.0)
        if not answer.get("ok"):
            raise FirstlightError("signal-not-sent", "the signal was not sent", evidence=(str(answer.get("error")),))

    def sweep(self) -> dict[str, Any]:
        """Ends whatever of this run lives without a supervisor that answers; returns the proof."""
        return self._tool("sweep", timeout=120.0)

    def events(self, from_byte: int = 0, *, hold: bool = False) -> Iterator[SupervisorEvent]:
        """Every event from `from_byte` on, then live ones as they come, to the last that the supervisor wrote before it was gone.

        hold: this reader holds the run (see Options.held) for as long as it lives.
        """
        byte = from_byte
        for event in self._live_events(from_byte, hold):
            byte = event.byte
            yield event
        yield from self.past_events(byte)  # a supervisor that ends may not have answered us, and has written everything

    def _live_events(self, from_byte: int, hold: bool) -> Iterator[SupervisorEvent]:
        """What the supervisor sends; nothing where it is gone."""
        try:
            channel = self._connect()
        except HostError:
            return
        try:
            channel.send(json.dumps({"op": "events", "from_byte": from_byte, "hold": hold}).encode() + b"\n")
            yield from _event_lines(iter(channel.receive, b""), from_byte)
        except HostError:
            return
        finally:
            channel.close()

    def past_events(self, from_byte: int = 0) -> list[SupervisorEvent]:
        """The events on file, without waiting."""
        try:
            data = self.host.read(self._path(EVENTS), from_byte)
        except HostError:
            return []
        return list(_event_lines([data], from_byte))

    def _connect(self) -> Channel:
        path = self._record().get("socket")
        return self.host.connect(path if isinstance(path, str) and path else self._path("supervisor.sock"))

    def _ask(self, request: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        record, channel = self._record(), self._connect()
        try:
            channel.send(json.dumps(request).encode() + b"\n")
            found: dict[str, Any] = json.loads(first_line(channel, timeout, lambda: self._paused(record)))
            return found
        finally:
            channel.close()

    def wait_for_start(self, pid: int) -> None:
        """Until the supervisor has written its record. Raises FirstlightError `supervisor-did-not-start`."""
        deadline = time.monotonic() + START_PATIENCE
        while time.monotonic() < deadline:
            if self.host.stat(self._path(RECORD)) is not None:
                return
            if not self.host.is_local or _alive(pid):
                time.sleep(0.01)
                continue
            if self.host.stat(self._path(RECORD)) is not None:
                return
            break
        raise FirstlightError(
            "supervisor-did-not-start",
            "the supervisor ended before it wrote its record",
            evidence=tuple(self._log_tail()),
            hint=f"look into {self._path(LOG)}",
        )

    def _log_tail(self) -> Sequence[str]:
        try:
            return self.host.read(self._path(LOG)).decode("utf-8", "replace").splitlines()[-5:]
        except HostError:
            return []


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _event_lines(pieces: Any, start: int) -> Iterator[SupervisorEvent]:
    data, byte = b"", start
    for piece in pieces:
        data += piece
        while b"\n" in data:
            line, _, data = data.partition(b"\n")
            byte += len(line) + 1
            try:
                found = json.loads(line)
                yield SupervisorEvent(byte=byte, time=found["time"], kind=found["kind"], data=found["data"])
            except (ValueError, KeyError, TypeError):
                continue


def _status(record: dict[str, Any], *, answering: bool) -> SupervisorStatus:
    known = {f.name for f in msgspec.structs.fields(SupervisorStatus)}
    return msgspec.convert({**{k: v for k, v in record.items() if k in known}, "answering": answering}, SupervisorStatus)
