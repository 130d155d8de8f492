"""`up` called by another verb: every option as the command line would leave it."""

from typing import Any

from firstlight.app.cli.up import command


def defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The options of `up` as they are when nobody says anything, with `given` over them."""
    return {**command.make_context("up", []).params, **given}
