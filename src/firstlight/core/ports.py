"""The ports: what the pipeline needs from a host, a source of files, and an engine. One page, the whole extension surface.

Third parties implement these and register them as entry points: `firstlight.engines`, `firstlight.sources`, `firstlight.hosts`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, OverlaySpec
from firstlight.core.run import LaunchSpec


class Completed(Struct, frozen=True, kw_only=True):
    """A finished command. returncode is negative for a signal."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")


class FileInfo(Struct, frozen=True, kw_only=True):
    """path: relative to its source or absolute on its host; size in bytes; kind: file | directory | link | other."""

    path: str
    size: int
    kind: str = "file"
    modified: float | None = None
    sha256: str | None = None
    etag: str | None = None


class Channel(Protocol):
    """A connected byte stream (a Unix socket, or the same through ssh)."""

    def send(self, data: bytes) -> None: ...
    def receive(self, limit: int = 65536) -> bytes: ...
    def close(self) -> None: ...


@runtime_checkable
class Host(Protocol):
    """A machine that runs commands and has files. All paths are the host's own. Every method raises HostError.

    run: no shell, never raises for a non-zero exit; raises `command-not-found`, `command-timeout`, `host-unreachable`. On another host a
    command may be run again when the connection was lost under it: what is asked for must bear that.
    spawn: starts a process in its own session that outlives this one, stdin closed, both outputs appended to `log`; returns its pid.
    read: `limit` bytes from `offset` (None: to the end). write: atomic, parents made. connect: a Unix socket.
    """

    name: str
    is_local: bool

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Completed: ...
    def spawn(self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None) -> int: ...
    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes: ...
    def write(self, path: str, data: bytes, mode: int = 0o644) -> None: ...
    def stat(self, path: str) -> FileInfo | None: ...
    def list(self, path: str) -> list[FileInfo]: ...
    def mkdir(self, path: str, mode: int = 0o755) -> None: ...
    def symlink(self, target: str, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def connect(self, socket_path: str) -> Channel: ...
    def environ(self) -> Mapping[str, str]: ...


@runtime_checkable
class Source(Protocol):
    """Files of one model at one revision, readable in ranges. `read` may return less only at the end of the file.

    read_many: many (path, offset, length) at once; a hub source does them in parallel.
    """

    ref: str
    revision: str | None
    root: str | None

    def list(self) -> Sequence[FileInfo]: ...
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes: ...
    def read_many(self, ranges: Sequence[tuple[str, int, int]]) -> Iterable[bytes]: ...


@runtime_checkable
class EngineAdapter(Protocol):
    """An engine as firstlight sees it: pure translation, no I/O. Registered under `firstlight.engines`.

    accepts: preference for a checkpoint, 0 for never; the highest wins when the user names no engine.
    discovery: argv (run by the probe with each candidate interpreter or binary) whose stdout `read_install` parses; None: not this engine.
    overlay: what must be patched in this checkpoint for this engine, candidate and machine; None: nothing.
    launch: plan -> argv, env and files. `model_path` is the checkpoint's or the overlay's; `served_name` is the model's own.
    install_hint: the command that installs this engine on the machine.
    """

    name: str
    title: str

    def accepts(self, checkpoint: Checkpoint) -> int: ...
    def discovery(self, executable: str) -> Sequence[str]: ...
    def read_install(self, executable: str, stdout: str) -> EngineInstall | None: ...
    def overlay(
        self, checkpoint: Checkpoint, candidate: Candidate, machine: Machine, install: EngineInstall | None
    ) -> OverlaySpec | None: ...
    def launch(
        self,
        *,
        candidate: Candidate,
        checkpoint: Checkpoint,
        intent: Intent,
        install: EngineInstall,
        model_path: str,
        served_name: str,
        port: int,
    ) -> LaunchSpec: ...
    def command(self, spec: LaunchSpec) -> str: ...
    def install_hint(self, machine: Machine | None) -> str: ...


class Clock(Protocol):
    def now(self) -> float: ...
    def monotonic(self) -> float: ...
