"""From a plan to a running engine: fetch, rehearse, overlay, launch. Nothing before this file changes anything."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from firstlight.app.copying import copy_model, plan_copy
from firstlight.app.elsewhere import only_here, places_of, ship_key
from firstlight.app.landed import check_landed
from firstlight.app.places import cache_folder
from firstlight.app.recording import with_records
from firstlight.app.restarts import before_restart
from firstlight.app.sending import Copy
from firstlight.app.session import Session
from firstlight.app.stages.ports import choosing, free_port, release_port
from firstlight.app.store import RunFolder
from firstlight.app.visible import on_gpus
from firstlight.app.whole import whole
from firstlight.catalog.presets import find_preset
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.fetch import Fetched, FetchProgress
from firstlight.core.findings import blockers
from firstlight.core.ids import digest
from firstlight.core.intent import Intent
from firstlight.core.ports import EngineAdapter
from firstlight.core.run import Endpoint, LaunchSpec, RunState
from firstlight.core.units import format_bytes
from firstlight.launch.caches import with_caches
from firstlight.launch.client import Alive, Options, Restart, start
from firstlight.launch.headstart import plan_head_start
from firstlight.probe.local import LocalHost

CONSENT_BYTES = 10**9


async def fetch(session: Session) -> str:
    """Weights on disk. A model that is there already costs nothing; more than 1 GB is asked for first."""
    if session.dummy_weights and session.model.path is not None:
        return "dummy weights, as asked"
    if session.model.path is not None and session.model.format != "config-only":
        return "already on this disk"
    if session.model.format == "config-only":
        raise FirstlightError(
            "weights-absent",
            "the checkpoint has a config and no weights",
            evidence=(session.model.ref,),
            hint="name a folder or repository that holds the weights",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )
    here = await asyncio.to_thread(only_here, session.intent.model, session.host)
    if here:
        return await _brought(session, here)
    fetched = await fetch_model(session)
    session.checkpoint = msgspec.structs.replace(session.model, path=fetched.path)
    session.save(session.checkpoint, "checkpoint.json")
    return f"{format_bytes(fetched.bytes_fetched)} fetched to {fetched.path}"


async def _brought(session: Session, here: str) -> str:
    """A model that only this machine has, copied to the run's host; more than 1 GB is asked for first."""
    copy = await asyncio.to_thread(plan_copy, here, session.host)
    if copy.total > CONSENT_BYTES:
        where = f"to {copy.target} on {session.host.name}"
        question = f"Copy {format_bytes(copy.total, digits=1)} of {here} to {session.host.name}?"
        session.consent.require("copy-model", question, evidence=(f"from {here}", where))
    session.checkpoint = msgspec.structs.replace(session.model, path=await _copied(session, copy))
    session.save(session.checkpoint, "checkpoint.json")
    return f"{format_bytes(copy.total)} copied to {copy.path} on {session.host.name}"


async def fetch_model(session: Session) -> Fetched:
    """Fetches the intent's model with progress events, after consent where it is large."""
    from firstlight.fetch.fetch import fetch as fetch_files

    await _consent_to_fetch(session)
    if session.folder:
        session.folder.update(state=RunState.FETCHING)
    fetched = await fetch_files(
        session.intent.model,
        on_progress=_fetch_progress(session),
        env=_environ_here(),
        validate=check_landed,
        cache=str(cache_folder()),
    )
    return await _there(session, fetched)


async def _there(session: Session, fetched: Fetched) -> Fetched:
    """A host that is not this machine gets a copy: it may have no way to the hub, and needs nothing of ours installed."""
    if session.host.is_local:
        return fetched
    path = await _copied(session, await asyncio.to_thread(plan_copy, fetched.path, session.host))
    return msgspec.structs.replace(fetched, path=path)


async def _copied(session: Session, copy: Copy) -> str:
    """The model's path there; its progress are events like those of a download."""
    session.emitter.emit("phase", name=f"copying to {session.host.name}")
    began = time.monotonic()

    def tell(done: int, total: int) -> None:
        pace = done / max(0.001, time.monotonic() - began)
        left = (total - done) / pace if pace else None
        session.emitter.emit("progress", done=done, total=total, unit="bytes", eta_seconds=left, detail=f"to {session.host.name}")

    return await copy_model(session.host, copy, tell)


def _environ_here() -> dict[str, str]:
    """Downloads happen on this machine, whatever the host of the run."""
    return dict(LocalHost().environ())


async def fetch_small(session: Session, include: tuple[str, ...]) -> Fetched:
    """Only the files that describe the model: what a start with dummy weights reads."""
    from firstlight.fetch.fetch import fetch as fetch_files

    small = await fetch_files(session.intent.model, include=include, on_progress=_fetch_progress(session), env=_environ_here())
    return await _there(session, small)


async def _consent_to_fetch(session: Session) -> None:
    from firstlight.fetch.fetch import estimate

    expected = await estimate(session.intent.model, env=_environ_here())
    missing = expected.bytes_to_fetch
    session.add(expected.findings)
    if blockers(expected.findings):
        return  # the fetch says it, and nothing is asked before
    if missing is None or missing > CONSENT_BYTES:
        size = format_bytes(missing, digits=1)
        session.consent.require(
            "download",
            f"Download {size} of {session.intent.model}?",
            evidence=(f"to {expected.destination}", f"license: {expected.license or 'unknown'}"),
        )


def _fetch_progress(session: Session) -> Callable[[FetchProgress], None]:
    def tell(p: FetchProgress) -> None:
        session.emitter.emit("progress", done=p.bytes_done, total=p.bytes_total, unit="bytes", eta_seconds=p.eta_seconds, detail=p.note)

    return tell


async def overlay(session: Session) -> str:
    """Patched JSON beside links, where the engine cannot take the checkpoint as it is."""
    spec = session.best.overlay
    if spec is None:
        return "not needed"
    from firstlight.launch.overlay import lay_overlay

    root = f"{places_of(session.host).cache}/overlays"
    session.overlay = await asyncio.to_thread(lay_overlay, session.host, session.model, spec, root=root)
    session.save(session.overlay, "overlay.json")
    changes = [c for f in session.overlay.files for c in f.changes]
    return f"{len(changes)} change{'s' if len(changes) != 1 else ''}: {spec.because}"


async def launch(session: Session) -> str:
    """Starts the engine under a supervisor of its own that outlives this terminal. Each attempt has a folder in the run."""
    if session.folder is None or session.adapter is None:
        raise FirstlightError("no-run-folder", "a launch needs a run folder")
    spec = await whole(_decide, session, session.folder, session.adapter)
    options = supervision(session)
    await whole(_begin, session, spec, options)
    assert session.supervisor is not None
    status = await asyncio.to_thread(session.supervisor.status)
    session.folder.update(supervisor=status.supervisor, engine_process=status.engine)
    return f"{session.adapter.title} on port {spec.port}"


def _begin(session: Session, spec: LaunchSpec, options: Options) -> None:
    assert session.folder is not None
    folder = session.folder.attempt_there
    shipped = ship_key(session.host, with_records(session, spec), folder)
    session.supervisor = start(session.host, folder=folder, spec=shipped, options=options, run=session.folder.path.name)
    release_port(session)


def _decide(session: Session, folder: RunFolder, adapter: EngineAdapter) -> LaunchSpec:
    """The launch with its port, on record before anything else may choose the same."""
    with choosing(session):
        spec = session.launch = make_launch(session)
        session.endpoint = endpoint_for(session)
        folder.update(state=RunState.STARTING, engine=adapter.name, attempt=session.attempt, endpoint=session.endpoint)
    folder.write("command.txt", (adapter.command(spec) + "\n").encode())
    session.save(session.launch, "launch.json")
    session.save(session.endpoint, "endpoint.json")
    session.save(spec, f"attempts/{session.attempt}/launch.json")
    return spec


def supervision(session: Session) -> Options:
    """How the run is kept: restarts after it had been ready, tokens that advance, the user's hook, weights read ahead."""
    assert session.launch is not None
    head_start = plan_head_start(session.host, session.model, args=session.launch.argv, engine_memory_bytes=_host_memory(session))
    session.emitter.emit("head-start", files=len(head_start.files), bytes=head_start.limit_bytes, because=head_start.because)
    hook = session.options.on_event
    return Options(
        restart=Restart(policy=session.options.restart),
        liveness=Alive() if session.options.restart != "never" else None,
        on_event=["/bin/sh", "-c", hook] if hook else None,
        before_restart=before_restart(session.host, session.folder.attempt_there if session.folder else ""),
        head_start=head_start,
        tee=session.options.foreground,
    )


def _host_memory(session: Session) -> int:
    """Host memory that the engine itself will want for weights: all of them on a CPU build."""
    on_cpu = session.install is not None and session.install.device == "cpu"
    return (session.model.tensor_bytes or 0) if on_cpu else 0


def make_launch(session: Session) -> LaunchSpec:
    """The plan as argv and environment, on a port that is free now and recorded."""
    if session.adapter is None or session.install is None:
        raise FirstlightError("no-engine", "no engine has been chosen", hint="run the probe stage first")
    path = session.overlay.path if session.overlay else session.model.path
    spec = session.adapter.launch(
        candidate=session.best,
        checkpoint=session.model,
        intent=session.intent,
        install=session.install,
        model_path=path or session.intent.model,
        served_name=served_name(session),
        port=session.intent.port or free_port(session),
    )
    if session.machine is None:
        return spec
    spec = on_gpus(spec, session.machine, session.intent)
    root = f"{places_of(session.host).cache}/compile"
    return with_caches(spec, session.install, session.machine, host=session.host, root=root, make=not session.options.dry_run)


def served_name(session: Session) -> str:
    """The model's own name, never the overlay's path: `org/name` of a hub, else the folder's or file's."""
    model = session.intent.model
    if model.startswith("/") or find_preset(model):
        return session.model.name or session.name
    return model.removeprefix("hf://").partition("@")[0].partition(":")[0]


def endpoint_for(session: Session) -> Endpoint:
    """Where clients reach it: a wildcard bind is reached at loopback from here."""
    spec = session.launch
    if spec is None:
        raise FirstlightError("no-launch", "nothing has been launched")
    host = "127.0.0.1" if spec.host in ("0.0.0.0", "::", "") else spec.host
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(
        base_url=f"http://{shown}:{spec.port}/v1",
        model=spec.served_model_name,
        engine=spec.engine,
        engine_version=session.install.version if session.install else None,
        api_key_file=session.intent.api_key_file,
        max_model_len=session.best.max_model_len,
    )


def plan_digest(session: Session, asked: Intent) -> str:
    """The same digest is the same plan: what is asked for, of which files, on which engine build."""
    intent = msgspec.structs.replace(asked, port=None)
    install = session.install
    return digest([intent, session.model.files, session.model.tensor_bytes, install and [install.engine, install.version, install.build]])
