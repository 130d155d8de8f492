"""Who holds a port or the GPUs: the process, its command, and the systemd unit that would start it again."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.ports import Host

_UNIT = re.compile(r"/(?P<unit>[^/]+\.service)(?:/|$)")
_USER = re.compile(r"/user@\d+\.service/")
GONE_SECONDS = 20.0


class Holder(Struct, frozen=True, kw_only=True):
    """what: `port 8000` or `GPU 0`. unit: the service it belongs to, None for a plain process."""

    what: str
    pid: int
    command: str
    unit: str | None = None
    unit_scope: str | None = None

    @property
    def line(self) -> str:
        where = f" ({self.unit})" if self.unit else ""
        return f"{self.what}: pid {self.pid}{where}: {self.command}"


def of_port(port: int) -> list[Holder]:
    """Processes of this machine that listen at the port."""
    from firstlight.launch.supervisor import procfs

    inodes = procfs.listening_inodes(port)
    pids = procfs.holders(inodes, [p.pid for p in procfs.processes()]) if inodes else []
    return [_holder(f"port {port}", pid) for pid in pids]


def of_gpus(host: Host, names: Sequence[int | str] | None) -> list[Holder]:
    """Processes on the GPUs that are wanted (by index or uuid; None: all), as the driver lists them."""
    from firstlight.probe.machine import probe_machine

    machine = probe_machine(host)
    chosen = None if names is None else {str(name) for name in names}
    wanted = [a for a in machine.accelerators if chosen is None or str(a.index) in chosen or a.uuid in chosen]
    return [_holder(f"GPU {a.index}", p.pid) for a in wanted for p in a.processes]


def _holder(what: str, pid: int) -> Holder:
    unit, scope = unit_of(_text(f"/proc/{pid}/cgroup"))
    return Holder(what=what, pid=pid, command=_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:160], unit=unit, unit_scope=scope)


def unit_of(cgroup: str) -> tuple[str | None, str | None]:
    """The service in a process's cgroup path, and whose manager keeps it; sessions and scopes are nobody's service."""
    in_user = bool(_USER.search(cgroup))
    found = [m["unit"] for line in cgroup.splitlines() for m in _UNIT.finditer(line) if not m["unit"].startswith("user@")]
    return (found[-1], "user" if in_user else "system") if found else (None, None)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def still_there(holder: Holder) -> bool:
    """Whether the process outlived its unit's stop; its memory is free when it is gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while os.path.exists(f"/proc/{holder.pid}") and _holder(holder.what, holder.pid).command == holder.command:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def held(holder: Holder) -> FirstlightError:
    stop = (
        f"systemctl {'--user ' if holder.unit_scope == 'user' else ''}disable --now {holder.unit}" if holder.unit else f"kill {holder.pid}"
    )
    return FirstlightError(
        "held-by-others",
        f"{holder.what} is held by a process that is not ours",
        evidence=(holder.line,),
        hint=f"{stop}, if it may go",
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )
