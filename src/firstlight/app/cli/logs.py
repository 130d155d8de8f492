"""`firstlight logs RUN [-f]`: the engine's full log."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from firstlight.app import completing

if TYPE_CHECKING:
    from firstlight.app.store import RunFolder
    from firstlight.core.errors import HostError
    from firstlight.core.ports import Host

FOLLOW_SECONDS = 0.1
FOLLOW_SECONDS_ELSEWHERE = 1.0
OVER_SECONDS = 2.0
PIECE = 1 << 20


@click.command("logs", short_help="an engine's full log")
@click.argument("run", shell_complete=completing.runs)
@click.option("-f", "--follow", is_flag=True, help="Keep printing what comes, until the run is over.")
@click.option("-n", "--tail", type=int, default=None, help="Only the last N lines.")
def command(run: str, follow: bool, tail: int | None) -> int:
    """Prints the engine's log of RUN (a name, an id, its beginning, or a folder), byte for byte, wherever it runs.

    A lost connection to another host is made again, and the log goes on from the byte where it broke off.
    """
    from firstlight.app.store import RunStore
    from firstlight.probe.patient import open_patient_host

    folder = RunStore().find(run)
    host = open_patient_host(folder.run.host, _lost)
    return follow_file(host, folder.log_there, tail, lambda: follow and not _over(folder))


def follow_file(host: "Host", path: str, tail: int | None, goes_on: Callable[[], bool]) -> int:
    """Prints what is there, then what comes, for as long as it goes on (asked every two seconds)."""
    position = _print_from(host, path, _start(host, path, tail))
    follow, looked = goes_on(), time.monotonic()
    while follow:
        time.sleep(FOLLOW_SECONDS if host.is_local else FOLLOW_SECONDS_ELSEWHERE)
        position = _print_from(host, path, position)
        if time.monotonic() - looked >= OVER_SECONDS:
            follow, looked = goes_on(), time.monotonic()
    _print_from(host, path, position)
    return 0


def _lost(error: "HostError") -> None:
    from firstlight.app.output import say

    say(f"{error.message}; trying again for ten minutes")


def _start(host: "Host", path: str, tail: int | None) -> int:
    """The byte where the last `tail` lines begin."""
    if tail is None or host.stat(path) is None:
        return 0
    data = host.read(path)
    lines = data.splitlines(keepends=True)
    return len(data) - sum(map(len, lines[-tail:] if tail else []))


def _print_from(host: "Host", path: str, position: int) -> int:
    """Prints what lies behind `position` and returns the new one; a rotated log starts again at 0."""
    found = host.stat(path)
    if found is None:
        return position
    position = 0 if found.size < position else position
    while position < found.size and (piece := host.read(path, position, PIECE)):
        sys.stdout.buffer.write(piece)
        position += len(piece)
    sys.stdout.flush()
    return position


def _over(folder: "RunFolder") -> bool:
    """Asked of the supervisor where nobody keeps the run's record up to date: after `up` has returned, and on another host."""
    from firstlight.app.reconcile import reconcile
    from firstlight.core.run import TERMINAL

    return reconcile(folder).state in TERMINAL
