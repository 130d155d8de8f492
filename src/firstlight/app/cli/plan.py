"""`firstlight plan MODEL`: memory, context and layout, computed in under a second."""

import sys
from typing import Any

import click

from firstlight.app.output import emit, output_option, say
from firstlight.app.plan_options import planning_of, planning_options
from firstlight.core.errors import Exit

EXITS = {"fits": Exit.OK, "does-not-fit": Exit.NOTHING_FEASIBLE, "blocked": Exit.PREFLIGHT_BLOCKED, "unknown": Exit.OK}


def _step(text: str) -> None:
    if sys.stderr.isatty():
        say(text)


@click.command(short_help="memory, context and layout, computed")
@click.argument("model", required=False)
@click.option("--save", "save_to", metavar="FILE", help="Write the plan for `firstlight apply`.")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="The machine to plan for: local, or ssh://USER@HOST.")
@click.option("--all", "show_all", is_flag=True, help="Show every rejected layout.")
@click.option("--ask", "ask_engine", is_flag=True, help="Ask the engine itself too: its bytes, backends and refusals (seconds).")
@planning_options
@output_option
def command(model: str | None, save_to: str | None, host: str, show_all: bool, ask_engine: bool, output: str, **options: Any) -> int:
    """What fits where, from headers or a config alone, for this machine or one that is not there.

    Exit 0: fits, or nobody computes it for that engine. 3: nothing fits. 4: what was pinned cannot run.
    """
    from msgspec.structs import replace

    from firstlight.app.looking import look
    from firstlight.app.planning import ask_and_compute, compute, save

    planning = planning_of(options, model=model)
    planning = replace(planning, intent=replace(planning.intent, host=host))
    looked = look(planning, host=host)
    found = ask_and_compute(planning, looked, on_step=_step) if ask_engine else compute(planning, looked)

    def human() -> None:
        from firstlight.app.views.plan import show_plan

        show_plan(found, looked, planning, show_all=show_all)

    emit(found, output, human)
    if save_to:
        save(planning, looked, found, save_to)
    return EXITS[found.verdict]
