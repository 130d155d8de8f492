"""A hub on loopback with one small model, and an environment that knows nothing else."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from hub.models import COMMIT, REPO, write_model
from hub.server import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    write_model(tmp_path / "hub" / REPO / COMMIT, shards=6, size=300_000)
    with Hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def env(tmp_path: Path, hub: Hub) -> dict[str, str]:
    """No home, no token, no proxy of the developer's."""
    return {"HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PATH": "/usr/bin:/bin"}
