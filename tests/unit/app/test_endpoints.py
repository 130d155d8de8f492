"""What `verify` and `bench` point at."""

import asyncio
from pathlib import Path

import pytest

from firstlight.app.endpoints import target_of
from firstlight.app.store import RunStore
from firstlight.core.errors import UsageError
from firstlight.core.run import Endpoint, RunState


def test_a_run_that_is_over_is_not_asked_at_its_old_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = RunStore().create(name="gone", model="m", host="local")
    folder.update(state=RunState.STOPPED, endpoint=Endpoint(base_url="http://127.0.0.1:8000/v1", model="m"))
    with pytest.raises(UsageError, match="run-not-serving") as refused:
        asyncio.run(target_of("gone", model=None, key_file=None))
    assert refused.value.evidence == ("state: stopped",)
