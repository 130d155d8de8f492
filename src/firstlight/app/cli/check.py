"""`firstlight check -- vllm serve …`: preflight for a user's own engine command."""

import click

from firstlight.app.output import emit_rows, output_option
from firstlight.core.errors import Exit


@click.command(short_help="preflight for your own engine command", context_settings={"ignore_unknown_options": False})
@click.option("--file", "-f", metavar="FILE", help="A compose file, a systemd unit or a shell script that has the command.")
@click.option("--engine", "release", metavar="NAME@VERSION", help="The release that will run, where neither image nor machine tells.")
@click.option("--gpu", metavar="COUNTxNAME", help="Check for a machine that is not there.")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="local, or ssh://USER@HOST.")
@click.option("--engine-python", metavar="PATH", help="Interpreter of the engine's environment.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Do not stop for this finding; it is shown all the same.")
@output_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    file: str | None,
    release: str | None,
    gpu: str | None,
    host: str,
    engine_python: str | None,
    ignore: tuple[str, ...],
    output: str,
    words: tuple[str, ...],
) -> int:
    """Reads `vllm serve …`, `python -m vllm…`, `docker run … vllm/vllm-openai:TAG …` or `llama-server …`, and starts nothing.

    Exit 0: nothing blocks. 4: something does.
    """
    from firstlight.app.preflighting import findings_of, look_at_command, read_command, show, with_release
    from firstlight.core.findings import blockers

    named = with_release(read_command(words, file), release)
    looked = look_at_command(named, host=host, gpu=gpu, engine_python=engine_python)
    findings = findings_of(looked, ignore)
    emit_rows("Finding", findings, output, lambda: show(looked, findings))
    return Exit.PREFLIGHT_BLOCKED if blockers(findings) else Exit.OK
