"""`firstlight rehearse MODEL`: the plan on the real GPUs with dummy weights, before a byte of the real ones is read."""

from typing import Any

import click

from firstlight.app.output import output_option
from firstlight.app.plan_options import planning_of, planning_options_here


@click.command("rehearse", short_help="the plan on the real GPUs with dummy weights")
@click.argument("model", required=False)
@click.option("--depth", default="auto", show_default=True, type=click.Choice(["auto", "full", "truncated"]), help="How many layers.")
@click.option("--patience", default=900.0, show_default=True, help="Seconds for one start at most.")
@click.option("--engine-python", metavar="PATH", envvar="FIRSTLIGHT_ENGINE_PYTHON", help="The interpreter that has the engine.")
@click.option("--host", default="local", show_default=True, metavar="local|ssh://USER@HOST", help="Where the engine runs.")
@click.option("--gpus", metavar="0,1", help="GPUs to use.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable for the engine.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Override a preflight finding by name.")
@planning_options_here
@output_option
def command(model: str | None, output: str, depth: str, patience: float, **options: Any) -> int:
    """Starts MODEL's plan with its final flags and dummy weights, asks one completion, stops it, and says what that proves.

    Exit 5 where the rehearsal refutes the plan, or comes to no end.
    """
    from firstlight.app.rehearsalcommand import run_rehearsal

    return run_rehearsal(output, depth, patience, options, planning_of(options, model=model))
