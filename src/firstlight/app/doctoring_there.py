"""What `doctor --host` looks at: whether runs and services can be kept on another host from here. Nothing is written there."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

from firstlight.app.doctoring import Item
from firstlight.app.elsewhere import places_of
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.units import GIB, gib
from firstlight.deploy.systemd import Systemd
from firstlight.probe.hosts import open_host
from firstlight.probe.ssh import CONNECT_SECONDS, SshHost

PROBE_ONLY, SUPERVISE, SERVE = (3, 7), (3, 9), (3, 11)
# the nearest folder that is there, whether it can be written, its free KiB
_PLACE = 'p=$1; while [ ! -e "$p" ]; do p=${p%/*}; p=${p:-/}; done; [ -w "$p" ] && echo yes || echo no; df -Pk "$p" | tail -n 1'


def examine_host(name: str) -> list[Item]:
    """Every item, in the order of how much depends on it; a host that is not reached has one."""
    host = open_host(name)
    assert isinstance(host, SshHost)
    began = time.monotonic()
    try:
        user = host.run(["id", "-un"]).text.strip()
    except FirstlightError as e:
        return [Item(name="ssh", verdict="failed", text=f"{e.code}: {e.message}", hint=e.hint)]
    first = Item(name="ssh", verdict="ok", text=f"{user} on {name}, {time.monotonic() - began:.1f} s")
    looks: tuple[Callable[[SshHost], Iterator[Item]], ...] = (_quiet, _python, _folders, _copies, _engines, _gpus, _manager)
    return [first, *(item for look in looks for item in _careful(look, host))]


def _careful(look: Callable[[SshHost], Iterator[Item]], host: SshHost) -> list[Item]:
    try:
        return list(look(host))
    except FirstlightError as e:
        return [Item(name=look.__name__.strip("_"), verdict="failed", text=f"{e.code}: {e.message}", hint=e.hint)]


def _quiet(host: SshHost) -> Iterator[Item]:
    """What a login's start files print comes before every answer of rsync and sftp, which then give up."""
    try:
        said = subprocess.run(
            [*host.argv(), "exit 0"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=3 * CONNECT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return
    if text := said.stdout.decode("utf-8", "replace").strip():
        hint = "print only where there is a terminal (`[ -t 1 ] && …`); until then copies go through a plain command"
        yield Item(name="start files", verdict="warning", text=f"they print to everybody: {text.splitlines()[0][:60]!r}", hint=hint)


def _python(host: SshHost) -> Iterator[Item]:
    try:
        done = host.run(["python3", "-c", "import sys; print(*sys.version_info[:3]); print(sys.executable)"])
        lines = done.text.splitlines()
        have = tuple(int(n) for n in lines[0].split())
    except (HostError, ValueError, IndexError):
        yield Item(
            name="python3", verdict="failed", text="not there: only `probe` and reading work", hint="install Python 3.9 or newer there"
        )
        return
    shown = f"{'.'.join(map(str, have))} at {lines[1]}"
    if have < SUPERVISE:
        text, hint = f"{shown}: files can be written, engines not be supervised", "install Python 3.9 or newer there"
        yield Item(name="python3", verdict="failed", text=text, hint=hint)
    elif have < SERVE:
        text, hint = f"{shown}: enough for runs, a service needs 3.11", "install Python 3.11 or newer there for `service install`"
        yield Item(name="python3", verdict="warning", text=text, hint=hint)
    else:
        yield Item(name="python3", verdict="ok", text=shown)


def _folders(host: SshHost) -> Iterator[Item]:
    for name, path in places_of(host)._asdict().items():
        lines = host.run(["sh", "-c", _PLACE, "sh", path]).text.splitlines()
        fields = lines[1].split() if len(lines) > 1 else []
        free = int(fields[3]) << 10 if len(fields) > 3 and fields[3].isdigit() else None
        writable = bool(lines) and lines[0] == "yes"
        low = free is not None and free < 2 * GIB and name in ("cache", "data")
        text = f"{path}, {gib(free)} free" if free is not None else path
        hint = f"set XDG_{name.upper()}_HOME for that login" if not writable or low else None
        verdict = "failed" if not writable else "warning" if low else "ok"
        yield Item(name=f"{name} folder", verdict=verdict, text=text if writable else f"{path} cannot be written", hint=hint)


def _copies(host: SshHost) -> Iterator[Item]:
    there = host.run(["sh", "-c", "command -v rsync; true"]).text.strip()
    if there and shutil.which("rsync"):
        yield Item(name="copies", verdict="ok", text=f"rsync, here and at {there}")
        return
    lacks = "there" if shutil.which("rsync") else "here"
    text = f"no rsync {lacks}: files go by sftp or a plain command, and go on from their byte all the same"
    yield Item(name="copies", verdict="ok", text=text)


def _engines(host: SshHost) -> Iterator[Item]:
    from firstlight.app.looking import find_here

    found = find_here(host, [])
    for install in found:
        problem = next(iter(install.findings), None)
        text = problem.message if problem else f"{install.version} in {install.python or install.binary}"
        yield Item(name=install.engine, verdict="failed" if problem else "ok", text=text, hint=problem.hint if problem else None)
    if not found:
        yield Item(name="engines", verdict="warning", text="none found", hint=f"firstlight engines install vllm --host {host.name}")


def _gpus(host: SshHost) -> Iterator[Item]:
    try:
        done = host.run(["nvidia-smi", "-L"])
    except HostError as e:
        if e.code != "command-not-found":
            raise
        yield Item(name="GPUs", verdict="ok", text="no nvidia-smi: none")
        return
    lines = done.text.strip().splitlines() if done.ok else done.stderr.decode("utf-8", "replace").strip().splitlines()
    yield Item(
        name="GPUs", verdict="ok" if done.ok else "failed", text=f"{len(lines)}: {lines[0][:60]}" if lines else "nvidia-smi says nothing"
    )


def _manager(host: SshHost) -> Iterator[Item]:
    try:
        version = Systemd(host, "user").version()
    except FirstlightError as e:
        why = "; ".join(e.evidence)[:80]
        yield Item(name="systemd", verdict="warning", text=f"no user manager: {why}", hint="only `service install --host` needs it")
        return
    linger = host.run(["sh", "-c", 'loginctl show-user "$(id -un)" -p Linger 2>/dev/null; true']).text.strip().endswith("yes")
    hint = None if linger else "loginctl enable-linger, or runs and services end with the last login where KillUserProcesses is set"
    yield Item(name="systemd", verdict="ok" if linger else "warning", text=f"{version}, lingering {'on' if linger else 'off'}", hint=hint)
