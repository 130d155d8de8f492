"""`firstlight knowledge`: what healing has learned about models on this machine, and forgetting it."""

import time
from typing import TYPE_CHECKING

import click

from firstlight.app.output import emit_rows, glyphs, output_option, say

if TYPE_CHECKING:
    from firstlight.app.knowledge import Lesson


@click.group("knowledge", short_help="what healing has learned about models on this machine")
def command() -> None:
    """A start that failed, was healed and became ready leaves its changes as knowledge for the next start of that model here."""


@command.command("list")
@output_option
def list_(output: str) -> int:
    """Every lesson: model, machine, engine, what the next plan will begin with, and why."""
    from firstlight.app.knowledge import lessons, unreadable

    found = lessons()
    emit_rows("Lesson", found, output, lambda: _show(found))
    for path in unreadable():
        say(f"{glyphs().warn} not readable, so that nothing is known by it: {path} (firstlight knowledge forget --all removes it too)")
    return 0


@command.command("forget")
@click.argument("ids", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every lesson.")
@output_option
def forget_(ids: tuple[str, ...], every: bool, output: str) -> int:
    """Removes lessons by ID (or its beginning). The next start plans as if it had never been tried."""
    from firstlight.app.knowledge import forget, lessons, remove, unreadable
    from firstlight.core.errors import UsageError

    if every == bool(ids):
        raise UsageError("which-lessons", "nothing says what to forget", hint="name ids, or say --all; firstlight knowledge list")
    removed = forget([lesson.id for lesson in lessons()] if every else list(ids))
    if every and (damaged := unreadable()):
        remove(damaged)
        say(f"removed, not readable: {', '.join(map(str, damaged))}")
    mark = glyphs().ok
    emit_rows("Lesson", removed, output, lambda: click.echo("\n".join(f"{mark} forgot {x.id}: {x.model}" for x in removed) or "nothing"))
    return 0


def _show(found: "list[Lesson]") -> None:
    if not found:
        say("nothing learned yet: starts that were healed leave their changes here")
    for lesson in found:
        day = time.strftime("%Y-%m-%d", time.localtime(lesson.learned))
        click.echo(f"{lesson.id}  {lesson.model}\n{'':14}{lesson.engine} on {lesson.machine}, {day}, run {lesson.run}")
        for c in lesson.constraints:
            before = lesson.tried.get(c.field)
            was = "" if before is None else f" (was {before})"
            click.echo(f"{'':14}{c.field} {c.op} {'unset' if c.value is None else c.value}{was}: {c.because}")
