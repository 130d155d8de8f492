"""systemd through the Host port: units written, checked, enabled, looked at, removed; system-wide or a user's own."""

import posixpath
from contextlib import suppress

from msgspec import Struct

from firstlight.core.errors import Exit, FirstlightError, HostError
from firstlight.core.ports import Host
from firstlight.deploy.unit import unit_name, wanted_by

SYSTEM_FOLDER = "/etc/systemd/system"
ACTION_SECONDS = 120.0
STOP_SECONDS = 900.0  # a stop waits for the unit's own time limit
OWN_FIRST_LINE = "# Written by `firstlight service install`"
_FIELDS = ("ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result", "ExecMainStatus", "UnitFileState", "LoadState", "Job")


class UnitState(Struct, frozen=True, kw_only=True):
    """What the manager says of a unit. active: active | activating | deactivating | inactive | failed. result: success, exit-code,
    watchdog, timeout, oom-kill, start-limit-hit, …; status: the service's own last word. exit_code: of the main process's last end.
    queued: it was told to start or stop, and the manager has not come to it yet.
    """

    unit: str
    scope: str
    loaded: bool
    active: str
    sub: str
    status: str = ""
    pid: int | None = None
    restarts: int = 0
    result: str = ""
    exit_code: int | None = None
    enabled: bool = False
    queued: bool = False

    @property
    def over(self) -> bool:
        """Whether it will not come (back) by itself."""
        return not self.queued and (self.active == "failed" or (self.active == "inactive" and self.sub == "dead"))


class Systemd:
    """One manager on one host. scope: system | user."""

    def __init__(self, host: Host, scope: str) -> None:
        self.host, self.scope = host, scope

    @property
    def folder(self) -> str:
        if self.scope == "system":
            return SYSTEM_FOLDER
        env = self.host.environ()
        base = env.get("XDG_CONFIG_HOME") or posixpath.join(env.get("HOME", "/"), ".config")
        return posixpath.join(base, "systemd", "user")

    def _flags(self) -> list[str]:
        return ["--user"] if self.scope == "user" else ["--system"]

    def _bus(self) -> dict[str, str]:
        """Where a login over ssh was given no XDG_RUNTIME_DIR (no PAM), the user's manager is found all the same."""
        if self.scope == "system" or self.host.is_local or self.host.environ().get("XDG_RUNTIME_DIR"):
            return {}
        return {"XDG_RUNTIME_DIR": f"/run/user/{self.host.run(['id', '-u']).text.strip()}"}

    def call(self, *words: str, timeout: float = ACTION_SECONDS) -> str:
        """`systemctl WORDS`. Raises FirstlightError `systemctl-failed`, `no-systemd`."""
        try:
            done = self.host.run(["systemctl", *self._flags(), "--no-pager", *words], timeout=timeout, env=self._bus())
        except HostError as e:
            if e.code != "command-not-found":
                raise
            raise _no_systemd(self.host, e.message) from None
        if not done.ok:
            text = done.stderr.decode("utf-8", "replace").strip()
            if "Failed to connect to bus" in text or "not been booted" in text:
                raise _no_systemd(self.host, text)
            raise FirstlightError("systemctl-failed", f"systemctl {' '.join(words)} failed", evidence=tuple(text.splitlines()[-4:]))
        return done.text

    def version(self) -> int:
        """Raises FirstlightError `no-systemd` where no manager answers."""
        self.call("show", "-p", "Version")
        words = self.call("--version").split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def state(self, unit: str) -> UnitState:
        text = self.call("show", unit, *(f"-p{f}" for f in _FIELDS))
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return UnitState(
            unit=unit,
            scope=self.scope,
            loaded=said.get("LoadState") == "loaded",
            active=said.get("ActiveState", "unknown"),
            sub=said.get("SubState", "unknown"),
            status=said.get("StatusText", ""),
            pid=int(said.get("MainPID") or 0) or None,
            restarts=int(said.get("NRestarts") or 0),
            result=said.get("Result", ""),
            exit_code=int(said.get("ExecMainStatus") or 0),
            enabled=said.get("UnitFileState") == "enabled",
            queued=said.get("Job", "0") not in ("", "0"),
        )

    def refuse_foreign(self, name: str) -> None:
        """Raises FirstlightError `unit-is-not-ours`: somebody else's unit of that name is not written over."""
        path = posixpath.join(self.folder, unit_name(name))
        if self.host.stat(path) and not self.host.read(path, 0, 200).startswith(OWN_FIRST_LINE.encode()):
            raise FirstlightError(
                "unit-is-not-ours",
                f"{unit_name(name)} is there already, and firstlight did not write it",
                evidence=(path,),
                hint="--name takes another name",
                exit_code=Exit.PREFLIGHT_BLOCKED,
            )

    def install(self, name: str, text: str) -> None:
        """Writes, checks, loads and enables the unit; what was there before comes back when it does not load."""
        unit, path = unit_name(name), posixpath.join(self.folder, unit_name(name))
        before = self.host.read(path) if self.host.stat(path) else None
        self.host.write(path, text.encode(), 0o644)
        try:
            self.verify(path)
            self.call("daemon-reload")
            self.call("enable", unit)
        except FirstlightError:
            if before is None:
                with suppress(FirstlightError):
                    self.call("disable", unit)
                self.host.remove(path)
            else:
                self.host.write(path, before, 0o644)
            self.call("daemon-reload")
            raise

    def verify(self, path: str) -> None:
        """`systemd-analyze verify`. Raises FirstlightError `unit-refused`; does nothing where the tool is not installed."""
        try:
            done = self.host.run(["systemd-analyze", *self._flags(), "--man=no", "--recursive-errors=no", "verify", path], timeout=60)
        except HostError:
            return
        if not done.ok:
            lines = done.stderr.decode("utf-8", "replace").splitlines()
            raise FirstlightError("unit-refused", "systemd does not take the unit", evidence=tuple(lines[-6:]))

    def uninstall(self, name: str) -> bool:
        """Stops, disables and removes the unit; True where there was one. What runs is stopped, even if somebody removed its file."""
        unit, path = unit_name(name), posixpath.join(self.folder, unit_name(name))
        there = self.host.stat(path) is not None
        if there:
            self.call("disable", unit)
        if there or self.state(unit).active not in ("inactive", "failed"):
            self.call("stop", unit, timeout=STOP_SECONDS)
        self.host.remove(path)
        self.host.remove(posixpath.join(self.folder, f"{wanted_by(self.scope)}.wants", unit))
        self.call("daemon-reload")
        if there and self.state(unit).active == "failed":
            self.call("reset-failed", unit)
        return there


def _no_systemd(host: Host, why: str) -> FirstlightError:
    return FirstlightError(
        "no-systemd",
        f"no systemd manager answers on {host.name}",
        evidence=(why,),
        hint="firstlight deploy compose RUN renders a container instead; firstlight up --foreground runs under any supervisor",
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )
