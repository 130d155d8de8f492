"""`up` called by another verb: every option as the command line would leave it."""

from typing import Any

import click

from firstlight.app.cli.up import command


def defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The options of `up` as they are when nobody says anything, with `given` over them."""
    return {**{p.name or "": p.get_default(click.Context(command)) or _empty(p) for p in command.params}, **given}


def _empty(parameter: click.Parameter) -> Any:
    return () if getattr(parameter, "multiple", False) else None
