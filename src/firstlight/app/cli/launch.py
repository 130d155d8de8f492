"""`firstlight launch`: an exact command or a saved LaunchSpec under a supervisor of its own."""

import click

from firstlight.app.output import emit, output_option
from firstlight.app.where import host_option


@click.command("launch", short_help="start a plan under a supervisor")
@click.argument("spec", required=False)
@click.argument("engine_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND …]")
@host_option("Where it starts: local, or ssh://USER@HOST; the command and its paths are that host's.")
@click.option("--name", help="The run's name; the served name when not given.")
@click.option("--port", type=int, help="The port that the command listens at.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="The address that the command listens at.")
@click.option("--served-model-name", help="The model's name in requests.")
@click.option("--health-path", default="/health", show_default=True, help="Answers 200 when the engine is ready.")
@click.option("--restart", is_flag=True, help="Start again with back-off when an engine that was ready dies.")
@click.option("--on-event", metavar="CMD", help="Run by sh for ready, failed, restarted and the like; see FIRSTLIGHT_EVENT.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it is ready or has failed.")
@output_option
def command(spec: str | None, engine_command: tuple[str, ...], output: str, **options: object) -> int:
    """Starts SPEC (a `launch.json` of a run), or your own engine COMMAND, and leaves it running.

    \b
    firstlight launch --port 8000 --served-model-name mine -- vllm serve /models/mine --port 8000
    firstlight launch ~/.local/state/firstlight/runs/demo-…/launch.json
    """
    from firstlight.app.launching import begin, show, spec_from

    if spec is not None and not spec.endswith(".json"):
        engine_command, spec = (spec, *engine_command), None
    run = begin(spec_from(spec, list(engine_command), options), options)
    emit(run, output, lambda: show(run))
    return 0
