"""`firstlight doctor`: is this installation in order."""

import click

from firstlight.app.output import emit_rows, glyphs, output_option
from firstlight.app.where import host_option
from firstlight.core.errors import Exit


@click.command(short_help="is this installation in order")
@host_option("Whether this host can be worked on from here: ssh://USER@HOST.")
@output_option
def command(host: str, output: str) -> int:
    """Python, packages, folders, catalog, engines and tools. Starts nothing, changes nothing, contacts nobody but HOST.

    Exit 0: everything works. 1: something does not.
    """
    from firstlight.app.doctoring import examine
    from firstlight.app.doctoring_there import examine_host
    from firstlight.probe.hosts import open_host

    items = examine() if open_host(host).is_local else examine_host(host)
    marks = {"ok": (glyphs().ok, "green"), "warning": (glyphs().warn, "yellow"), "failed": (glyphs().fail, "red")}

    def human() -> None:
        for item in items:
            glyph, colour = marks[item.verdict]
            click.echo(click.style(f"{glyph} {item.verdict:<7}", fg=colour) + f" {item.name:<14} {item.text}")
            if item.hint:
                click.echo(f"{'':<25}{glyphs().arrow} {item.hint}")

    emit_rows("DoctorItem", items, output, human)
    return Exit.UNEXPECTED if any(i.verdict == "failed" for i in items) else Exit.OK
