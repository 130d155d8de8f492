"""`firstlight deploy KIND RUN`: a verified run as files for something that keeps it up."""

from pathlib import Path

import click

from firstlight.app import completing
from firstlight.app.output import glyphs, say


@click.command("deploy", short_help="compose, Quadlet and unit files from a plan")
@click.argument("kind", metavar="compose|docker|quadlet")
@click.argument("run", shell_complete=completing.runs)
@click.option("--name", help="The container's name; the run's when not said.")
@click.option("--to", "folder", type=click.Path(file_okay=False), help="Write the files into this folder; stdout when not said.")
@click.option("--unverified", is_flag=True, help="Render a run that was not verified, too.")
def command(kind: str, run: str, name: str | None, folder: str | None, unverified: bool) -> int:
    """Renders RUN, as it was verified, with the engine's official image: same flags, same paths, the health check a verified answer."""
    from firstlight.app.servicing import deployment_of, verified_run
    from firstlight.app.store import RunStore
    from firstlight.deploy.renderers import render

    found = RunStore().find(run)
    files = render(kind, deployment_of(found, found.run if unverified else verified_run(run)[1], name=name))
    for file, text in files.items():
        if folder is None:
            click.echo(text, nl=False)
            continue
        target = Path(folder) / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        say(f"{glyphs().ok} {target}")
    return 0
