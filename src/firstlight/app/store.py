"""Run folders: every `up` has one; the files are the truth and any bug report can be replayed from them."""

import fcntl
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firstlight.app.places import state_folder
from firstlight.app.where import chosen_host, is_chosen
from firstlight.core.errors import FirstlightError, InputError, UsageError
from firstlight.core.events import Event
from firstlight.core.ids import run_id, slug
from firstlight.core.run import TERMINAL, Run, RunState
from firstlight.core.schema import decode, encode

T = TypeVar("T", bound=msgspec.Struct)
LOOKS = 10


class RunFolder:
    """One run on disk: `run.json`, a JSON file a struct, `events.jsonl`, `probe/`, `engine.log`, `command.txt`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run(self) -> Run:
        return self.load(Run, "run.json")

    def load(self, kind: type[T], name: str) -> T:
        """Raises InputError: not-found, not-json, schema-newer, wrong-kind, wrong-shape."""
        path = self.path / name
        try:
            return decode(path.read_bytes(), kind, origin=str(path))
        except OSError as e:
            raise InputError("not-found", f"{name} cannot be read", evidence=(f"{path}: {e.strerror}",)) from None

    def try_load(self, kind: type[T], name: str) -> T | None:
        return self.load(kind, name) if (self.path / name).exists() else None

    def save(self, value: msgspec.Struct, name: str) -> None:
        self.write(name, encode(value))

    def write(self, name: str, data: bytes) -> None:
        """Atomic: a reader sees the old file or the new one, whatever is killed between."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise _unwritable(path, e) from None

    def update(self, **changes: Any) -> Run:
        run = msgspec.structs.replace(self.run, updated=time.time(), **changes)
        self.save(run, "run.json")
        return run

    def append_event(self, event: Event) -> None:
        """Raises FirstlightError `run-folder-unwritable`."""
        path = self.path / "events.jsonl"
        try:
            with open(path, "ab", buffering=0) as f:
                f.write(encode(event, indent=0))
        except OSError as e:
            raise _unwritable(path, e) from None

    def attempts(self) -> list[Path]:
        """The folders of all attempts, oldest first; for records that cannot be read, too."""
        found = [p for p in (self.path / "attempts").glob("*") if p.name.isdigit()]
        return sorted(found, key=lambda p: int(p.name))

    def events(self) -> Iterator[Event]:
        """Every whole line; a line cut by a kill is passed over."""
        try:
            lines = (self.path / "events.jsonl").read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                yield decode(line, Event)
            except InputError:
                continue

    def phase_seconds(self) -> dict[str, float]:
        """How long each phase of this run's start took; empty when it never became ready."""
        try:
            found = msgspec.json.decode((self.path / "phases.json").read_bytes(), type=dict[str, float])
        except (OSError, msgspec.DecodeError):
            return {}
        return found

    @property
    def attempt(self) -> Path:
        """The folder of the current attempt: the supervisor's records and the engine's log."""
        return self.path / "attempts" / str(self.run.attempt)

    @property
    def log(self) -> Path:
        return self.attempt / "engine.log"

    @property
    def attempt_there(self) -> str:
        """The same folder on the run's own host, which may not be this machine: what its supervisor and engine write is there."""
        run = self.run
        return f"{run.host_folder or self.path}/attempts/{run.attempt}"

    @property
    def log_there(self) -> str:
        return f"{self.attempt_there}/engine.log"


class ShownRun(RunFolder):
    """A run that is only looked at: nothing is written into it, whatever the stages that show it would note down."""

    def write(self, name: str, data: bytes) -> None:
        return

    def update(self, **changes: Any) -> Run:
        return self.run


def _lock(handle: int) -> None:
    """For ourselves, or OSError: who only looks whether it is taken (`claimed`) holds it for an instant and is waited for."""
    for left in range(LOOKS, -1, -1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.01)


def _unwritable(path: Path, error: OSError) -> FirstlightError:
    return FirstlightError(
        "run-folder-unwritable",
        "the run folder cannot be written",
        evidence=(f"{path}: {error.strerror}",),
        hint="free some space, or set XDG_STATE_HOME to a place that can be written",
    )


def _starting(ref: str, folders: Iterable[RunFolder], living: Collection[Path]) -> list[RunFolder]:
    """Runs whose id begins so, newest first; where some of them live, those. Raises UsageError `run-ambiguous`."""
    found = [f for f in folders if ref and f.path.name.startswith(ref)]
    found = [f for f in found if f.path in living] or found
    if len({f.path.name.rsplit("-", 3)[0] for f in found}) > 1:  # an id is the name, a day, a time and a salt
        known = tuple(f.path.name for f in found[:6])
        raise UsageError("run-ambiguous", f"several runs begin with {ref!r}", evidence=known, hint="a longer beginning, or the whole name")
    return found


class UnreadableRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder that this version cannot read: shown, never skipped silently."""

    folder: str
    code: str
    message: str


class RunStore:
    """All runs under one state folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or state_folder()) / "runs"

    def create(self, *, name: str, model: str, host: str) -> RunFolder:
        now = time.time()
        identity = run_id(name, now, secrets.token_hex(8))
        folder = RunFolder(self.root / identity)
        try:
            folder.path.mkdir(parents=True, mode=0o700)
        except OSError as e:
            raise _unwritable(folder.path, e) from None
        run = Run(id=identity, name=name, model=model, state=RunState.PLANNED, created=now, updated=now, folder=str(folder.path), host=host)
        try:
            folder.save(run, "run.json")
        except FirstlightError:
            with suppress(OSError):
                folder.path.rmdir()
            raise
        return folder

    def folders(self) -> list[RunFolder]:
        """Newest first."""
        try:
            paths = [p for p in self.root.iterdir() if (p / "run.json").exists()]
        except OSError:
            return []
        at_once = Counter(map(_created, paths))
        age = {p: (_created(p), _moment(p) if at_once[_created(p)] > 1 else 0.0) for p in paths}
        return [RunFolder(p) for p in sorted(paths, key=lambda p: age[p], reverse=True)]

    def scan(self) -> tuple[list[tuple[RunFolder, Run]], list[UnreadableRun]]:
        """Readable runs (on the host that `--host` chose), newest first, and those that are not, with the reason."""
        runs: list[tuple[RunFolder, Run]] = []
        unreadable: list[UnreadableRun] = []
        for folder in self.folders():
            try:
                run = folder.run
                if is_chosen(run.host):
                    runs.append((folder, run))
            except FirstlightError as e:
                unreadable.append(UnreadableRun(folder=str(folder.path), code=e.code, message=e.message))
        return runs, unreadable

    def active(self, name: str) -> list[tuple[RunFolder, Run]]:
        """Runs of this name that are not over, newest first."""
        return [(f, r) for f, r in self.scan()[0] if r.name == name and r.state not in TERMINAL]

    def find(self, ref: str) -> RunFolder:
        """A run by folder, id, name (one that lives, else the newest of that name) or id's beginning.

        Raises UsageError `run-not-found`, `run-ambiguous` where a beginning is that of several names.
        """
        if os.sep in ref and os.path.exists(os.path.join(ref, "run.json")):
            return RunFolder(Path(ref))
        runs, unreadable = self.scan()
        folders = self.folders() if chosen_host() is None else [f for f, _ in runs]
        for folder in folders:
            if folder.path.name == ref:
                return folder
        name = slug(ref) if re.search("[a-z0-9]", ref.lower()) else None  # nothing said is no name
        living = {f.path for f, r in runs if r.state not in TERMINAL}
        named = [f for f, r in runs if r.name == name]
        if found := [f for f in named if f.path in living] or named or _starting(ref, folders, living):
            return found[0]
        known = sorted({r.name for _, r in runs})
        evidence = [
            f"looked in {self.root}" + (f", for runs on {chosen_host()}" if chosen_host() else ""),
            f"names there: {', '.join(known) or 'none'}",
        ]
        evidence += [f"unreadable: {u.folder} ({u.code})" for u in unreadable[:3]]
        raise UsageError("run-not-found", f"no run is called {ref!r}", evidence=tuple(evidence), hint="firstlight get runs")

    def claimed(self, name: str) -> bool:
        """Whether an `up` or `down` of this name is at work right now."""
        path = self.root.parent / "locks" / f"{slug(name)}.lock"
        try:
            with open(path, "rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def claimant(self, name: str) -> int | None:
        """The pid of the `up` or `rehearse` that is at work on the name, as the kernel's table of locks has it; None: nobody is seen."""
        try:
            found = os.stat(self.root.parent / "locks" / f"{slug(name)}.lock")
            with open("/proc/locks") as table:
                rows = [line.split() for line in table]
        except OSError:
            return None
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        holding = [int(row[4]) for row in rows if len(row) > 5 and row[1:4:2] == ["FLOCK", "WRITE"] and row[5] == place]
        return next((pid for pid in holding if pid > 0), None)

    @contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """One `up` a name at a time. Raises UsageError run-in-progress, which says who holds it."""
        locks = self.root.parent / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            handle = open(locks / f"{slug(name)}.lock", "a+b", buffering=0)  # noqa: SIM115 - held for the whole block
        except OSError as e:
            raise _unwritable(locks, e) from None
        with handle:
            try:
                _lock(handle.fileno())
            except OSError:
                handle.seek(0)
                holder = (handle.read(200) or b"").decode("utf-8", "replace").strip() or "another firstlight"
                raise UsageError(
                    "run-in-progress",
                    f"another firstlight is working on {name!r} right now",
                    evidence=(holder,),
                    hint=f"wait for it (firstlight attach {name}), or give this one another name with --name",
                ) from None
            with suppress(OSError):  # on a full disk the lock is held all the same, without its holder's name
                handle.truncate(0)
                handle.write(f"pid {os.getpid()} since {time.strftime('%H:%M:%S')}".encode())
            yield


def _created(path: Path) -> str:
    """The second that an id tells: NAME-YYYYMMDD-HHMMSS-xxxx."""
    return "-".join(path.name.rsplit("-", 3)[1:3])


def _moment(path: Path) -> float:
    """Of runs of one second, the run's own record says which came first."""
    try:
        return RunFolder(path).run.created
    except FirstlightError:
        return 0.0
