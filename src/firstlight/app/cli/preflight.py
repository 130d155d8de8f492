"""`firstlight preflight MODEL`: every problem at once, before anything starts."""

from typing import Any

import click

from firstlight.app.output import emit_rows, output_option
from firstlight.app.plan_options import planning_of, planning_options
from firstlight.core.errors import Exit


@click.command(short_help="every problem at once, before anything starts")
@click.argument("model", required=False)
@click.option("--host", default="local", show_default=True, metavar="HOST", help="local, or ssh://USER@HOST.")
@click.option("--engine-python", metavar="PATH", help="Interpreter of the engine's environment.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Do not stop for this finding; it is shown all the same.")
@click.option(
    "--peer-test/--no-peer-test",
    default=True,
    show_default=True,
    help="Copies and a short all-reduce between idle GPUs of this machine, where the plan has several (64 MiB on each, seconds).",
)
@planning_options
@output_option
def command(
    model: str | None, host: str, engine_python: str | None, ignore: tuple[str, ...], peer_test: bool, output: str, **options: Any
) -> int:
    """Runs every check on the checkpoint as it is, this machine (or another, or one that is not there) and the engine.

    Exit 0: nothing blocks. 4: something does.
    """
    from firstlight.app.preflighting import findings_of, look, show
    from firstlight.core.findings import blockers

    looked = look(planning_of(options, model=model), host=host, engine_python=engine_python, prove_peers=peer_test)
    findings = findings_of(looked, ignore)
    emit_rows("Finding", findings, output, lambda: show(looked, findings))
    return Exit.PREFLIGHT_BLOCKED if blockers(findings) else Exit.OK
