"""`firstlight verify URL|RUN`: prove that an endpoint's answers make sense."""

import asyncio
from typing import Any

import click

from firstlight.app.output import emit, output_option
from firstlight.core.errors import Exit


@click.command(short_help="prove that an endpoint's answers make sense")
@click.argument("endpoint", metavar="URL|RUN")
@click.option("--model", help="Served model name; default: the only one served.")
@click.option("--profile", type=click.Choice(["quick", "full"]), default="quick", show_default=True, help="How much is asked.")
@click.option("--checks", metavar="NAME,...", help="Only these checks or groups.")
@click.option("--accept", multiple=True, metavar="NAME", help="Take this check's failure; it is shown all the same.")
@click.option("--kind", type=click.Choice(["chat", "base", "embedding", "reward"]), help="What the model is; default: chat.")
@click.option("--claim", multiple=True, type=click.Choice(["tools", "reasoning", "json-schema", "vision"]), help="Test this claim too.")
@click.option("--tool-parser", metavar="NAME", help="The engine's tool parser, so that a wrong one is named.")
@click.option("--reasoning-parser", metavar="NAME", help="The engine's reasoning parser, likewise.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Parallel long requests that were planned.")
@click.option("--api-key-file", metavar="FILE", help="File with the key; else $FIRSTLIGHT_API_KEY or $OPENAI_API_KEY.")
@click.option("--save-reference", metavar="FILE", type=click.Path(dir_okay=False), help="Keep this endpoint's distributions as trusted.")
@click.option("--against", metavar="FILE|FOLDER", type=click.Path(exists=True), help="Compare with a trusted run, or with a model folder.")
@click.option("--engine-python", metavar="PATH", help="For --against FOLDER: a Python with transformers, which computes on the CPU.")
@click.option("--tolerance", type=click.Choice(["exact", "same", "quantized"]), help="For --against; default: same.")
@click.option("--budget", type=click.FloatRange(min=0), metavar="S", help="Seconds, after which only what is essential is asked.")
@click.option("--blame", is_flag=True, help="Name the culprit when answers fail: change one thing at a time and ask again.")
@click.option("--yes", is_flag=True, help="Yes to restarting RUN for --blame.")
@click.option("--allow", multiple=True, metavar="restart", help="Yes to this question only.")
@output_option
def command(endpoint: str, output: str, **options: Any) -> int:
    """Asks URL (any OpenAI-compatible endpoint) or RUN and judges the answers: contract, coherence, and what is claimed.

    Black box, no judge model. --blame restarts a RUN with one knob changed at a time, after consent; of a URL it changes what a request can
    change, and says what it cannot. Exit 0: passed. 6: not passed. 8: no consent to restart.
    """
    from firstlight.app.verifying import Verifying, show_verdict, verify_with

    wanted = Verifying(ref=endpoint, live=output == "human", **options)
    verdict = asyncio.run(verify_with(wanted))
    emit(verdict, output, lambda: show_verdict(verdict, wanted))
    return Exit.OK if verdict.passed else Exit.VERIFICATION_FAILED
