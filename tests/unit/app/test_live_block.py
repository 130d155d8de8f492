"""The live block on terminals of any size: names and times are whole, nothing wraps."""

import io
import time

import pytest
from rich.console import Console

from firstlight.app.output import ASCII, UNICODE, Glyphs
from firstlight.app.progress import Board, LiveProgress, fitting
from firstlight.core.events import Event

STAGES = ["inspect", "probe", "preflight", "plan", "watch", "verify", "report"]


def event(seq: int, stage: str, kind: str, **data: object) -> Event:
    return Event(seq=seq, time=time.time(), run="r", stage=stage, kind=kind, data=data)


def board() -> Board:
    made = Board("up", STAGES)
    for stage in STAGES[:4]:
        made.apply(event(0, stage, "stage-started"))
        made.apply(event(1, stage, "stage-finished", summary=f"a summary of {stage} " + "that does not end " * 12, seconds=4.2))
    made.apply(event(2, "watch", "stage-started"))
    made.apply(event(3, "watch", "phase", name="loading"))
    made.apply(event(4, "watch", "progress", done=7, total=163, unit="shards", eta_seconds=75.0))
    return made


def shown(width: int, height: int, marks: Glyphs = UNICODE) -> list[str]:
    progress = LiveProgress(board())
    progress.marks = marks
    out = io.StringIO()
    progress.console = Console(file=out, width=width, height=height, color_system=None, force_terminal=True)
    progress.console.print(progress.render())
    return out.getvalue().splitlines()


@pytest.mark.parametrize("marks", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_names_and_times_are_whole_and_nothing_wraps(width: int, marks: Glyphs) -> None:
    lines = shown(width, 40, marks)
    assert [line.split()[0 if line.startswith(" ") else 1] for line in lines] == STAGES
    assert all(len(line) < width for line in lines)
    assert all(line.endswith(" 4.2 s") for line in lines[:4])
    assert "loading" in lines[4]
    assert " of ~" in lines[4]
    assert len({len(line) for line in lines[:4]}) == 1
    assert marks is UNICODE or all(line.isascii() for line in lines)


def test_a_low_terminal_shows_what_runs() -> None:
    lines = shown(80, 5)
    assert len(lines) == 4
    assert any("watch" in line for line in lines)


def test_what_waits_goes_before_what_is_over() -> None:
    views = list(board().stages.values())
    assert [v.name for v in fitting(views, 6)] == STAGES[:6]
    assert [v.name for v in fitting(views, 3)] == ["preflight", "plan", "watch"]
    assert fitting(views, 100) == views
