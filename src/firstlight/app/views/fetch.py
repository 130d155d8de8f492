"""How a fetch is shown: one bar for the whole, the files in work below it; plain lines every 30 s where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from firstlight.app.output import Glyphs, console, glyphs, say
from firstlight.core.fetch import Fetched, FetchEstimate, FetchProgress
from firstlight.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

HEARTBEAT = 30.0
SHOWN_FILES = 4
WIDTH = 30
OnProgress = Callable[[FetchProgress], None]


def show_estimate(estimate: FetchEstimate) -> None:
    """What will be moved, to where, under which terms; on stderr, before the first byte."""
    left = sum(f.size or 0 for f in estimate.left_out)
    lines = [
        ("model", f"{estimate.name or estimate.ref}{f' at {estimate.revision[:12]}' if estimate.revision else ''}"),
        ("license", f"{estimate.license or 'unknown'}{f', gated ({estimate.gated})' if estimate.gated else ''}"),
        ("size", f"{format_bytes(estimate.bytes_total)} in {_files(len(estimate.files))}{_present(estimate)}"),
        ("left out", f"{_files(len(estimate.left_out))}, {format_bytes(left)}: {_reasons(estimate)}" if estimate.left_out else ""),
        ("to", f"{estimate.destination}{_room(estimate)}"),
        ("time", _time(estimate)),
    ]
    for name, text in lines:
        if text:
            say(f"  {name:9} {text}")


def _files(n: int) -> str:
    return f"{n} file{'s' if n != 1 else ''}"


def _present(estimate: FetchEstimate) -> str:
    return f", {format_bytes(estimate.bytes_present)} here already" if estimate.bytes_present else ""


def _reasons(estimate: FetchEstimate) -> str:
    """Each reason once, in the order of bytes saved."""
    saved: dict[str, int] = {}
    for file in estimate.left_out:
        saved[file.because] = saved.get(file.because, 0) + (file.size or 0)
    return "; ".join(sorted(saved, key=lambda r: -saved[r])[:3])


def _room(estimate: FetchEstimate) -> str:
    space = estimate.space
    return f" ({space.filesystem or 'unknown'}, {format_bytes(space.available_bytes)} available)" if space else ""


def _time(estimate: FetchEstimate) -> str:
    figure = estimate.expected_seconds
    if not estimate.bytes_to_fetch:
        return ""
    if not figure.known:
        return f"unknown: {figure.because}"
    return f"about {format_seconds(figure.mid)} ({format_seconds(figure.low)} to {format_seconds(figure.high)}, {figure.because})"


def show_fetched(fetched: Fetched) -> None:
    """The result, on stdout."""
    moved = f"{format_bytes(fetched.bytes_fetched)} in {format_seconds(fetched.seconds)}" if fetched.bytes_fetched else "all was here"
    print(f"{glyphs().ok} {fetched.name or fetched.ref}: {_files(len(fetched.files))}, {format_bytes(fetched.bytes_total)}, {moved}")
    print(f"  {fetched.path}")


@contextmanager
def progress_display() -> Iterator[OnProgress]:
    """Gives the callback that draws."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.live import Live

    screen = Screen()
    with Live(get_renderable=screen.render, console=console(err=True), refresh_per_second=5, transient=True):
        yield screen


class Screen:
    """The last snapshot, drawn whenever the terminal is refreshed."""

    def __init__(self) -> None:
        self._now = FetchProgress(phase="listing")
        self._marks = glyphs(sys.stderr)  # now: while Live runs, sys.stderr is a stand-in that names no encoding

    def __call__(self, progress: FetchProgress) -> None:
        self._now = progress

    def render(self) -> "RenderableType":
        from rich.text import Text

        return Text("\n".join(progress_lines(self._now, self._marks)), no_wrap=True, overflow="ellipsis")


class Lines:
    """One line a phase, and one every 30 s while bytes move."""

    def __init__(self) -> None:
        self._phase, self._spoke = "", 0.0

    def __call__(self, progress: FetchProgress) -> None:
        now = time.monotonic()
        if progress.phase in ("done", "listing") or (progress.phase == self._phase and now - self._spoke < HEARTBEAT):
            return
        self._phase, self._spoke = progress.phase, now
        say(progress_lines(progress, glyphs(sys.stderr))[0])


def progress_lines(progress: FetchProgress, marks: Glyphs) -> list[str]:
    """The bar, then the note, then the files in work."""
    parts = [f"{marks.run} {progress.phase}", _bar(progress, marks), _amount(progress)]
    if progress.bytes_per_second:
        parts.append(f"{format_bytes(progress.bytes_per_second, digits=1)}/s")
    if progress.eta_seconds is not None:
        parts.append(f"about {format_seconds(progress.eta_seconds)} left")
    if progress.files_total > 1:
        parts.append(f"file {progress.files_done} of {progress.files_total}")
    lines = ["  ".join(p for p in parts if p)]
    lines += [f"  {marks.warn} {progress.note}"] if progress.note else []
    busy = [f for f in progress.files if f.state in ("fetching", "verifying")]
    lines += [f"    {f.state:9} {_percent(f.bytes_done, f.bytes_total):>4}  {f.name}" for f in busy[:SHOWN_FILES]]
    more = len(busy) - SHOWN_FILES
    return [*lines, f"    and {more} more"] if more > 0 else lines


def _bar(progress: FetchProgress, marks: Glyphs) -> str:
    if not progress.bytes_total:
        return ""
    full = min(WIDTH, int(WIDTH * progress.bytes_done / progress.bytes_total))
    return marks.full * full + marks.empty * (WIDTH - full)


def _amount(progress: FetchProgress) -> str:
    if progress.bytes_total is None:
        return format_bytes(progress.bytes_done) if progress.bytes_done else ""
    return f"{_percent(progress.bytes_done, progress.bytes_total)} of {format_bytes(progress.bytes_total)}" if progress.bytes_total else ""


def _percent(done: int, total: int | None) -> str:
    return f"{100 * done // total}%" if total else ""
