"""`firstlight bench URL|RUN` and `firstlight bench compare A B`."""

import asyncio
from typing import Any

import click

from firstlight.app import completing
from firstlight.app.output import emit, output_option
from firstlight.core.errors import Exit, UsageError

PROFILES = ("quick", "single", "agents", "throughput", "long-context")


@click.command(short_help="how fast an endpoint is, next to what was promised")
@click.argument("what", nargs=-1, required=True, shell_complete=completing.runs, metavar="URL|RUN | compare A.json B.json")
@click.option("--model", help="Served model name; default: the only one served.")
@click.option("--profile", type=click.Choice(PROFILES), default="quick", show_default=True, help="What is sent.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Users at most; the sweep goes 1, 2, 4, ... up to it.")
@click.option("--tool", type=click.Choice(["builtin", "vllm"]), default="builtin", show_default=True, help="vllm: the engine's own.")
@click.option("--engine-python", metavar="PATH", help="For --tool vllm: the Python of the vLLM environment.")
@click.option("--tokenizer", metavar="FOLDER", help="For --tool vllm: the model's folder.")
@click.option("--goodput", multiple=True, metavar="ttft:MS", help="Limits that a good request keeps (ttft, tpot, e2el); missed: exit 7.")
@click.option("--api-key-file", metavar="FILE", help="File with the key; else $FIRSTLIGHT_API_KEY or $OPENAI_API_KEY.")
@click.option("--force", is_flag=True, help="Measure without passed coherence; the report says so.")
@output_option
def command(what: tuple[str, ...], output: str, **options: Any) -> int:
    """Measures URL or RUN: TTFT, TPOT, ITL, E2EL and tokens a second, from one user up to the planned concurrency.

    Refuses an endpoint whose answers have not passed coherence. Exit 5: of a level no request came to its end. 6: not coherent. 7: the
    SLO of --goodput is missed.
    """
    from firstlight.app import benching

    if what[0] == "compare":
        if len(what) != 3:
            raise UsageError("compare-needs-two", "compare takes two reports", hint="firstlight bench compare A.json B.json")
        benching.refuse_measuring(options)
        found = benching.compare_files(what[1], what[2])
        emit(found, output, lambda: benching.show_comparison(found))
        return Exit.OK
    if len(what) != 1:
        raise UsageError("one-endpoint", f"{len(what)} endpoints given", hint="firstlight bench URL")
    wanted = benching.Benching(ref=what[0], live=output == "human", **options)
    report = asyncio.run(benching.bench_with(wanted))
    emit(report, output, lambda: benching.show_report(report))
    return benching.exit_of(report, wanted.goodput)
