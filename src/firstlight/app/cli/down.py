"""`firstlight down RUN`: stop it, and prove that everything is free."""

import click

from firstlight.app.output import emit, emit_rows, glyphs, output_option


@click.command("down", short_help="stop a run and prove that everything is free")
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Every run on this machine.")
@click.option("--kill", is_flag=True, help="No grace: SIGKILL at once.")
@output_option
def command(run: str | None, every: bool, kill: bool, output: str) -> int:
    """Stops RUN (a name, an id or its beginning) gracefully, then its whole group; frees port and memory."""
    from firstlight.app.ending import end
    from firstlight.app.store import RunStore
    from firstlight.core.errors import UsageError
    from firstlight.core.run import TERMINAL

    store = RunStore()
    if every == (run is not None):
        raise UsageError("which-run", "name one run, or say --all", hint="firstlight get runs")
    if run is not None:
        folder = store.find(run)
        over = folder.run.state in TERMINAL
        ended = end(folder, kill=kill)
        emit(ended, output, lambda: click.echo(f"{glyphs().ok} {ended.name} {'was over already' if over else 'is stopped'}: {ended.state}"))
        return 0
    rows = [end(folder, kill=kill) for folder, r in store.scan()[0] if r.state not in TERMINAL]
    emit_rows("Run", rows, output, lambda: click.echo("\n".join(f"{glyphs().ok} {r.name} is stopped" for r in rows) or "nothing runs"))
    return 0
