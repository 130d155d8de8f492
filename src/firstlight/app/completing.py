"""What the shell may complete besides verbs and flags: names that only this machine or the catalog knows. Never an error, never a start."""

import click
from click.shell_completion import CompletionItem


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of runs, and the ids of those that share one."""
    from firstlight.app.store import RunStore

    found = [run for _, run in RunStore().scan()[0]]
    names = dict.fromkeys([*(r.name for r in found), *(r.id for r in found)])
    return [n for n in names if n.startswith(incomplete)]


def runs_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs while one begins so; else the shell's own files."""
    found = [CompletionItem(name) for name in runs(ctx, param, incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from firstlight.catalog.findings import all_codes

    return [c for c in all_codes() if c.startswith(incomplete.lower())]


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """`8xrtx` goes on with the catalog's names; a count has to come first."""
    from firstlight.catalog.gpus import all_gpus

    count, times, begun = incomplete.partition("x")
    if not (times and count.isdigit()):
        return []
    return [f"{count}x{g.id}" for g in all_gpus() if g.id.startswith(begun.lower())]
