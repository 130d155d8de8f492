"""`firstlight up MODEL`: the whole path, from a model to a verified endpoint."""

from typing import Any

import click

from firstlight.app.flow import SKIPPABLE, STAGES
from firstlight.app.output import output_option
from firstlight.app.plan_options import planning_of, planning_options_here

EPILOG = "Stages, in order:\n\n\b\n" + "\n".join(f"  {s.name:10} {s.help}" for s in STAGES)


@click.command("up", short_help="take a model to a verified endpoint", epilog=EPILOG)
@click.argument("model", required=False)
@click.option("--name", help="The run's name; the model's own when not said.")
@click.option("--host", default="local", show_default=True, metavar="local|ssh://USER@HOST", help="Where the engine runs.")
@click.option("--engine-python", metavar="PATH", envvar="FIRSTLIGHT_ENGINE_PYTHON", help="The interpreter that has the engine.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen at; the first free one from 8000 when not said.")
@click.option("--api-key-file", type=click.Path(dir_okay=False), help="File with the key that clients must send.")
@click.option("--generate-key", is_flag=True, help="Make a key for this name in a file that only you can read, and require it.")
@click.option("--allow-open", is_flag=True, help="Listen beyond this machine without a key.")
@click.option("--gpus", metavar="0,1", help="GPUs to use.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable for the engine.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the exact engine command, change nothing.")
@click.option("--foreground", is_flag=True, help="Stay, for containers and systemd; ending this ends the engine.")
@click.option("--skip", multiple=True, type=click.Choice(SKIPPABLE), help="Leave a stage out.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Override a preflight finding by name.")
@click.option("--accept", multiple=True, metavar="CHECK", help="Accept a failed verification check by name.")
@click.option("--allow", multiple=True, metavar="NAME", help="Say yes to one question by name.")
@click.option("--yes", "-y", is_flag=True, help="Say yes to every question.")
@click.option("--attempts", default=3, show_default=True, type=click.IntRange(1, 10), help="Starts at most, remedies included.")
@click.option("--rehearse", default="auto", show_default=True, type=click.Choice(["auto", "always", "never"]), help="Dummy weights first.")
@click.option("--ask", default="auto", show_default=True, type=click.Choice(["auto", "always", "never"]), help="Ask the engine first.")
@click.option(
    "--restart", default="on-failure", show_default=True, type=click.Choice(["on-failure", "never"]), help="When a ready engine dies."
)
@click.option("--on-event", metavar="CMD", help="Run for ready, failed, restarted, …; FIRSTLIGHT_EVENT and FIRSTLIGHT_DATA say what.")
@click.option("--blame", is_flag=True, help="When the answers fail, start again with one knob changed at a time and name the culprit.")
@planning_options_here
@output_option
def command(model: str | None, output: str, **options: Any) -> int:
    """Takes MODEL (a name, folder, .gguf, org/name, or `demo`) to a verified OpenAI-compatible endpoint and leaves it serving."""
    from firstlight.app.upcommand import run_up

    return run_up(model, output, options, planning_of(options, model=model))
