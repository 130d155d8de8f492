"""`firstlight watch RUN|LOG|-`: an engine's log as phases, figures, progress, ETA and verdict."""

import sys

import click

from firstlight.app import completing
from firstlight.app.output import output_option, write_json


@click.command("watch", short_help="read an engine's log as an expert does")
@click.argument("what", shell_complete=completing.runs_or_files, metavar="RUN|LOG|-")
@click.option("--replay", is_flag=True, help="Read the whole log at once, with the times that its lines carry.")
@click.option("--engine", type=click.Choice(["vllm", "llamacpp", "sglang"]), help="Which engine wrote it (default: seen from the lines).")
@output_option
def command(what: str, replay: bool, engine: str | None, output: str) -> int:
    """Follows a run, a log file or standard input until the engine is ready or over; a file that nobody writes is replayed.

    Phases and figures go to stderr; `-o jsonl` writes every event to stdout, one a line.
    """
    import asyncio

    import msgspec

    from firstlight.app.views.watch import WatchView, as_event, beat_event
    from firstlight.app.watching_log import exit_of, find_target, watch_target
    from firstlight.core.schema import encode
    from firstlight.watch.follow import Beat
    from firstlight.watch.state import LogEvent

    target = find_target(what)
    target = msgspec.structs.replace(target, engine=engine) if engine else target
    view = WatchView(live=sys.stderr.isatty() and output == "human")
    count = 0

    def take(item: LogEvent | Beat) -> None:
        nonlocal count
        count += 1
        if output == "human":
            view.beat(item) if isinstance(item, Beat) else view.event(item)
        else:
            made = beat_event(item, count, target.name) if isinstance(item, Beat) else as_event(item, count, target.name)
            write_json(encode(made, indent=0))

    log = asyncio.run(watch_target(target, take, replay=replay))
    if output == "human":
        view.close(log)
    return exit_of(log)
