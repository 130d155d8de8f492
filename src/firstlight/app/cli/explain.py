"""`firstlight explain CODE`: what a code means and what cures it."""

import click

from firstlight.app.output import emit, output_option


@click.command(short_help="what a code means and what cures it")
@click.argument("code")
@output_option
def command(code: str, output: str) -> int:
    """CODE is a finding's, an error's or a diagnosis's, as every message prints it."""
    from firstlight.catalog.findings import Record, explain

    def human(found: Record) -> None:
        click.secho(f"{found.code}: {found.title}", bold=True)
        click.echo(f"\n  {found.meaning}")
        if found.cure:
            click.echo("\n  What cures it")
        for line in found.cure:
            click.echo(f"    - {line}")
        for title, text in (("said by", ", ".join(found.rooms)), ("see", found.link)):
            if text:
                click.echo(f"\n  {title}: {text}")

    found = explain(code)
    emit(found, output, lambda: human(found))
    return 0
