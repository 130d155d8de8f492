"""`firstlight diagnose LOG|RUN|-`: outcome, first cause, remedies, from the log alone."""

import click

from firstlight.app import completing
from firstlight.app.output import emit, output_option


@click.command("diagnose", short_help="the first cause of a failed start")
@click.argument("what", shell_complete=completing.runs_or_files, metavar="LOG|RUN|-")
@click.option("--engine", type=click.Choice(["vllm", "llamacpp", "sglang"]), help="Which engine wrote it (default: seen from the lines).")
@click.option("--engine-version", help="Its version, where the log does not say it.")
@click.option("--exit-status", type=int, help="The process's exit status; negative for a signal.")
@output_option
def command(what: str, engine: str | None, engine_version: str | None, exit_status: int | None, output: str) -> int:
    """Says why the engine failed, over all of its processes: wrappers removed, ranks merged, the cause first in time and causality.

    Exit 0 when the log could be read, whatever its outcome.
    """
    from firstlight.app.views.diagnosis import print_diagnosis
    from firstlight.app.watching_log import ending_of, file_chunks, find_target
    from firstlight.diagnose.diagnose import diagnose

    target = find_target(what)
    known = engine or (None if target.engine == "auto" else target.engine)
    ended, context = ending_of(target)
    status = exit_status if exit_status is not None else ended
    found = diagnose(file_chunks(target), engine=known, version=engine_version or target.version, exit_status=status, context=context)
    emit(found, output, lambda: print_diagnosis(found))
    return 0
