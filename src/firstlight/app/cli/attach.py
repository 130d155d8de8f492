"""`firstlight attach RUN`: follow a run as if it had just been started here."""

import click

from firstlight.app import completing


@click.command("attach", short_help="follow a run as if it had just been started")
@click.argument("run", shell_complete=completing.runs)
def command(run: str) -> int:
    """Shows phases and progress of RUN until it is ready or over. Leaving with Ctrl-C leaves the run as it is."""
    import asyncio

    from firstlight.app.following import follow, refuse_over
    from firstlight.app.store import RunStore, ShownRun

    folder = RunStore().find(run)
    refuse_over(folder)
    return asyncio.run(follow(ShownRun(folder.path)))
