"""Plain aligned columns, as kubectl prints them."""

from collections.abc import Sequence

import click


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row is the header; columns are as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
