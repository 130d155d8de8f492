"""`firstlight models`: what is cached, how large, when last used, by whom; removal by typed name."""

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from firstlight.app.output import emit_rows, glyphs, output_option, say
from firstlight.app.places import cache_folder
from firstlight.app.tables import print_table
from firstlight.app.where import host_option
from firstlight.core.errors import ConsentError
from firstlight.core.run import TERMINAL
from firstlight.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from firstlight.fetch.models import CachedModel


@click.group("models", invoke_without_command=True, short_help="what is cached, and who uses it")
@host_option("Whose caches: local, or ssh://USER@HOST.")
@output_option
@click.pass_context
def command(ctx: click.Context, host: str, output: str) -> int:
    """Models in the Hugging Face cache and in firstlight's own, largest first."""
    if ctx.invoked_subcommand is None:
        rows = _models(host)
        emit_rows("CachedModel", rows, output, lambda: _show(rows))
    return 0


@command.command("list", short_help="what is cached, largest first")
@host_option("Whose caches: local, or ssh://USER@HOST.")
@output_option
def list_(host: str, output: str) -> int:
    """Models in the Hugging Face cache and in firstlight's own, largest first."""
    rows = _models(host)
    emit_rows("CachedModel", rows, output, lambda: _show(rows))
    return 0


@command.command(short_help="remove a model from the disk")
@click.argument("name")
@click.option("--confirm", metavar="NAME", help="The name once more, where nobody can be asked.")
@host_option("Whose disk: local, or ssh://USER@HOST.")
def rm(name: str, confirm: str | None, host: str) -> int:
    """Removes a model from the disk. Its name has to be typed; nothing is ever removed by itself."""
    from firstlight.fetch.models import find_model

    model = find_model(_models(host), name)
    _refuse_while_serving(model)
    say(f"{model.name}: {format_bytes(model.bytes)} in {model.path}")
    if confirm is None and sys.stdin.isatty():
        confirm = click.prompt("type its name to remove it", default="", show_default=False, err=True)
    if confirm != model.name:
        raise ConsentError("consent-missing", f"{model.name} was not removed", hint=f"type its name, or --confirm {model.name}")
    freed = _remove(model, host)
    print(f"{glyphs().ok} removed {model.name}: {format_bytes(freed)} freed")
    return 0


def _models(name: str) -> list["CachedModel"]:
    from firstlight.app.elsewhere import places_of
    from firstlight.fetch.models import cached_models
    from firstlight.fetch.models_there import models_there
    from firstlight.probe.hosts import open_host

    host = open_host(name)
    if host.is_local:
        return cached_models(os.environ, cache=cache_folder(), used=_used("local"))
    return models_there(host, cache=places_of(host).cache, used=_used(name))


def _remove(model: "CachedModel", name: str) -> int:
    from firstlight.app.elsewhere import places_of
    from firstlight.fetch.models import remove_model
    from firstlight.fetch.models_there import remove_there
    from firstlight.probe.hosts import open_host

    host = open_host(name)
    return remove_model(model) if host.is_local else remove_there(host, model, cache=places_of(host).cache)


def _used(host: str) -> dict[str, list[str]]:
    """Paths of models that runs on the host name, with the runs."""
    used: dict[str, list[str]] = {}
    for path, name, state in _runs(host):
        used.setdefault(path, []).append(f"{name} ({state})")
    return used


def _runs(host: str) -> list[tuple[str, str, str]]:
    """Each run's checkpoint path, name and state, newest first."""
    from firstlight.app.store import RunStore
    from firstlight.core.checkpoint import Checkpoint

    found = []
    for folder, run in RunStore().scan()[0]:
        checkpoint = folder.try_load(Checkpoint, "checkpoint.json")
        if checkpoint and checkpoint.path and run.host == host:
            found.append((checkpoint.path, run.name, str(run.state)))
    return found


def _refuse_while_serving(model: "CachedModel") -> None:
    over = {f"({state})" for state in TERMINAL}
    serving = [u for u in model.used_by if not u.endswith(tuple(over))]
    if serving:
        raise ConsentError("model-in-use", f"{model.name} is in use", evidence=tuple(serving), hint="`firstlight down` its runs first")


def _show(rows: list["CachedModel"]) -> None:
    if not rows:
        say("no model is cached")
        return
    print_table([("MODEL", "SIZE", "LAST USED", "CACHE", "RUNS"), *(_cells(row) for row in rows)])
    count = f"{len(rows)} model{'s' if len(rows) != 1 else ''}"
    say(f"{format_bytes(sum(r.bytes for r in rows))} in {count}; `firstlight models rm NAME` removes one")


def _cells(row: "CachedModel") -> tuple[str, ...]:
    ago = f"{format_seconds(max(0.0, time.time() - row.last_used))} ago" if row.last_used else "unknown"
    name = row.name if row.complete else f"{row.name} (incomplete)"
    return name, format_bytes(row.bytes), ago, row.place, ", ".join(row.used_by) or "none"
