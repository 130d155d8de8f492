"""`firstlight ask MODEL`: what the engine itself says about a model on a GPU, without the GPU and without weights."""

import sys
from typing import Any

import click

from firstlight.app.output import emit, output_option, say
from firstlight.app.plan_options import planning_of, planning_options
from firstlight.app.where import host_option
from firstlight.core.errors import Exit


@click.command(short_help="what the engine itself says about a model")
@click.argument("model", required=False)
@host_option("Whose model, GPUs and engine: local, or ssh://USER@HOST.")
@click.option("--engine-python", metavar="PATH", help="Ask the engine in this Python environment (any build, nightlies too).")
@click.option("--engine-wheel", metavar="vllm==X", help="Ask a release that is not installed: only its Python files are fetched.")
@click.option("--timeout", type=click.FloatRange(min=5), default=120.0, show_default=True, help="Seconds for one question.")
@click.option("--memory-limit", default="4GiB", show_default=True, help="Memory that the asking process may use.")
@click.option("--yes", is_flag=True, help="Do not ask before making the asking environment.")
@click.option("--allow", multiple=True, metavar="NAME", help="Consent by name: `install`.")
@planning_options
@output_option
def command(model: str | None, output: str, **options: Any) -> int:
    """Backends with the reason for each one rejected, exact bytes per rank, KV blocks and tokens, and the engine's own refusal.

    No GPU memory is used and no weight is read. Exit 0: it answers. 3: the length does not fit. 4: it refuses.
    """
    from firstlight.app.asking import Asking, ask_with
    from firstlight.app.views.answer import show_answer

    asking = Asking(
        **{name: options.pop(name) for name in ("host", "engine_python", "engine_wheel", "timeout", "memory_limit", "yes", "allow")}
    )
    planning = planning_of(options, model=model)
    answer = ask_with(planning, asking, on_step=say if sys.stderr.isatty() else (lambda text: None))
    emit(answer, output, lambda: show_answer(answer))
    codes = {f.code for f in answer.findings}
    if answer.refusal is None:
        return Exit.OK
    return Exit.NOTHING_FEASIBLE if "engine-refuses-length" in codes else Exit.PREFLIGHT_BLOCKED
