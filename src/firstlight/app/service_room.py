"""Before a service is installed: what would fail later is refused, what stands in its place is stopped with consent, or named."""

import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

from firstlight.app import holders
from firstlight.app.carrying import carried_folder
from firstlight.app.consent import Consent
from firstlight.app.ending import end
from firstlight.app.gpu_room import require_free
from firstlight.app.reconcile import reconcile
from firstlight.app.services import installed_services, service_folder
from firstlight.app.store import RunFolder
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.intent import Intent
from firstlight.core.machine import Machine
from firstlight.core.run import TERMINAL, LaunchSpec, Run
from firstlight.deploy.deployment import Deployment
from firstlight.deploy.lasting import refuse_throw_away
from firstlight.deploy.systemd import STOP_SECONDS, Systemd
from firstlight.deploy.unit import unit_name
from firstlight.probe.local import LocalHost

GPU_SECONDS = 20.0
LINGER_FOLDER = "/var/lib/systemd/linger"


def refuse_what_fails_later(deployment: Deployment, systemd: Systemd, ignore: frozenset[str]) -> None:
    """What would fail at the next boot, or takes somebody else's place. Raises FirstlightError."""
    if "throw-away-environment" not in ignore:
        refuse_throw_away(str(carried_folder() or sys.executable), what="firstlight", env=os.environ)
        refuse_throw_away(deployment.launch.argv[0], what="the engine", env=os.environ)
    systemd.refuse_foreign(deployment.name)
    other = "user" if systemd.scope == "system" else "system"
    if (service_folder(deployment.name, other) / "service.json").exists():
        raise FirstlightError(
            "service-of-other-scope",
            f"{deployment.name!r} is a {other} service already, and both would want the same port",
            hint=f"firstlight service uninstall {deployment.name} --{other}; or --name takes another name",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )
    for scope, folder in installed_services():
        launch = RunFolder(folder).try_load(LaunchSpec, "launch.json")
        if folder.name != deployment.name and launch is not None and launch.port == deployment.launch.port:
            raise FirstlightError(
                "port-of-another-service",
                f"the {scope} service {folder.name!r} starts at boot and takes port {launch.port}",
                hint=f"firstlight service uninstall {folder.name}; or verify this run on another port (up --port N)",
                exit_code=Exit.PREFLIGHT_BLOCKED,
            )


def ask_to_replace(target: Path, run: Run, consent: Consent) -> None:
    """A new version of the same model takes its place; another model needs a yes. Raises ConsentError."""
    former = RunFolder(target).try_load(Intent, "intent.json")
    if former is not None and former.model != run.model:
        evidence = (f"installed: {former.model}", f"now: {run.model}")
        consent.require("replace-service", f"Put another model in the place of the service {target.name!r}?", evidence=evidence)


def require_linger(consent: Consent, ignore: frozenset[str]) -> None:
    """Without lingering a user's services end with the last login, and do not start at boot."""
    user, _ = owner_of(os.getuid())
    if os.path.exists(f"{LINGER_FOLDER}/{user}") or "linger-off" in ignore:
        return
    evidence = [f"{LINGER_FOLDER}/{user} is not there"]
    if consent.given("linger", f"Let services of {user} run without a login (loginctl enable-linger)?"):
        done = LocalHost().run(["loginctl", "enable-linger", user])
        if done.ok:
            return
        evidence += [f"loginctl enable-linger {user}: {done.stderr.decode('utf-8', 'replace').strip()}"]
    raise FirstlightError(
        "linger-off",
        f"services of {user} end with the last login, and do not start at boot",
        evidence=tuple(evidence),
        hint=f"loginctl enable-linger {user} (as root where it is denied); or --system; or --ignore linger-off",
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )


def make_way(deployment: Deployment, run: Run, folder: RunFolder, systemd: Systemd, consent: Consent, say: Callable[[str], None]) -> None:
    """The service's own earlier life and the verified run are stopped with consent; whoever else holds port or GPUs is named."""
    unit = unit_name(deployment.name)
    if systemd.state(unit).active in ("active", "activating", "reloading"):
        consent.require("stop-service", f"Stop {unit} and put the new one in its place?")
        systemd.call("stop", unit, timeout=STOP_SECONDS)
        say(f"{unit} is stopped")
    if reconcile(folder).state not in TERMINAL:
        consent.require("stop-run", f"Stop the run {run.name!r}, so that the service can take its place?", evidence=(f"run {run.id}",))
        end(folder)
        say(f"{run.name} is stopped; port and memory are free")
    for holder in holders.of_port(deployment.launch.port) + holders.of_gpus(LocalHost(), deployment.gpus):
        _stop_holder(holder, consent, say)
    require_free(folder.try_load(Machine, "machine.json"), deployment.gpus, GPU_SECONDS, say)


def _stop_holder(holder: holders.Holder, consent: Consent, say: Callable[[str], None]) -> None:
    if holder.unit is None or holder.unit_scope is None:
        raise holders.held(holder)
    consent.require("stop-units", f"Stop and disable {holder.unit}, which holds {holder.what}?", evidence=(holder.line,))
    other = Systemd(LocalHost(), holder.unit_scope)
    other.call("disable", "--now", holder.unit, timeout=STOP_SECONDS)
    if holders.still_there(holder):
        raise holders.held(holder)
    say(f"{holder.unit} is stopped and disabled; {holder.what} is free")


def owner_of(uid: int) -> tuple[str, str]:
    """Name and home; a user whom no directory knows has its number, and no home."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), "/nonexistent"
    return found.pw_name, found.pw_dir
