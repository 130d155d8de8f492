"""`firstlight engines`: which engines are here, make and remove their environments, compare their releases."""

import os
import sys
import time
from collections.abc import Callable

import click

from firstlight.app.consent import Consent
from firstlight.app.output import emit, emit_rows, glyphs, output_option, say
from firstlight.app.places import cache_folder
from firstlight.app.tables import print_table
from firstlight.app.where import host_option
from firstlight.core.machine import EngineInstall
from firstlight.core.ports import Host
from firstlight.core.units import format_seconds


@click.group("engines", short_help="list, install, compare engines")
def command() -> None:
    """Engines in environments of their own: list, install, remove; what a release picks, and what an upgrade changes."""


@command.command("list", short_help="what is here")
@host_option("Whose engines: local, or ssh://USER@HOST.")
@output_option
def list_(host: str, output: str) -> int:
    """Engines that firstlight made an environment for, and those it finds on this machine."""
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    known = _known(where)
    rows = known + _found(where, known)
    emit_rows("EngineInstall", rows, output, lambda: _show_list(rows, where))
    return 0


def _show_list(rows: list[EngineInstall], host: Host) -> None:
    from firstlight.ask.environments import half_made

    for folder in half_made(host, _root(host)):
        say(f"{glyphs(sys.stderr).warn} half-made: {folder} (the next install makes it again)")
    if not rows:
        say("no engine is here yet")
        say(f"  {glyphs(sys.stderr).arrow} firstlight engines install vllm, or firstlight engines install vllm --cpu")
        return
    print_table([("ENGINE", "VERSION", "FOR", "TORCH", "CUDA", "PYTHON"), *(_cells(row) for row in rows)])


def _cells(row: EngineInstall) -> tuple[str, ...]:
    cells = (row.engine, row.build or row.version, row.device, row.torch, row.cuda, row.python or row.binary)
    return tuple(c or "unknown" for c in cells)


def _root(host: Host) -> str:
    from firstlight.app.elsewhere import places_of

    return f"{places_of(host).data}/engines"


def _known(host: Host) -> list[EngineInstall]:
    from firstlight.ask.environments import environments

    return environments(host, _root(host))


def _found(host: Host, known: list[EngineInstall]) -> list[EngineInstall]:
    """What the probe finds besides our own environments."""
    from firstlight.app.looking import find_here

    ours = {row.python for row in known}
    return [row for row in find_here(host, []) if row.python is None or row.python not in ours]


@command.command(short_help="make an environment with one release")
@click.argument("engine", metavar="ENGINE[@VERSION]")
@click.option("--cpu", is_flag=True, help="The CPU build: for trying, testing and asking without a GPU.")
@click.option("--to", type=click.Path(file_okay=False), help="The environment's folder.  [default: the data folder]")
@click.option("--python", "python", default=None, help="The Python to make it with.  [default: the one that runs firstlight]")
@click.option("--yes", is_flag=True, help="Do not ask before downloading.")
@click.option("--allow", multiple=True, metavar="NAME", help="Consent by name: `install`.")
@host_option("Where: local, or ssh://USER@HOST, with that host's Python and package index.")
@output_option
def install(engine: str, cpu: bool, to: str | None, python: str | None, yes: bool, allow: tuple[str, ...], host: str, output: str) -> int:
    """Makes an environment with one engine release, pinned. Once made, it is used again and never touched."""
    from firstlight.ask.environments import make_environment, parse_engine, prepare, read_environment
    from firstlight.probe.hosts import open_host

    where, ref = open_host(host), parse_engine(engine)
    interpreter = python or _base_python(where)
    folder = _absolute(where, to) if to else None
    known = read_environment(where, folder or _place(where, ref.name, ref.version, cpu)) if ref.version else None
    if known is not None:
        emit(known, output, lambda: _show_installed(known, None))
        return 0
    say(f"asking the package index about {engine}")
    recipe = prepare(where, interpreter, ref, cpu=cpu, driver_cuda=None if cpu else _driver_cuda(where))
    folder = folder or _place(where, recipe.engine, recipe.version, cpu)
    if read_environment(where, folder) is None:
        _consent(Consent(yes=yes, allowed=frozenset(allow)), recipe.requirement, folder, cpu)
    began = time.monotonic()
    made = make_environment(where, folder, recipe, python=interpreter, on_step=_step(began))
    emit(made, output, lambda: _show_installed(made, time.monotonic() - began))
    return 0


def _place(host: Host, engine: str, version: str | None, cpu: bool) -> str:
    return f"{_root(host)}/{engine}-{version}" + ("-cpu" if cpu else "")


def _absolute(host: Host, path: str) -> str:
    """Another host's folder has to be said in full. Raises UsageError `path-not-absolute`."""
    if host.is_local or path.startswith("/"):
        return os.path.abspath(path)
    from firstlight.core.errors import UsageError

    raise UsageError("path-not-absolute", f"{path} is no full path", hint=f"a folder of {host.name}: /…")


def _base_python(host: Host) -> str:
    """The interpreter behind firstlight's own environment, so that the new one does not depend on it; another host's own."""
    if not host.is_local:
        from firstlight.launch.client import python_of

        return python_of(host)
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _driver_cuda(host: Host) -> str | None:
    from firstlight.probe.machine import probe_machine

    return probe_machine(host).cuda_driver_version


def _consent(consent: Consent, requirement: str, folder: str, cpu: bool) -> None:
    size = "about 1 GB to download, 3.5 GB on disk" if cpu else "several GB to download, about 10 GB on disk"
    size = size if requirement.startswith("vllm") else "less than 1 GB to download"
    consent.require("install", f"install {requirement} into {folder}?", evidence=(size,))


def _step(began: float) -> Callable[[str], None]:
    def show(text: str) -> None:
        say(f"  {format_seconds(time.monotonic() - began):>9}  {text}")

    return show


def _show_installed(made: EngineInstall, seconds: float | None) -> None:
    when = "was here already" if seconds is None else f"made in {format_seconds(seconds)}"
    click.echo(f"{glyphs().ok} {made.engine} {made.build} ({made.device}, torch {made.torch or 'none'}) {when}")
    click.echo(f"  {made.python}")


@command.command(short_help="remove an environment that firstlight made")
@click.argument("environment", metavar="ENGINE@VERSION[-cpu]|FOLDER")
@click.option("--yes", is_flag=True, help="Do not ask.")
@host_option("Where: local, or ssh://USER@HOST.")
def remove(environment: str, yes: bool, host: str) -> int:
    """Removes an environment that firstlight made."""
    from firstlight.ask.environments import half_made, read_environment, remove_environment
    from firstlight.core.errors import UsageError
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    root = _root(where)
    folder = _absolute(where, environment) if os.sep in environment else f"{root}/{environment.replace('@', '-')}"
    if read_environment(where, folder) is None and folder not in half_made(where, root):
        raise UsageError("environment-unknown", f"{environment} is no environment that firstlight made", hint="firstlight engines list")
    Consent(yes=yes).require("remove", f"remove {folder}?")
    remove_environment(where, folder)
    click.echo(f"{glyphs().ok} removed {folder}")
    return 0


@command.command(short_help="which kernels a release picks on a GPU")
@click.argument("engine", metavar="vllm@VERSION")
@click.option("--gpu", required=True, metavar="SM|NAME", help="sm_120, 12.0, or a GPU's name: rtx-pro-6000-blackwell.")
@click.option("--layer", help="Only this kind: gqa128, mla576, moe-nvfp4, …")
@output_option
def show(engine: str, gpu: str, layer: str | None, output: str) -> int:
    """Which kernel a release picks on a GPU, by layer kind and KV cache dtype (`none`: it refuses to start)."""
    from firstlight.app.views.backends import choices, show_choices

    rows = choices(engine, gpu, layer)
    emit_rows("Choice", rows, output, lambda: show_choices(rows))
    return 0


@command.command(short_help="what an upgrade changes on a GPU")
@click.argument("before", metavar="vllm@OLD")
@click.argument("after", metavar="vllm@NEW")
@click.option("--gpu", required=True, metavar="SM|NAME", help="sm_120, 12.0, or a GPU's name.")
@click.option("--all", "show_all", is_flag=True, help="Also KV cache dtypes that only one of the two has.")
@output_option
def diff(before: str, after: str, gpu: str, show_all: bool, output: str) -> int:
    """What an upgrade changes on a GPU: kernels that differ, and what starts to work or ceases to."""
    from firstlight.app.views.backends import changes, show_changes

    rows = changes(before, after, gpu, show_all)
    emit_rows("Change", rows, output, lambda: show_changes(rows, before, after))
    return 0


@command.command(short_help="a release's Python files, for asking offline")
@click.argument("releases", nargs=-1, required=True, metavar="vllm@VERSION...")
@click.option("--python", "python", default=None, help="The Python whose pip is asked.  [default: the one that runs firstlight]")
def source(releases: tuple[str, ...], python: str | None) -> int:
    """Fetches the Python files of releases (5 to 14 MB each), so that `ask` needs no network for them later."""
    from firstlight.ask.environments import parse_engine
    from firstlight.ask.wheels import engine_source, read_contents
    from firstlight.probe.hosts import open_host

    for text in releases:
        ref = parse_engine(text)
        requirement = f"{ref.name}=={ref.version}" if ref.version else ref.name
        folder = engine_source(open_host("local"), python or sys.executable, requirement, str(cache_folder() / "ask/wheels"), on_step=say)
        contents = read_contents(folder)
        click.echo(f"{glyphs().ok} {contents.name} {contents.version}, built {contents.built}: {contents.files} files, {folder}")
    return 0
