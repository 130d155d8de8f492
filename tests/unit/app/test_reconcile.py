"""A run's record beside those who write it: the last word of whoever worked on it stands."""

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest

from firstlight.app import reconcile
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.run import Run, RunState


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "demo-1"
    path.mkdir()
    made = RunFolder(path)
    made.save(Run(id="demo-1", name="demo", model="m", state=RunState.WARMING, created=1.0, updated=1.0, folder=str(path)), "run.json")
    return made


def test_what_another_wrote_while_we_looked_stands(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> tuple[RunState, str]:
        folder.update(state=RunState.SERVING)
        return RunState.READY, "not verified"

    monkeypatch.setattr(reconcile, "_look", look)
    assert reconcile.reconcile(folder).state is RunState.SERVING
    assert folder.run.state is RunState.SERVING


def test_a_run_that_nobody_verified_stays_one(folder: RunFolder) -> None:
    left = folder.update(state=RunState.READY, reason="not verified")
    assert reconcile._supervised(left, "ready", None, busy=False) == (RunState.READY, "not verified")
    serving = folder.update(state=RunState.SERVING)
    assert reconcile._supervised(serving, "ready", None, busy=False) == (RunState.SERVING, None)


def test_who_only_looks_stops_no_up(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.claim("demo"):
        assert store.claimed("demo")
    with (tmp_path / "locks" / "demo.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        over = threading.Timer(0.03, fcntl.flock, (looking, fcntl.LOCK_UN))
        over.start()
        with store.claim("demo"):
            assert store.claimed("demo")
        over.join()
    assert not store.claimed("demo")
