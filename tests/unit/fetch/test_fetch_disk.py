"""A disk that is full, a folder that cannot be written: nothing is lost, and the next run goes on."""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.models import COMMIT, REPO, digests, write_model
from hub.server import Hub

from firstlight.core.errors import HostError
from firstlight.fetch.fetch import fetch

RUN = "import asyncio, sys; from firstlight.fetch.fetch import fetch; asyncio.run(fetch(sys.argv[1], destination=sys.argv[2]))"


def test_a_limit_on_files_ends_cleanly_and_is_resumed(hub: Hub, env: dict[str, str], tmp_path: Path) -> None:
    """RLIMIT_FSIZE refuses the write as a full disk does (EFBIG), in a process of its own."""
    to = tmp_path / "to"
    argv = [sys.executable, "-c", RUN, REPO, str(to)]
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # noqa: E731
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, preexec_fn=small, timeout=60, check=False)
    assert done.returncode == 1
    assert "disk-full: the file is larger than this file system or `ulimit -f` allows" in done.stderr
    assert list((to / ".firstlight" / "parts").glob("*.journal"))
    fetched = asyncio.run(fetch(REPO, destination=str(to), env=env))
    assert 0 < fetched.bytes_fetched < sum(fetched.files.values())
    theirs = digests(hub.folder / REPO / COMMIT)
    assert digests(to) == {n: theirs[n] for n in fetched.files}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_midway(hub: Hub, env: dict[str, str], small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstlight.fetch.space.MARGIN", 0)
    write_model(hub.folder / "org/six" / COMMIT, shards=6, size=1_000_000, extras=False)
    hub.faults.bytes_per_second = 1_000_000
    filler = small_disk / "filler"

    async def run() -> None:
        task = asyncio.create_task(fetch("org/six", destination=str(small_disk / "to"), env=env))
        await asyncio.sleep(0.4)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for _ in range(80):
                file.write(b"x" * 100_000)
        await task

    with pytest.raises(HostError) as e:
        asyncio.run(run())
    assert e.value.code == "disk-full"
    assert "goes on" in (e.value.hint or "")
    filler.unlink()
    hub.faults.bytes_per_second = 0
    fetched = asyncio.run(fetch("org/six", destination=str(small_disk / "to"), env=env))
    assert fetched.bytes_fetched < sum(fetched.files.values())
    assert digests(small_disk / "to") == digests(hub.folder / "org/six" / COMMIT)


def test_a_target_in_memory_is_a_warning(hub: Hub, env: dict[str, str], small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstlight.fetch.space.MARGIN", 0)
    fetched = asyncio.run(fetch(REPO, destination=str(small_disk / "to"), env=env))
    assert [f.code for f in fetched.findings] == ["target-not-persistent"]


def test_a_disk_that_is_too_small_is_refused_before(hub: Hub, env: dict[str, str], small_disk: Path) -> None:
    """8 MiB hold the model, but not the margin."""
    with pytest.raises(HostError) as e:
        asyncio.run(fetch(REPO, destination=str(small_disk / "to"), env=env))
    assert e.value.code == "no-space"
    assert any("tmpfs" in line for line in e.value.evidence)
    assert hub.counts.bodies == 0
