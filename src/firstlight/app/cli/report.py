"""`firstlight report RUN`: everything a bug report needs, without secrets."""

import click

from firstlight.app import completing
from firstlight.app.output import say


@click.command("report", short_help="a folder that a bug report needs, without secrets")
@click.argument("run", shell_complete=completing.runs)
@click.option("--to", "target", type=click.Path(dir_okay=False), help="The archive to write; RUN-report.tar.gz here when not said.")
def command(run: str, target: str | None) -> int:
    """Packs the run folder of RUN (plan, facts, events, logs) into one archive; tokens, keys and passwords are taken out."""
    from pathlib import Path

    from firstlight.app.bundle import write_bundle
    from firstlight.app.store import RunStore
    from firstlight.core.errors import FirstlightError

    folder = RunStore().find(run)
    path = Path(target or f"{folder.path.name}-report.tar.gz")
    try:
        names = write_bundle(folder, path)
    except OSError as e:
        raise FirstlightError("report-unwritable", "the report cannot be written", evidence=(f"{path}: {e.strerror}",)) from None
    click.echo(str(path))
    say(f"{len(names)} files; look through it before you post it")
    return 0
