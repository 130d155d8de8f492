"""`firstlight apply PLAN`: start exactly what a saved plan says."""

from typing import Any

import click

from firstlight.app.output import output_option


@click.command("apply", short_help="start from a saved plan, refused when the facts changed")
@click.argument("plan_file", metavar="PLAN")
@click.option("--name", help="The run's name; the model's own when not said.")
@click.option("--host", metavar="HOST", help="Where to start it, if that machine is like the plan's; the plan's own when not said.")
@click.option("--engine-python", metavar="PATH", envvar="FIRSTLIGHT_ENGINE_PYTHON", help="The interpreter that has the engine.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option("--accept", multiple=True, metavar="CHECK", help="Accept a failed verification check by name.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Override a preflight finding by name.")
@click.option("--yes", "-y", is_flag=True, help="Say yes to every question.")
@output_option
def command(plan_file: str, output: str, **options: Any) -> int:
    """Takes PLAN (from `firstlight plan --save`) to a verified endpoint; a plan whose facts changed is refused with what changed."""
    from pathlib import Path

    from firstlight.app.plan_options import Planning
    from firstlight.app.up_defaults import defaults
    from firstlight.app.upcommand import run_up
    from firstlight.core.errors import InputError
    from firstlight.core.saved import SavedPlan
    from firstlight.core.schema import decode

    try:
        saved = decode(Path(plan_file).read_bytes(), SavedPlan, origin=plan_file)
    except OSError as e:
        raise InputError("file-unreadable", f"{plan_file} cannot be read", evidence=(e.strerror or str(e),)) from None
    given = {**options, "host": options["host"] or saved.intent.host}
    return run_up(saved.intent.model, output, defaults(given), Planning(intent=saved.intent), saved=saved)
