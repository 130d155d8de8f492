"""`firstlight down RUN`: stop it, and prove that everything is free."""

from typing import TYPE_CHECKING

import click

from firstlight.app import completing
from firstlight.app.output import emit, emit_rows, glyphs, output_option, say

if TYPE_CHECKING:
    from firstlight.app.store import RunFolder, RunStore
    from firstlight.core.errors import InputError

NEWER = "schema-newer"


@click.command("down", short_help="stop a run and prove that everything is free")
@click.argument("run", required=False, shell_complete=completing.runs)
@click.option("--all", "every", is_flag=True, help="Every run on this machine.")
@click.option("--kill", is_flag=True, help="No grace: SIGKILL at once.")
@output_option
def command(run: str | None, every: bool, kill: bool, output: str) -> int:
    """Stops RUN (a name, an id or its beginning) gracefully, then its whole group; frees port and memory."""
    from firstlight.app.ending import end, outlived
    from firstlight.app.services import refuse_kept_up
    from firstlight.app.store import RunStore
    from firstlight.core.errors import InputError, UsageError
    from firstlight.core.run import TERMINAL

    store = RunStore()
    if every == (run is not None):
        raise UsageError("which-run", "name one run, or say --all", hint="firstlight get runs")
    if run is None:
        return _all(store, output, kill=kill)
    folder = store.find(run)
    try:
        over = folder.run.state in TERMINAL and not outlived(folder)
    except InputError as e:
        return _damaged(folder, e, kill=kill)
    refuse_kept_up(folder.run)
    ended = end(folder, kill=kill)
    said = f"was over already: {ended.state}" if over else "is stopped; nothing of it is left"
    emit(ended, output, lambda: click.echo(f"{glyphs().ok} {ended.name} {said}"))
    if not over:
        _tell_strangers(folder)
    return 0


def _all(store: "RunStore", output: str, *, kill: bool) -> int:
    """Runs whose record is damaged are ended too; those of a newer schema are named and left alone. One that stays hinders none."""
    from firstlight.app.ending import end, outlived
    from firstlight.app.services import refuse_kept_up
    from firstlight.core.errors import FirstlightError, InputError
    from firstlight.core.run import TERMINAL

    rows, damaged, failed = [], 0, None
    for folder in store.folders():
        try:
            live = folder.run.state not in TERMINAL or outlived(folder)
        except InputError as e:
            damaged += 1
            if e.code == NEWER:
                say(f"{folder.path}: {e.code}: left alone")
            else:
                _damaged(folder, e, kill=kill)
            continue
        try:
            refuse_kept_up(folder.run)
            if live:
                rows.append(end(folder, kill=kill))
                _tell_strangers(folder)
        except FirstlightError as e:
            failed = e
            say(f"{glyphs().fail} {folder.path.name} is not stopped: {e}")
    nothing = "nothing else runs" if damaged else "nothing runs"
    emit_rows("Run", rows, output, lambda: click.echo("\n".join(f"{glyphs().ok} {r.name} is stopped" for r in rows) or nothing))
    return failed.exit_code if failed else 0


def _tell_strangers(folder: "RunFolder") -> None:
    from firstlight.app.ending import strangers_on_port

    if line := strangers_on_port(folder):
        say(f"  {line}")


def _damaged(folder: "RunFolder", error: "InputError", *, kill: bool) -> int:
    """What the supervisors have written can be read, and what lives is ended. Raises the error of a newer schema."""
    from firstlight.app.ending import end_unreadable

    if error.code == NEWER:
        raise error
    ended = end_unreadable(folder, kill=kill)
    state = "is stopped" if ended else "has nothing running"
    say(f"{glyphs().ok} {folder.path.name} {state}; its record cannot be read ({error.code}): {folder.path}")
    return 0
