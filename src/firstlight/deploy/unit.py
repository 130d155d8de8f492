"""A systemd unit of a deployment: the text, and why each line is there. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firstlight.core.errors import UsageError
from firstlight.deploy.deployment import Deployment, model_places

BURST = 5
NO_CURE = (2, 3, 4, 6, 8)  # usage, nothing feasible, blocked, not verified, consent: another start ends the same way
STEPS_SINCE = 254  # RestartSteps= and RestartMaxDelaySec=
CREDENTIAL = "api-key"


class UnitOptions(NamedTuple):
    """scope: system | user. argv: the runner. user: name for User= (None: the manager's own). version: systemd's.

    environment: what the verified start inherited and the engine may need, without secrets. modprobe: nvidia-modprobe's path.
    """

    scope: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    user: str | None = None
    version: int = 0
    watchdog_seconds: int = 180
    writable: Sequence[str] = ()
    modprobe: str | None = None


def unit_name(name: str) -> str:
    return f"firstlight-{name}.service"


def wanted_by(scope: str) -> str:
    return "default.target" if scope == "user" else "multi-user.target"


def render_unit(deployment: Deployment, options: UnitOptions) -> str:
    """The unit file. Paths with spaces, percent and dollar signs are escaped as systemd.syntax(7) wants.

    Raises UsageError `not-for-a-unit` for what no line of a unit can hold.
    """
    sections = {
        "Unit": _unit(deployment),
        "Service": [*_service(deployment, options), *_limits(), *_hardening(deployment, options)],
        "Install": [("WantedBy", wanted_by(options.scope))],
    }
    head = "# Written by `firstlight service install`; `firstlight service uninstall` removes it.\n"
    return head + "\n".join(f"[{name}]\n" + "".join(f"{k}={v}\n" for k, v in lines) for name, lines in sections.items())


def _unit(deployment: Deployment) -> list[tuple[str, str]]:
    endpoint = deployment.endpoint
    return [
        ("Description", one_line(f"{endpoint.model} on {endpoint.engine or deployment.launch.engine} at {endpoint.base_url}")),
        ("After", "network-online.target nvidia-persistenced.service"),
        ("Wants", "network-online.target"),
        # a start may take long: the interval holds `BURST` starts of that length, else a crash loop would never be seen
        ("StartLimitIntervalSec", str(start_limit_seconds(deployment))),
        ("StartLimitBurst", str(BURST)),
    ]


def start_limit_seconds(deployment: Deployment) -> int:
    return int(max(900.0, BURST * (2 * (deployment.ready_seconds or 60.0) + 120)))


def start_timeout_seconds(deployment: Deployment) -> int:
    """Without a milestone for this long the start has failed; milestones extend it."""
    return int(max(300.0, 3 * (deployment.ready_seconds or 100.0)))


def _service(deployment: Deployment, options: UnitOptions) -> list[tuple[str, str]]:
    grace = deployment.launch.stop_grace_seconds
    lines = [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("ExecStart", " ".join([_program(options.argv[0]), *map(quote, options.argv[1:])])),
        ("TimeoutStartSec", str(start_timeout_seconds(deployment))),
        ("TimeoutStopSec", str(int(grace + 60))),
        ("WatchdogSec", str(options.watchdog_seconds)),
        ("Restart", "on-failure"),
        *_restart(options.version),
        ("RestartPreventExitStatus", " ".join(map(str, NO_CURE))),
        ("SuccessExitStatus", "143"),
        # the runner ends engine and workers in order; what is left of the group after that is killed
        ("KillMode", "mixed"),
        ("Delegate", "yes"),
        ("UMask", "0077"),
    ]
    lines += [("User", options.user)] if options.user else []
    lines += [("ExecStartPre", f"+-{_program(options.modprobe)} -u -c=0")] if options.modprobe else []
    lines += [("LoadCredential", f"{CREDENTIAL}:{rest_of_line(deployment.key_file)}")] if deployment.key_file else []
    return lines + [("Environment", _variable(k, v)) for k, v in sorted(options.environment.items())]


def _restart(version: int) -> list[tuple[str, str]]:
    """Back-off by the manager where it can; the runner's own elsewhere (see `backoff_by_runner`)."""
    if backoff_by_runner(version):
        return [("RestartSec", "2")]
    return [("RestartSec", "2"), ("RestartSteps", "5"), ("RestartMaxDelaySec", "60")]


def backoff_by_runner(version: int) -> bool:
    return version < STEPS_SINCE


def _limits() -> list[tuple[str, str]]:
    return [("LimitMEMLOCK", "infinity"), ("LimitNOFILE", "1048576"), ("LimitCORE", "0"), ("TasksMax", "infinity")]


def _hardening(deployment: Deployment, options: UnitOptions) -> list[tuple[str, str]]:
    """What CUDA and just-in-time compilation allow; docs/service.md says what is left out and why."""
    lines = [
        ("NoNewPrivileges", "yes"),
        ("LockPersonality", "yes"),
        ("RestrictRealtime", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("RestrictNamespaces", "yes"),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
        ("SystemCallArchitectures", "native"),
        ("SystemCallFilter", "~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap"),
        ("SystemCallErrorNumber", "EPERM"),
    ]
    if options.scope == "user":
        return lines  # the rest needs privileges that a user's manager does not have
    lines += [
        ("CapabilityBoundingSet", "" if options.user else "CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_KILL"),
        ("ProtectSystem", "strict"),
        ("ProtectClock", "yes"),
        ("ProtectHostname", "yes"),
        ("ProtectKernelLogs", "yes"),
        ("ProtectKernelModules", "yes"),
        ("ProtectKernelTunables", "yes"),
    ]
    lines += [("ReadWritePaths", _path(p)) for p in options.writable]
    # under ProtectSystem=strict only what lies in a writable folder needs the line; a name that it cannot hold goes without
    return lines + [("ReadOnlyPaths", _path(p)) for p in model_places(deployment) if not _UNSPEAKABLE.search(p)]


_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and bytes that are no UTF-8


def quote(word: str, *, variables: bool = True) -> str:
    """One word of a unit's list. variables: `$` begins a variable there (arguments, not the program itself), so it is doubled."""
    text = _percent(word)
    text = text.replace("$", "$$") if variables else text
    if text and not re.search(r"""[\s"'\\;]""", text) and not _UNSPEAKABLE.search(text):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNSPEAKABLE.sub(lambda m: f"\\x{ord(m[0]) & 0xFF:02x}", text) + '"'


def _program(path: str) -> str:
    """systemd takes no program whose path has quotes, backslashes or control characters, however they are written."""
    if re.search(r"""["'\\]""", path) or _UNSPEAKABLE.search(path):
        raise _refused("the program's path", path)
    return quote(path, variables=False)


def _variable(name: str, value: str) -> str:
    """systemd passes over a variable with other control characters than tab and newline, or bytes that are no UTF-8: refused here."""
    refuse_unspeakable(value.replace("\n", "").replace("\t", ""), f"the variable {name}")
    return quote(f"{name}={value}", variables=False)


def _path(path: str) -> str:
    """A word of a list of paths, where systemd knows quotes and no escapes for control characters."""
    refuse_unspeakable(path, "the path")
    return quote(f"-{path}", variables=False)


def rest_of_line(text: str) -> str:
    """A value that systemd takes as it stands to the end of its line; a backslash or blanks there would be lost."""
    refuse_unspeakable(text, "the path")
    if text != text.rstrip() or text.endswith("\\"):
        raise _refused("the path", text)
    return _percent(text)


def one_line(text: str) -> str:
    """A description: words for people."""
    return _percent(" ".join(_UNSPEAKABLE.sub(" ", text).split())).rstrip("\\")


def refuse_unspeakable(text: str, what: str) -> None:
    """Raises UsageError `not-for-a-unit`."""
    if _UNSPEAKABLE.search(text):
        raise _refused(what, text)


def _refused(what: str, text: str) -> UsageError:
    return UsageError(
        "not-for-a-unit", f"no unit file can hold {what} as it is", evidence=(ascii(text),), hint="rename it, or leave the variable out"
    )


def _percent(text: str) -> str:
    return text.replace("%", "%%")
