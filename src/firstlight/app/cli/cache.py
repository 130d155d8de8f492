"""`firstlight cache`: what engines have compiled, where it is, how large it is, and what may go."""

import time

import click

from firstlight.app.output import emit_rows, glyphs, output_option, say


@click.group("cache", short_help="compile caches: sizes and pruning")
def command() -> None:
    """Compile, autotune and kernel caches, one place per engine build and GPU; overlays of checkpoints."""


@command.command("list", short_help="every cache with its size")
@click.option("--host", "host_name", default="local", show_default=True, metavar="HOST", help="local, or ssh://USER@HOST.")
@output_option
def list_(host_name: str, output: str) -> int:
    """Every cache with its size, largest first, and the overlays."""
    from firstlight.app.elsewhere import places_of
    from firstlight.core.units import format_bytes
    from firstlight.launch.caches import list_caches
    from firstlight.launch.overlay import list_overlays
    from firstlight.probe.hosts import open_host

    host = open_host(host_name)
    place = places_of(host).cache
    caches = list_caches(host, root=f"{place}/compile")
    overlays = list_overlays(host, f"{place}/overlays")

    def human() -> None:
        for cache in caches:
            click.echo(f"{format_bytes(cache.bytes):>12}  {cache.build}, {cache.gpu}  {_age(cache.used)}")
            for part, size in sorted(cache.parts.items(), key=lambda p: -p[1]):
                click.echo(f"{format_bytes(size):>16}  {part}")
            click.echo(f"{'':12}  {cache.path}")
        for overlay in overlays:
            click.echo(f"{'overlay':>12}  {overlay.checkpoint}\n{'':12}  {overlay.because}\n{'':12}  {overlay.path}")
        if not caches and not overlays:
            say("no caches yet: the first start of an engine makes one")

    emit_rows("Cache", caches, output, human)
    return 0


@command.command("prune", short_help="remove caches by path, by age, or all")
@click.argument("paths", nargs=-1)
@click.option("--older-than", "days", type=float, help="Caches that no start has used for that many days.")
@click.option("--all", "every", is_flag=True, help="Every cache.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--host", "host_name", default="local", show_default=True, metavar="HOST", help="local, or ssh://USER@HOST.")
@output_option
def prune_(paths: tuple[str, ...], days: float | None, every: bool, yes: bool, host_name: str, output: str) -> int:
    """Removes caches by PATH, by age, or all of them; not those of an engine that runs. The next start compiles again."""
    from firstlight.app.consent import Consent
    from firstlight.app.elsewhere import places_of
    from firstlight.app.pruning import chosen_caches, refuse_unclear
    from firstlight.core.units import format_bytes
    from firstlight.launch.caches import prune
    from firstlight.probe.hosts import open_host

    refuse_unclear(paths, days, every=every)
    host = open_host(host_name)
    root = f"{places_of(host).cache}/compile"
    chosen = chosen_caches(host, root, paths, days, every=every)
    wanted = frozenset(c.path for c in chosen)
    size = format_bytes(sum(c.bytes or 0 for c in chosen))
    if wanted:
        Consent(yes=yes).require(
            "prune", f"remove {len(wanted)} cache{'s' if len(wanted) > 1 else ''}, {size}?", evidence=tuple(sorted(wanted))
        )
    removed = prune(host, root=root, paths=wanted)
    mark = glyphs().ok
    emit_rows("Cache", removed, output, lambda: click.echo("\n".join(f"{mark} removed {c.path}" for c in removed) or "nothing to remove"))
    return 0


def _age(used: float | None) -> str:
    return "never used" if used is None else f"used {max(0.0, time.time() - used) / 86400:.1f} days ago"
