"""`firstlight logs RUN [-f]`: the engine's full log."""

import sys
import time
from pathlib import Path

import click

FOLLOW_SECONDS = 0.1


@click.command("logs", short_help="an engine's full log")
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Keep printing what comes, until the run is over.")
@click.option("-n", "--tail", type=int, default=None, help="Only the last N lines.")
def command(run: str, follow: bool, tail: int | None) -> int:
    """Prints the engine's log of RUN (a name, an id, its beginning, or a folder), byte for byte."""
    from firstlight.app.store import RunStore

    folder = RunStore().find(run)
    position = _print_from(folder.log, _start(folder.log, tail))
    while follow and not _over(folder.path):
        time.sleep(FOLLOW_SECONDS)
        position = _print_from(folder.log, position)
    _print_from(folder.log, position)
    return 0


def _start(log: Path, tail: int | None) -> int:
    """The byte where the last `tail` lines begin."""
    if tail is None or not log.exists():
        return 0
    data = log.read_bytes()
    lines = data.splitlines(keepends=True)
    return len(data) - sum(map(len, lines[-tail:] if tail else []))


def _print_from(log: Path, position: int) -> int:
    """Prints what lies behind `position` and returns the new one; a rotated log starts again at 0."""
    if not log.exists():
        return position
    with open(log, "rb") as f:
        if f.seek(0, 2) < position:
            position = 0
        f.seek(position)
        while chunk := f.read(1 << 20):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return f.tell()


def _over(folder: Path) -> bool:
    from firstlight.app.store import RunFolder
    from firstlight.core.run import TERMINAL

    return RunFolder(folder).run.state in TERMINAL
