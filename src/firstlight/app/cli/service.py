"""`firstlight service`: a verified run as a systemd service."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from firstlight.app import completing
from firstlight.app.output import emit, emit_rows, glyphs, output_option, say, show_findings
from firstlight.app.where import host_option
from firstlight.core.errors import InputError
from firstlight.core.findings import Finding, Severity

F = TypeVar("F", bound=Callable[..., Any])
THERE = "Where it is: local, or ssh://USER@HOST."


def scope_option(command: F) -> F:
    command = click.option("--system", "scope", flag_value="system", help="The machine's manager (root).")(command)
    return click.option("--user", "scope", flag_value="user", help="Your own manager.")(command)


@click.group("service", short_help="the endpoint as a systemd service")
def command() -> None:
    """A verified run as a systemd service: ready only after a verified answer, watched by its tokens, restarted with back-off."""


@command.command("install", short_help="make a service of a verified run, or of a plan")
@click.argument("run", metavar="RUN|PLAN", shell_complete=completing.runs_or_files)
@scope_option
@click.option("--host", metavar="HOST", help="Of a PLAN: where it is brought up and stays. A RUN stays on its own host.")
@click.option("--name", help="The service's name; the run's when not said.")
@click.option(
    "--watchdog", default=180, show_default=True, type=click.IntRange(min=10), help="Seconds without a token until it is restarted."
)
@click.option("--start/--no-start", default=True, show_default=True, help="Start it now.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Override a refusal by name (linger-off, throw-away-environment).")
@click.option("--accept", multiple=True, metavar="CHECK", help="Of a PLAN: accept a failed verification check by name.")
@click.option("--allow", multiple=True, metavar="NAME", help="Say yes to one question by name: stop-run, stop-service, stop-units, ….")
@click.option("--yes", "-y", is_flag=True, help="Say yes to every question.")
@output_option
def install(run: str, scope: str | None, host: str | None, output: str, **options: Any) -> int:
    """Makes a service of RUN exactly as it was verified (or of a saved PLAN, which is brought up and verified first)."""

    from firstlight.app.consent import Consent
    from firstlight.app.services_there import install_there, run_elsewhere
    from firstlight.app.servicing import Wanted, brought_up, install
    from firstlight.deploy.unit import unit_name

    options["name"] = _plain(options["name"])
    given = {"host": host, **{k: options[k] for k in ("name", "yes", "allow", "accept", "ignore")}}
    wanted = Wanted(
        ref=brought_up(run, given) if os.path.isfile(run) else run,
        name=options["name"],
        scope=scope or ("system" if os.getuid() == 0 else "user"),
        start=options["start"],
        watchdog_seconds=options["watchdog"],
        ignore=frozenset(options["ignore"]),
    )
    allowed = frozenset(options["allow"])
    consent = Consent(yes=options["yes"], allowed=allowed)
    there = run_elsewhere(wanted, host)
    state = install_there(wanted, scope, consent, allowed, say) if there else install(wanted, consent, say)
    name = state.unit.removeprefix(unit_name("").removesuffix(".service")).removesuffix(".service")
    emit(
        state,
        output,
        lambda: click.echo(f"{glyphs().ok} {state.unit} is {state.active}: {state.status}\n  firstlight service status {name}"),
    )
    return 0


def _plain(asked: str | None) -> str | None:
    """The name as a unit can bear it; said where it is another than the one that was asked for."""
    from firstlight.app.services import plain_name

    name = None if asked is None else plain_name(asked)
    if name != asked:
        say(f"the service is called {name}: a name has small letters, digits, dots and dashes, at most 100 (asked for: {asked!r})")
    return name


def _elsewhere(host: str, *words: str) -> int | None:
    """The exit code of the same on another host; None where it is this machine."""
    from firstlight.probe.hosts import open_host

    if open_host(host).is_local:
        return None
    from firstlight.app.services_there import relay

    return relay(host, list(words), say)


def _scope(scope: str | None) -> list[str]:
    return [f"--{scope}"] if scope else []


@command.command("list", short_help="services that firstlight installed here")
@host_option(THERE)
@output_option
def list_(host: str, output: str) -> int:
    """Services that firstlight installed here."""
    if (code := _elsewhere(host, "list", "-o", output)) is not None:
        return code
    from firstlight.app.services import installed_services, read_record
    from firstlight.app.tables import print_table

    rows = []
    for _, folder in installed_services():
        try:
            rows.append(read_record(folder))
        except InputError as e:  # one that is damaged hides no other
            show_findings([Finding(code=e.code, severity=Severity.WARNING, message=e.message, evidence=list(e.evidence))], err=True)
    shown = [(r.name, r.scope, f"{r.engine} {r.engine_version or ''}".strip(), r.run) for r in rows]
    emit_rows("ServiceRecord", rows, output, lambda: print_table([("NAME", "SCOPE", "ENGINE", "RUN"), *shown]))
    return 0


@command.command("status", short_help="what the manager says of it; 0: it serves")
@click.argument("name")
@scope_option
@host_option(THERE)
@output_option
def status(name: str, scope: str | None, host: str, output: str) -> int:
    """What the manager says of the service; exit 0 when it serves verified answers, 5 when not."""
    if (code := _elsewhere(host, "status", name, *_scope(scope), "-o", output)) is not None:
        return code
    from firstlight.app.services import find_service
    from firstlight.core.errors import Exit
    from firstlight.deploy.systemd import Systemd
    from firstlight.deploy.unit import unit_name
    from firstlight.probe.local import LocalHost

    found, folder = find_service(name, scope)
    state = Systemd(LocalHost(), found).state(unit_name(folder.name))

    def human() -> None:
        mark = glyphs().ok if state.active == "active" else glyphs().fail
        click.echo(f"{mark} {state.unit} ({found}) is {state.active} ({state.sub})")
        click.echo(f"  {state.status or 'it says nothing'}")
        click.echo(f"  restarts {state.restarts} · last result {state.result} · pid {state.pid or '-'}")
        if state.active == "failed":
            click.echo(f"  exit status {state.exit_code}: firstlight service logs {name} --journal says why")

    emit(state, output, human)
    return Exit.OK if state.active == "active" else Exit.ENGINE_FAILED


@command.command("logs", short_help="the engine's log of the latest start")
@click.argument("name")
@scope_option
@click.option("-f", "--follow", is_flag=True, help="Keep printing what comes.")
@click.option("-n", "--tail", type=int, default=200, show_default=True, help="Only the last N lines.")
@click.option("--journal", is_flag=True, help="The service's own journal instead of the engine's log.")
@host_option(THERE)
def logs(name: str, scope: str | None, follow: bool, tail: int, journal: bool, host: str) -> int:
    """The engine's log of the service's latest start."""
    import subprocess

    if host not in ("", "local", "localhost"):
        return _logs_there(host, name, scope, follow, tail, journal)
    from firstlight.app.cli.logs import command as log_command
    from firstlight.app.services import find_service
    from firstlight.deploy.unit import unit_name

    found, folder = find_service(name, scope)
    if journal:
        argv = ["journalctl", *(["--user"] if found == "user" else []), "-u", unit_name(folder.name), "-n", str(tail), "-o", "short-iso"]
        return subprocess.run([*argv, *(["-f"] if follow else ["--no-pager"])], check=False).returncode
    assert log_command.callback is not None
    return int(log_command.callback(run=folder.name, follow=follow, tail=tail))


def _logs_there(host: str, name: str, scope: str | None, follow: bool, tail: int, journal: bool) -> int:
    """The engine's log from its own byte on, through cuts; of the journal its last lines."""
    if journal:
        code = _elsewhere(host, "logs", name, *_scope(scope), "--journal", "-n", str(tail))
        return int(code or 0)
    from firstlight.app.cli.logs import follow_file
    from firstlight.app.services_there import log_there

    where, path = log_there(host, name)
    return follow_file(where, path, tail, lambda: follow)


@command.command("restart", short_help="stop it and start the same verified plan")
@click.argument("name")
@scope_option
@host_option(THERE)
@output_option
def restart(name: str, scope: str | None, host: str, output: str) -> int:
    """Stops it and starts the same verified plan again; returns when it serves verified answers."""
    if (code := _elsewhere(host, "restart", name, *_scope(scope), "-o", output)) is not None:
        return code
    from firstlight.app.services import find_service
    from firstlight.app.servicing import wait
    from firstlight.deploy.systemd import Systemd
    from firstlight.deploy.unit import unit_name
    from firstlight.probe.local import LocalHost

    found, folder = find_service(name, scope)
    systemd = Systemd(LocalHost(), found)
    began, unit = time.monotonic(), unit_name(folder.name)
    before = systemd.state(unit)
    if before.active == "failed":
        systemd.call("reset-failed", unit)
    systemd.call("restart", "--no-block", unit)
    state = wait(systemd, folder.name, say, former=before.pid)
    emit(state, output, lambda: click.echo(f"{glyphs().ok} {state.unit} is {state.active} after {time.monotonic() - began:.0f} s"))
    return 0


@command.command("uninstall", short_help="stop it, remove unit and folder")
@click.argument("name")
@scope_option
@host_option(THERE)
def uninstall(name: str, scope: str | None, host: str) -> int:
    """Stops it, removes unit and folder; run folders, caches and the model stay."""
    if (code := _elsewhere(host, "uninstall", name, *_scope(scope))) is not None:
        return code
    from firstlight.app.servicing import uninstall

    uninstall(name, scope, say)
    return 0


@command.command("run", hidden=True)
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
def run(folder: str) -> int:
    """The unit's main process."""
    from firstlight.app.servicerun import run_service

    return run_service(Path(folder))
