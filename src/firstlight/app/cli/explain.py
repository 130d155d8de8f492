"""`firstlight explain CODE`: what a code means and what cures it."""

import click

from firstlight.app import completing
from firstlight.app.output import emit, emit_rows, output_option


@click.command(short_help="what a code means and what cures it")
@click.argument("code", required=False, shell_complete=completing.codes)
@output_option
def command(code: str | None, output: str) -> int:
    """CODE is a finding's, an error's or a diagnosis's, as every message prints it. Without one: all codes with their titles."""
    from firstlight.app.tables import print_table
    from firstlight.catalog.findings import all_codes, explain

    if code is None:
        everything = [explain(c) for c in all_codes()]
        emit_rows("Record", everything, output, lambda: print_table([("CODE", "MEANS"), *((r.code, r.title) for r in everything)]))
        return 0
    found = explain(code.lower())

    def human() -> None:
        click.secho(f"{found.code}: {found.title}", bold=True)
        click.echo(f"\n  {found.meaning}")
        if found.cure:
            click.echo("\n  What cures it")
        for line in found.cure:
            click.echo(f"    - {line}")
        for title, text in (("said by", ", ".join(found.rooms)), ("see", found.link)):
            if text:
                click.echo(f"\n  {title}: {text}")

    emit(found, output, human)
    return 0
