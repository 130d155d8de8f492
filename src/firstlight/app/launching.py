"""What `firstlight launch` does: a launch that somebody else has decided on becomes a run like any other."""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from firstlight.app.elsewhere import folder_there, ship_key
from firstlight.app.naming import run_name
from firstlight.app.output import glyphs
from firstlight.app.restarts import before_restart
from firstlight.app.stages.hearing import through_cuts
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import EngineError, HostError, InputError, UsageError
from firstlight.core.ports import Host
from firstlight.core.run import TERMINAL, Endpoint, LaunchSpec, Run, RunState
from firstlight.core.schema import decode
from firstlight.core.units import format_seconds
from firstlight.launch.client import Options, Restart, SupervisorClient, SupervisorEvent, start
from firstlight.probe.hosts import open_host


def spec_from(file: str | None, argv: list[str], options: Mapping[str, Any]) -> LaunchSpec:
    """The launch in the file, or the user's own command. Raises UsageError, InputError."""
    if (file is None) == (not argv):
        raise UsageError("launch-what", "name one launch", hint="give a launch.json, or your own command after `--`")
    if file is not None:
        try:
            return checked(decode(Path(file).read_bytes(), LaunchSpec, origin=file))
        except OSError as e:
            raise InputError("not-found", f"{file} cannot be read", evidence=(str(e.strerror),)) from None
    if options.get("port") is None:
        raise UsageError("port-missing", "the port that the command listens at is not known", hint="--port N, the same as the command's")
    return checked(
        LaunchSpec(
            engine=Path(argv[0]).name,
            argv=argv,
            host=str(options["bind"]),
            port=int(options["port"]),
            health_path=str(options["health_path"]),
            served_model_name=str(options.get("served_model_name") or ""),
        )
    )


def checked(spec: LaunchSpec) -> LaunchSpec:
    """The launch as it is. Raises UsageError `bad-launch` for what no start could mean."""
    wrong = [
        (not 1 <= spec.port <= 65535, f"port {spec.port} is none: 1 to 65535"),
        (not spec.argv or not spec.argv[0], "the command is empty"),
        (not re.fullmatch(r"/[!-~]*", spec.health_path), f"{spec.health_path!r} is no path of a URL"),
        (not re.fullmatch(r"[\w.:%-]+", spec.host), f"{spec.host!r} is no address to listen at"),
        (not isinstance(getattr(signal, spec.stop_signal, None), signal.Signals), f"{spec.stop_signal!r} is no signal"),
        (not 0 <= spec.stop_grace_seconds < 1e6, f"{spec.stop_grace_seconds:g} s are no time to end in"),
    ]
    if problems := tuple(text for found, text in wrong if found):
        raise UsageError("bad-launch", "this launch cannot be meant", evidence=problems, hint="firstlight launch --help")
    return spec


def begin(spec: LaunchSpec, options: Mapping[str, Any]) -> Run:
    """Starts it in a run folder of its own. Raises UsageError `name-in-use`; EngineError when it fails before it is ready."""
    name = run_name(str(options.get("name") or "") or None, spec.served_model_name or spec.engine)
    store = RunStore()
    with store.claim(name):
        if active := [r for _, r in store.active(name) if r.state not in TERMINAL]:
            known = (f"run {active[0].id} is {active[0].state}",)
            raise UsageError("name-in-use", f"{name!r} runs already", evidence=known, hint="--name OTHER starts this one beside it")
        host = open_host(str(options.get("host") or "local"))
        folder = store.create(name=name, model=spec.model_path or spec.served_model_name or spec.engine, host=host.name)
        folder.save(spec, "launch.json")
        folder.save(spec, "attempts/1/launch.json")
        there = folder_there(host, folder.path.name)
        folder.update(state=RunState.STARTING, engine=spec.engine, endpoint=_endpoint(spec), host_folder=there)
        shipped = ship_key(host, spec, folder.attempt_there)
        client = start(host, folder=folder.attempt_there, spec=shipped, options=_supervision(options, folder, host), run=folder.path.name)
        status = client.status()
        folder.update(supervisor=status.supervisor, engine_process=status.engine)
        return _wait(folder, client) if options.get("wait") else folder.run


def _endpoint(spec: LaunchSpec) -> Endpoint:
    host = "127.0.0.1" if spec.host in ("0.0.0.0", "::", "") else spec.host
    return Endpoint(base_url=f"http://{host}:{spec.port}/v1", model=spec.served_model_name, engine=spec.engine)


def _supervision(options: Mapping[str, Any], folder: RunFolder, host: Host) -> Options:
    hook = options.get("on_event")
    return Options(
        restart=Restart(policy="on-failure" if options.get("restart") else "never"),
        on_event=["/bin/sh", "-c", str(hook)] if hook else None,
        before_restart=before_restart(host, folder.attempt_there),
    )


def _wait(folder: RunFolder, client: SupervisorClient) -> Run:
    for event in through_cuts(client, 0):
        if event.kind == "ready":
            return folder.update(state=RunState.READY, reason="not verified")
        if event.kind == "port-stolen":
            raise _stolen(folder, client, event)
        if event.kind in ("died", "failed"):
            break
    status = client.status()
    folder.update(state=RunState.FAILED, reason=status.reason)
    tail = _tail(client)
    said = _how_it_ended(client.exit() or {})
    raise EngineError(
        status.reason or "engine-failed",
        f"{folder.run.name!r} ended before it was ready",
        evidence=(*said, *tail),
        hint=f"firstlight diagnose {folder.path.name}",
    )


def _how_it_ended(ended: Mapping[str, Any]) -> list[str]:
    if ended.get("message"):
        return [str(ended["message"])]
    if ended.get("signal"):
        return [f"it was killed by {ended['signal']}{' of the OOM killer' if ended.get('oom_killed') else ''}"]
    return [] if ended.get("returncode") is None else [f"it ended with exit code {ended['returncode']}"]


def _tail(client: SupervisorClient) -> list[str]:
    try:
        return client.host.read(f"{client.folder}/engine.log").decode("utf-8", "replace").splitlines()[-8:]
    except HostError:
        return []


def _stolen(folder: RunFolder, client: SupervisorClient, event: SupervisorEvent) -> EngineError:
    """Nobody would reach the engine, and it may neither serve nor end: it is ended here."""
    client.stop(grace_seconds=0)
    folder.update(state=RunState.FAILED, reason="port-in-use")
    return EngineError(
        "port-in-use",
        f"another program took port {event.data['port']} while {folder.run.name!r} started",
        evidence=(str(event.data["holder"]),),
        hint="another --port, the same as the command's",
    )


def show(run: Run) -> None:
    mark = glyphs().ok
    endpoint = run.endpoint
    took = format_seconds(run.updated - run.created)
    click.echo(f"{mark} {run.name} is {run.state} after {took}: {endpoint.base_url if endpoint else 'no endpoint'}")
    click.echo(f"  firstlight logs {run.name} -f    firstlight verify {run.name}    firstlight down {run.name}")
