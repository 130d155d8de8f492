"""Runs of the fake engine under a real supervisor; whatever a test leaves is ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_runs import Runs

from firstlight.probe.local import LocalHost


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture
def runs(host: LocalHost, tmp_path: Path) -> Iterator[Runs]:
    found = Runs(host, tmp_path)
    yield found
    found.end()
