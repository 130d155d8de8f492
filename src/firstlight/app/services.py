"""What a service is made of: a folder of its own with the structs of the run that was verified, never a key."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from firstlight.app.places import config_folder
from firstlight.app.remotecode import RECORD
from firstlight.app.store import RunFolder
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.ids import slug
from firstlight.core.run import Run
from firstlight.launch.supervisor import procfs

STRUCTS = ("intent.json", "checkpoint.json", "machine.json", "plan.json", "launch.json", "endpoint.json", "overlay.json", "verdict.json")
SYSTEM_FOLDER = "/etc/firstlight/services"


class ServiceRecord(Struct, frozen=True, kw_only=True):
    """`service.json`. run: the verified run it was made from. accept: verification checks whose failure was accepted by name.

    ready_seconds: of the verified start. backoff: the runner waits before it starts again, because this systemd cannot.
    """

    name: str
    scope: str
    run: str
    installed: float
    firstlight: str
    engine: str
    engine_version: str | None = None
    accept: list[str] = []
    skip: list[str] = []
    ready_seconds: float | None = None
    watchdog_seconds: float = 180.0
    backoff: bool = False


def plain_name(asked: str) -> str:
    """What unit and folder are called. Raises UsageError `name-says-nothing`: without a letter it would be the name of another."""
    if not re.search("[a-z0-9]", asked.lower()):
        message = f"{asked!r} is no name for a unit"
        raise UsageError("name-says-nothing", message, hint="small letters, digits, dots and dashes; at least one letter or digit")
    return slug(asked)


def services_folder(scope: str) -> Path:
    """FIRSTLIGHT_SERVICES overrides the system's, for packagers."""
    return config_folder() / "services" if scope == "user" else Path(os.environ.get("FIRSTLIGHT_SERVICES") or SYSTEM_FOLDER)


def service_folder(name: str, scope: str) -> Path:
    return services_folder(scope) / slug(name)


@contextmanager
def changing(name: str, scope: str) -> Iterator[None]:
    """One `install` or `uninstall` of a service at a time. Raises UsageError `service-in-progress`."""
    path = services_folder(scope) / f".{slug(name)}.lock"
    try:
        path.parent.mkdir(parents=True, mode=0o755, exist_ok=True)
        handle = open(path, "ab")  # noqa: SIM115 - held for the whole block
    except OSError as e:
        raise unwritable(path, e) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                "service-in-progress", f"another firstlight is installing or removing {slug(name)!r} right now", evidence=(str(path),)
            ) from None
        yield


def unwritable(path: Path, error: OSError) -> FirstlightError:
    hint = "--system needs root; --user does not" if isinstance(error, PermissionError) else "free some space, and try again"
    evidence = (f"{path}: {error.strerror}",)
    return FirstlightError("service-folder-unwritable", "the service's folder cannot be written", evidence=evidence, hint=hint)


def installed_services() -> list[tuple[str, Path]]:
    """(scope, folder) of every service that this user can see, sorted by name."""
    found = [(scope, p) for scope in ("system", "user") for p in _folders(services_folder(scope))]
    return sorted(found, key=lambda item: item[1].name)


def _folders(root: Path) -> list[Path]:
    try:
        return [p for p in root.iterdir() if not p.name.startswith(".") and (p / "service.json").exists()]
    except OSError:
        return []


def find_service(name: str, scope: str | None) -> tuple[str, Path]:
    """Raises UsageError `service-not-found`, `service-ambiguous`."""
    known, plain = installed_services(), plain_name(name)
    found = [(s, p) for s, p in known if p.name == plain and scope in (None, s)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError("service-ambiguous", f"{name!r} is a system and a user service", hint="say --system or --user")
    names = ", ".join(f"{p.name} ({s})" for s, p in known) or "none"
    raise UsageError(
        "service-not-found", f"no service is called {name!r}", evidence=(f"installed: {names}",), hint="firstlight service list"
    )


def refuse_kept_up(run: Run) -> None:
    """Raises UsageError `kept-by-a-service` where a living run of this machine is a service's: its unit would start it again."""
    boss = run.supervisor
    if run.host != "local" or boss is None or not procfs.same(boss.pid, boss.start_ticks):
        return
    try:
        units = re.findall(r"/(firstlight-[^/\n]+\.service)", Path(f"/proc/{boss.pid}/cgroup").read_text())
    except OSError:
        return
    if units:
        raise UsageError(
            "kept-by-a-service",
            f"{run.name!r} is kept up by {units[-1]}, which would start it again",
            evidence=(f"run {run.id}",),
            hint=f"firstlight service uninstall {run.name}; systemctl stop {units[-1]} (--user for your own) stops it until the next boot",
        )


@contextmanager
def replacing(target: Path, fill: Callable[[Path], None]) -> Iterator[None]:
    """`fill` writes a folder beside the former one, then it takes its place: whatever kills us, one of both is there, and whole.

    What was there before comes back when the block fails: a full disk, a unit that systemd refuses.
    """
    fresh, former = (target.with_name(f".{target.name}.{word}") for word in ("new", "former"))
    if former.exists() and not target.exists():
        former.rename(target)
    for left in (fresh, former):
        shutil.rmtree(left, ignore_errors=True)
    try:
        fill(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if target.exists():
        target.rename(former)
    fresh.rename(target)
    try:
        yield
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if former.exists():
            former.rename(target)
        raise
    shutil.rmtree(former, ignore_errors=True)


def copy_structs(source: RunFolder, target: Path) -> None:
    """The verified run's own documents, byte for byte; the service starts from these and nothing else."""
    try:
        target.mkdir(parents=True, mode=0o755, exist_ok=True)
    except OSError as e:
        raise unwritable(target, e) from None
    for name in (*STRUCTS, RECORD):
        if (source.path / name).exists():
            RunFolder(target).write(name, (source.path / name).read_bytes())


def read_record(folder: Path) -> ServiceRecord:
    """Raises InputError."""
    import msgspec

    from firstlight.core.errors import InputError

    try:
        return msgspec.json.decode((folder / "service.json").read_bytes(), type=ServiceRecord)
    except (OSError, msgspec.DecodeError) as e:
        raise InputError("service-unreadable", f"{folder / 'service.json'} cannot be read", evidence=(str(e),)) from None


def write_record(folder: Path, record: ServiceRecord) -> None:
    import msgspec

    RunFolder(folder).write("service.json", msgspec.json.format(msgspec.json.encode(record)) + b"\n")
