"""What a fetch looks like, in Unicode and in ASCII."""

import io
import sys

import pytest

from firstlight.app.output import ASCII, UNICODE
from firstlight.app.views.fetch import Screen, progress_lines
from firstlight.core.fetch import FetchProgress, FileProgress

MOVING = FetchProgress(
    phase="fetching",
    bytes_done=135 << 30,
    bytes_total=540 << 30,
    bytes_per_second=600 << 20,
    eta_seconds=691.2,
    connections=6,
    files_done=29,
    files_total=119,
    files=[
        FileProgress(name="config.json", bytes_done=10, bytes_total=10, state="done"),
        *(FileProgress(name=f"model-{i:05}.safetensors", bytes_done=i, bytes_total=100, state="fetching") for i in range(30, 36)),
        FileProgress(name="model-00099.safetensors", bytes_done=0, bytes_total=100, state="waiting"),
    ],
    note="the server answered 429; trying again in 5 s",
)


def test_one_bar_the_note_and_the_files_in_work() -> None:
    assert progress_lines(MOVING, UNICODE) == [
        "● fetching  ███████░░░░░░░░░░░░░░░░░░░░░░░  25% of 540.00 GiB  600.0 MiB/s  about 11 min 31 s left  file 29 of 119",
        "  ▲ the server answered 429; trying again in 5 s",
        "    fetching   30%  model-00030.safetensors",
        "    fetching   31%  model-00031.safetensors",
        "    fetching   32%  model-00032.safetensors",
        "    fetching   33%  model-00033.safetensors",
        "    and 2 more",
    ]


def test_ascii() -> None:
    lines = progress_lines(MOVING, ASCII)
    assert lines[0].startswith("* fetching  #######.......................  25% of 540.00 GiB")
    assert all(line.isascii() for line in lines)


def test_nothing_is_invented_where_nothing_is_known() -> None:
    assert progress_lines(FetchProgress(phase="listing"), ASCII) == ["* listing"]
    assert progress_lines(FetchProgress(phase="fetching", bytes_done=2048), ASCII) == ["* fetching  2.00 KiB"]


def test_the_bar_keeps_its_signs_while_live_holds_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich's Live puts a stand-in into sys.stderr that names no encoding."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    screen = Screen()
    screen(MOVING)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert str(screen.render()).splitlines()[0].startswith("● fetching  ███████░")
