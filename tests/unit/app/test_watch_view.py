"""What `watch` says of waits between processes: harmless where the start went on, a hang where nothing came after or nothing moves."""

import pytest

from firstlight.app.views.watch import WatchView, beat_event, beat_line
from firstlight.app.watching_log import exit_of
from firstlight.core.errors import Exit
from firstlight.core.figures import Figure
from firstlight.watch.follow import Beat
from firstlight.watch.stall import Stall, Verdict
from firstlight.watch.state import EngineLog

LOADING = b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n"
WAIT = b"(EngineCore pid=2) INFO 10-12 08:01:05 [a.py:1] No available shared memory broadcast block found in 60 seconds.\n"
LOADED = b"INFO 10-12 08:02:05 [a.py:1] Model loading took 3.0 GiB memory and 4.0 seconds\n"
DIED = b"(EngineCore pid=2) ERROR 10-12 08:02:05 [a.py:1] EngineCore failed to start.\n"


def replayed(text: bytes, capsys: pytest.CaptureFixture[str]) -> str:
    view, log = WatchView(live=False), EngineLog("vllm", stamped=True)
    for event in log.feed(text, 0.0):
        view.event(event)
    view.close(log)
    return capsys.readouterr().err


def test_waits_that_the_start_went_on_after_were_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    shown = replayed(LOADING + WAIT + WAIT + LOADED, capsys)
    assert "one process waited for another (2 times, first in line 2): harmless, the start went on" in shown
    assert "hang" not in shown


@pytest.mark.parametrize("after", [b"", DIED])
def test_waits_with_nothing_or_a_death_after_them_are_no_proof_of_work(after: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    shown = replayed(LOADING + WAIT + after, capsys)
    assert "harmless, the start" not in shown
    assert "(first in line 2): a hang, unless it still moves" in shown


def beat(state: Stall, wait: str | None = None, **more: object) -> Beat:
    verdict = Verdict(state=state, because="x")
    return Beat(time=1.0, phase="loading", remaining=Figure(), verdict=verdict, wait=wait, **more)  # type: ignore[arg-type]


def test_a_live_wait_is_told_once_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    view = WatchView(live=False)
    for state in (Stall.MOVING, Stall.MOVING, Stall.STALLED, Stall.STALLED):
        view.beat(beat(state, wait=f"it waits, {state}"))
    shown = capsys.readouterr().err
    assert (shown.count("it waits, moving"), shown.count("it waits, stalled")) == (1, 1)


def test_silent_loading_is_shown_in_bytes() -> None:
    view = WatchView(live=False)
    found = beat(Stall.MOVING, done=2 << 30, total=8 << 30, unit="bytes")
    assert "2.0 GiB of 8.0 GiB" in beat_line(found, view.marks)
    assert (beat_event(found, 1, "r").data["done"], beat_event(found, 1, "r").data["unit"]) == (2 << 30, "bytes")


@pytest.mark.parametrize(("stamped", "code"), [(False, Exit.ENGINE_FAILED), (True, Exit.OK)])
def test_a_failure_that_was_watched_live_is_one_and_a_replay_is_not(*, stamped: bool, code: Exit) -> None:
    log = EngineLog("vllm", stamped=stamped)
    log.feed(DIED + b"INFO:     Application shutdown complete.\n", 1.0)
    assert exit_of(log) is code


@pytest.mark.parametrize("last", ["Traceback (most recent call last):", "vllm serve: error: unrecognized arguments: --x"])
def test_an_end_that_no_logger_tells_is_named(last: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "line 2: a process ended with an error" in replayed(LOADING + last.encode() + b"\n", capsys)
    ready = b"INFO:     Application startup complete.\n"
    assert "ended with an error" not in replayed(LOADING + last.encode() + b"\n" + ready, capsys)
