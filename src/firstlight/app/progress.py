"""Progress on stderr: one live block on a terminal, plain lines and a heartbeat elsewhere. Both only read events."""

import sys
import time
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from firstlight.app.output import ASCII, Glyphs, console, glyphs, write_json
from firstlight.core.events import Event
from firstlight.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

QUIET_SECONDS = 10.0  # a stage that has just begun needs no sign of life


class StageView(Struct):
    """What is shown of one stage. state: waiting | running | done | failed | skipped."""

    name: str
    state: str = "waiting"
    summary: str = ""
    phase: str = ""
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    eta_seconds: float | None = None
    started: float = 0.0
    seconds: float | None = None


class Board:
    """The state behind every progress surface, built from events alone."""

    def __init__(self, title: str, stages: list[str]) -> None:
        self.title = title
        self.started = time.time()
        self.stages = {name: StageView(name=name) for name in stages}
        self.tail: list[str] = []

    def apply(self, event: Event) -> StageView | None:
        view = self.stages.get(event.stage)
        if view is None:
            return None
        data = event.data
        match event.kind:
            case "stage-started":
                view.state, view.started = "running", event.time
            case "stage-finished" | "stage-failed" | "stage-skipped":
                view.state = {"stage-finished": "done", "stage-failed": "failed", "stage-skipped": "skipped"}[event.kind]
                view.summary = str(data.get("summary", ""))
                view.seconds = data.get("seconds")
            case "progress":
                view.done, view.total, view.unit = data.get("done") or 0.0, data.get("total"), str(data.get("unit", ""))
                if "eta_seconds" in data:  # a step that the log tells has none: what `eta` said last still holds
                    view.eta_seconds = data["eta_seconds"]
            case "phase":
                view.phase = str(data.get("name", ""))
                view.total = None
            case "eta":
                view.eta_seconds = data.get("seconds")
            case "line":
                self.tail = [*self.tail[-2:], str(data.get("text", ""))]
        return view


def amount(view: StageView) -> str:
    """`12/163 shards`, `41.2 MiB of 93.7 MiB`, or nothing when no total is known."""
    if not view.total:
        return ""
    if view.unit == "bytes":
        return f"{format_bytes(view.done, digits=1)} of {format_bytes(view.total, digits=1)}"
    return f"{view.done:g}/{view.total:g} {view.unit}"


def bar(view: StageView, marks: Glyphs, width: int = 20) -> str:
    if not view.total:
        return ""
    filled = max(0, min(width, round(width * view.done / view.total)))
    return marks.full * filled + marks.empty * (width - filled)


_LOOK = {
    "done": ("ok", "green"),
    "failed": ("fail", "red"),
    "running": ("run", "cyan"),
    "skipped": ("skip", "dim"),
    "waiting": ("skip", "dim"),
}


def fitting(views: list[StageView], rows: int) -> list[StageView]:
    """As many stages as a low terminal shows: what waits goes first, from its end, then what is over, from its beginning."""
    while len(views) > max(1, rows) and views[-1].state == "waiting":
        views = views[:-1]
    return views[-max(1, rows) :]


class LiveProgress:
    """One live block: stages done, now and next; the running one has the bar, elapsed and expected."""

    def __init__(self, board: Board) -> None:
        from rich.live import Live

        self.board = board
        self.marks = glyphs(sys.stderr)
        self.console = console(err=True)
        self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=8, transient=False)

    def __enter__(self) -> "LiveProgress":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()
        self.console.print()  # what follows, a result or an error, stands apart

    def __call__(self, event: Event) -> None:
        self.board.apply(event)
        if event.kind == "say":
            self.live.console.print(str(event.data.get("text", "")))

    def render(self) -> "RenderableType":
        """A line a stage. Names and times are always whole; what is between them gives way to a narrow terminal."""
        from rich.console import Group

        names = max((len(name) for name in self.board.stages), default=0)
        return Group(*(self._row(view, names) for view in fitting(list(self.board.stages.values()), self.console.height - 1)))

    def _row(self, view: StageView, names: int) -> "Text":
        from rich.text import Text

        glyph, style = _LOOK[view.state]
        took = self._time(view)
        middle = self._middle(view)
        room = max(0, self.console.width - names - len(took) - 5)
        middle.truncate(room, overflow="crop" if self.marks is ASCII else "ellipsis", pad=True)
        line = Text(no_wrap=True, overflow="crop")
        line.append(" " if view.state == "waiting" else getattr(self.marks, glyph), style=style)
        line.append(f" {view.name:{names}} ", style="dim" if view.state in ("waiting", "skipped") else "")
        line.append_text(middle)
        return line.append(f" {took}", style="dim")

    def _middle(self, view: StageView) -> "Text":
        from rich.text import Text

        if view.state != "running":
            return Text(view.summary, style="red" if view.state == "failed" else "dim" if view.state == "skipped" else "")
        return Text("  ".join(p for p in (view.phase, bar(view, self.marks), amount(view)) if p), style="cyan")

    def _time(self, view: StageView) -> str:
        if view.state == "running":
            eta = f" of ~{format_seconds(time.time() - view.started + view.eta_seconds)}" if view.eta_seconds else ""
            return f"{format_seconds(time.time() - view.started)}{eta}"
        return format_seconds(view.seconds) if view.seconds is not None else ""


class PlainProgress:
    """A line a stage and phase, and a heartbeat every 30 s, for logs and pipes."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.marks = glyphs(sys.stderr)

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        view = self.board.apply(event)
        if event.kind == "say":
            click.echo(str(event.data.get("text", "")), err=True)
        elif view is not None and (line := self._line(event, view)):
            click.echo(line, err=True)

    def _line(self, event: Event, view: StageView) -> str | None:
        match event.kind:
            case "stage-finished" | "stage-failed" | "stage-skipped":
                took = f" ({format_seconds(view.seconds)})" if view.seconds is not None else ""
                return f"{getattr(self.marks, _LOOK[view.state][0])} {view.name:9} {view.summary}{took}"
            case "phase":
                return f"{self.marks.run} {view.name:9} {view.phase}"
            case "heartbeat" if event.time - view.started >= QUIET_SECONDS:
                parts = [view.phase, amount(view), f"{format_seconds(event.time - view.started)} elapsed"]
                parts += [f"about {format_seconds(view.eta_seconds)} left"] if view.eta_seconds else []
                return f"{self.marks.run} {view.name:9} still running: {', '.join(p for p in parts if p)}"
            case _:
                return None


class JsonLines:
    """`-o jsonl`: every event as one line on stdout."""

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        from firstlight.core.schema import encode

        write_json(encode(event, indent=0))


def choose_progress(output: str, title: str, stages: list[str]) -> LiveProgress | PlainProgress | JsonLines:
    if output == "jsonl":
        return JsonLines()
    board = Board(title, stages)
    return LiveProgress(board) if sys.stderr.isatty() and not _dumb() else PlainProgress(board)


def _dumb() -> bool:
    import os

    return os.environ.get("TERM", "") in ("", "dumb") or bool(os.environ.get("CI"))
