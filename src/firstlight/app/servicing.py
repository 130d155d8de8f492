"""`service install` and its kin: checks, consent, the unit, and the wait until it is ready or is known to have failed."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from firstlight import __version__
from firstlight.app import holders
from firstlight.app.carrying import carried_folder
from firstlight.app.consent import Consent
from firstlight.app.elsewhere import shipped_key
from firstlight.app.reconcile import reconcile
from firstlight.app.service_room import ask_to_replace, make_way, owner_of, refuse_what_fails_later, require_linger
from firstlight.app.services import ServiceRecord, changing, copy_structs, find_service, replacing, service_folder, write_record
from firstlight.app.stages.prove import failed_checks
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.ids import slug
from firstlight.core.machine import Machine
from firstlight.core.plan import PlanSet
from firstlight.core.run import Endpoint, LaunchSpec, Overlay, Run
from firstlight.core.verdict import Verdict
from firstlight.deploy.container import parallel_ranks
from firstlight.deploy.deployment import Deployment
from firstlight.deploy.systemd import Systemd, UnitState
from firstlight.deploy.unit import UnitOptions, backoff_by_runner, render_unit, unit_name
from firstlight.probe.hosts import open_host
from firstlight.probe.local import LocalHost

LOOK_SECONDS = 0.25
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LANG", "HF_HOME", "HF_HUB_CACHE",
                  "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "FIRSTLIGHT_SERVICES")  # fmt: skip
KEPT_PREFIXES = ("NCCL_", "VLLM_", "GGML_", "LLAMA_")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


class Wanted(msgspec.Struct, kw_only=True):
    """The command line of `service install`. start: enabled and started now; else only enabled."""

    ref: str
    name: str | None = None
    scope: str = "user"
    start: bool = True
    watchdog_seconds: int = 180
    ignore: frozenset[str] = frozenset()


def verified_run(ref: str) -> tuple[RunFolder, Run]:
    """Raises FirstlightError `not-verified` (exit 6): a service is made of what has been proven."""
    folder = RunStore().find(ref)
    run = reconcile(folder)
    verdict = folder.try_load(Verdict, "verdict.json")
    if verdict is None or not verdict.passed or run.verified is None:
        failed = [c.name for c in failed_checks(verdict)] if verdict else []
        raise FirstlightError(
            "not-verified",
            f"{run.name!r} has not been verified",
            evidence=(f"run {run.id} is {run.state}", *(f"failed: {name}" for name in failed)),
            hint=_verified_before(run) or f"firstlight up {run.model} --name {run.name}",
            exit_code=Exit.VERIFICATION_FAILED,
        )
    return folder, run


def _verified_before(run: Run) -> str | None:
    """An earlier run of the name that was verified, by its id: which of both is meant is not guessed."""
    earlier = [r for _, r in RunStore().scan()[0] if r.name == run.name and r.id != run.id and r.verified]
    return f"firstlight service install {earlier[0].id} takes the run that was verified before" if earlier else None


def brought_up(plan_file: str, options: Mapping[str, Any]) -> str:
    """A saved plan is brought up and verified like any other; returns the run's id. Raises what `up` raises.

    options: name, yes, allow, accept, ignore of the command line; what `up` prints goes to stderr.
    """
    from firstlight.app.plan_options import Planning
    from firstlight.app.up_defaults import defaults
    from firstlight.app.upcommand import name_of, run_up
    from firstlight.core.saved import SavedPlan
    from firstlight.core.schema import decode

    saved = decode(Path(plan_file).read_bytes(), SavedPlan, origin=plan_file)
    given = {**options, "name": options["name"] or saved.intent.name, "skip": ("bench",), "engine_python": saved.intent.engine_python}
    given["host"] = options.get("host") or saved.intent.host
    with redirect_stdout(sys.stderr):
        code = run_up(saved.intent.model, "human", defaults(given), Planning(intent=saved.intent), saved=saved)
    name = slug(given["name"] or name_of(saved.intent.model))
    if code:
        raise FirstlightError("not-brought-up", f"{name!r} was interrupted before it was verified", exit_code=Exit(code))
    return RunStore().find(name).path.name


def deployment_of(folder: RunFolder, run: Run, *, name: str | None = None) -> Deployment:
    launch, uid, gid = _as_it_is_there(folder, run)
    machine = folder.try_load(Machine, "machine.json")
    plan = folder.try_load(PlanSet, "plan.json")
    verdict = folder.try_load(Verdict, "verdict.json")
    endpoint = folder.load(Endpoint, "endpoint.json")
    phases = folder.phase_seconds()
    return Deployment(
        name=slug(name or run.name),
        launch=launch,
        endpoint=endpoint,
        version=endpoint.engine_version,
        overlay=folder.try_load(Overlay, "overlay.json"),
        gpus=_gpus(launch, machine),
        gpu_count=len(machine.accelerators) if machine else 0,
        ranks=parallel_ranks(launch.argv),
        nodes=plan.best.nodes if plan and plan.best else 1,
        ready_seconds=sum(phases.values()) or None,
        known_answer=_knows_france(verdict),
        uid=uid,
        gid=gid,
    )


def _gpus(launch: LaunchSpec, machine: Machine | None) -> list[str] | None:
    """Those that the run was shown, by index or by the whole uuid of which CUDA takes the beginning; None for all."""
    words = [word.strip() for word in launch.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    uuids = [a.uuid for a in machine.accelerators if a.uuid] if machine else []
    found = [word if word.isdigit() else next((u for u in uuids if u.startswith(word)), None) for word in words]
    known = [name for name in found if name is not None]
    return known if known and len(known) == len(words) else None


def _as_it_is_there(folder: RunFolder, run: Run) -> tuple[LaunchSpec, int, int]:
    """The launch with the key's file on the run's own host, and whose files they are there."""
    launch = folder.load(LaunchSpec, "launch.json")
    if run.host == "local":
        owner = folder.path.stat()
        return launch, owner.st_uid, owner.st_gid
    uid, gid = open_host(run.host).run(["sh", "-c", "id -u; id -g"]).text.split()
    keys = {name: shipped_key(folder.attempt_there, name) for name in launch.secret_files}
    return msgspec.structs.replace(launch, secret_files=keys), int(uid), int(gid)


def _knows_france(verdict: Verdict | None) -> bool:
    """Only where every fact held: a model that misses some would be called ill by a health check that asks for one."""
    first = [c.evidence[0] for c in verdict.checks if c.name == "known-answers" and c.passed and c.evidence] if verdict else []
    held, _, rest = first[0].partition(" of ") if first else ("", "", "")
    return bool(held) and rest.startswith(f"{held} facts")


def install(wanted: Wanted, consent: Consent, say: Callable[[str], None]) -> UnitState:
    """Raises FirstlightError: everything that would make the service fail later is refused here, with nothing changed yet."""
    folder, run = verified_run(wanted.ref)
    deployment = deployment_of(folder, run, name=wanted.name)
    systemd = Systemd(LocalHost(), wanted.scope)
    version = systemd.version()
    target, unit = service_folder(deployment.name, wanted.scope), unit_name(deployment.name)
    with changing(deployment.name, wanted.scope):
        text = render_unit(deployment, unit_options(deployment, wanted, target, version))
        refuse_what_fails_later(deployment, systemd, wanted.ignore)
        ask_to_replace(target, run, consent)
        if wanted.scope == "user":
            require_linger(consent, wanted.ignore)
        make_way(deployment, run, folder, systemd, consent, say)

        def fill(fresh: Path) -> None:
            copy_structs(folder, fresh)
            write_record(fresh, _record(deployment, run, folder, wanted, version))
            hand_over(fresh, deployment.uid, deployment.gid)

        with replacing(target, fill):
            systemd.install(deployment.name, text)
        if systemd.state(unit).active == "failed":
            systemd.call("reset-failed", unit)
        if not wanted.start:
            return systemd.state(unit)
        systemd.call("start", "--no-block", unit)
    return wait(systemd, deployment.name, say)


def hand_over(folder: Path, uid: int, gid: int) -> None:
    """The service's documents are its user's alone: variables of an engine may be nobody else's business."""
    for path in (folder, *folder.iterdir()):
        os.chmod(path, 0o700 if path == folder else 0o600)
        if os.getuid() == 0:
            os.chown(path, uid, gid)


def _record(deployment: Deployment, run: Run, folder: RunFolder, wanted: Wanted, version: int) -> ServiceRecord:
    verdict = folder.load(Verdict, "verdict.json")
    return ServiceRecord(
        name=deployment.name,
        scope=wanted.scope,
        run=run.id,
        installed=time.time(),
        firstlight=__version__,
        engine=deployment.launch.engine,
        engine_version=deployment.version,
        accept=[c.name for c in verdict.checks if c.accepted],
        ready_seconds=deployment.ready_seconds,
        watchdog_seconds=float(wanted.watchdog_seconds),
        backoff=backoff_by_runner(version),
    )


def unit_options(deployment: Deployment, wanted: Wanted, target: Path, version: int) -> UnitOptions:
    owner, owner_home = owner_of(deployment.uid)
    system = wanted.scope == "system"
    home = owner_home if system and deployment.uid != os.getuid() else os.path.expanduser("~")
    kept = {k: v for k, v in os.environ.items() if _kept(k)}
    writable = [v for k, v in kept.items() if k.startswith("XDG_")] + [home, "/tmp", "/dev/shm"]
    gpus = deployment.gpu_count > 0 and system
    return UnitOptions(
        scope=wanted.scope,
        argv=[sys.executable, *_ourselves(), "service", "run", str(target)],
        environment={**kept, "HOME": home, "HF_HUB_OFFLINE": "1"},
        user=owner if system and deployment.uid != 0 else None,
        version=version,
        watchdog_seconds=wanted.watchdog_seconds,
        writable=sorted(set(writable)),
        modprobe=shutil.which("nvidia-modprobe") if gpus else None,
    )


def _ourselves() -> list[str]:
    """How the interpreter finds firstlight: installed, or in the folder that it was carried to."""
    carried = carried_folder()
    return ["-E", "-s", str(carried)] if carried else ["-P", "-m", "firstlight"]


def _kept(variable: str) -> bool:
    return (variable in KEPT_VARIABLES or variable.startswith(KEPT_PREFIXES)) and not any(w in variable for w in SECRET_WORDS)


def wait(systemd: Systemd, name: str, say: Callable[[str], None], *, former: int | None = None) -> UnitState:
    """Until the unit is active (verified answers) or will not come; `former` is a main process that is to be gone.

    Raises FirstlightError `service-failed` with its own last words.
    """
    told = ""
    while True:
        state = systemd.state(unit_name(name))
        if state.status and state.status != told:
            told = state.status
            say(told)
        if state.active == "active" and (former is None or state.pid != former):
            return state
        if state.over:
            raise _failed(systemd, name, state)
        time.sleep(LOOK_SECONDS)


def _failed(systemd: Systemd, name: str, state: UnitState) -> FirstlightError:
    code = {4: Exit.PREFLIGHT_BLOCKED, 6: Exit.VERIFICATION_FAILED, 2: Exit.USAGE}.get(state.exit_code or 0, Exit.ENGINE_FAILED)
    return FirstlightError(
        "service-failed",
        f"{unit_name(name)} is not up: {state.result}",
        evidence=tuple(e for e in (state.status, f"exit status {state.exit_code}" if state.exit_code else "") if e),
        hint=f"firstlight service logs {name} --journal; firstlight describe {name}",
        exit_code=code,
    )


def uninstall(name: str, scope: str | None, say: Callable[[str], None]) -> None:
    """Removes unit and folder, whatever state they are in, and proves that the port is free again."""
    found, folder = find_service(name, scope)
    with changing(folder.name, found):
        Systemd(LocalHost(), found).uninstall(folder.name)
        launch = RunFolder(folder).try_load(LaunchSpec, "launch.json")
        for run_folder, _ in RunStore().active(folder.name):
            reconcile(run_folder)
        shutil.rmtree(folder)
    if launch is not None and (left := holders.of_port(launch.port)):
        raise holders.held(left[0])
    say(f"{unit_name(folder.name)} is removed" + (f"; port {launch.port} is free" if launch else ""))
