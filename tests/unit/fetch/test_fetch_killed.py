"""kill -9 at random points: what is there under its own name is always whole, and the last run ends with identical files."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub.models import COMMIT, REPO, digests, write_model
from hub.server import Hub

from firstlight.core.fetch import Fetched
from firstlight.fetch.fetch import fetch

KILLS = int(os.environ.get("FIRSTLIGHT_KILLS", "50"))
ZYGOTE = Path(__file__).parents[2] / "hub" / "zygote.py"


class Zygote:
    def __init__(self, env: dict[str, str], destination: str) -> None:
        argv = [sys.executable, str(ZYGOTE), REPO, destination]
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, kill_after: float | None) -> int:
        """One fetch; its exit status, -9 when it was killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline().split()[1])
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        return int(self.process.stdout.readline().split()[1])

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_killed_at_random_points_ends_with_identical_files(tmp_path: Path, place: str) -> None:
    write_model(tmp_path / "hub" / REPO / COMMIT, shards=200, size=60_000, extras=False)
    theirs = digests(tmp_path / "hub" / REPO / COMMIT)
    with Hub(tmp_path / "hub") as hub:
        hub.faults.bytes_per_second = 400_000
        hub.faults.reset_every, hub.faults.reset_after = 17, 20_000
        env = {**os.environ, "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url}
        snapshot = tmp_path / "hf" / "hub" / "models--org--tiny" / "snapshots" / COMMIT
        result = snapshot if place == "cache" else tmp_path / "to"
        zygote = Zygote(env, "-" if place == "cache" else str(result))
        try:
            statuses = _kill_often(zygote, result, theirs, KILLS // 2)
            assert statuses.count(-signal.SIGKILL) >= KILLS // 2 - 2
            hub.faults.bytes_per_second = 0
            assert zygote.run(None) == 0
        finally:
            zygote.close()
        assert digests(result) == theirs
        assert not list(tmp_path.rglob("*.part*"))


def _kill_often(zygote: Zygote, result: Path, theirs: dict[str, str], times: int) -> list[int]:
    """After each kill, every file under its own name is the hub's, byte by byte."""
    dice, statuses = random.Random(9), []
    for _ in range(times):
        statuses.append(zygote.run(dice.uniform(0.02, 0.35)))
        here = digests(result) if result.exists() else {}
        assert all(theirs[name] == found for name, found in here.items())
    return statuses


def test_the_second_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    write_model(tmp_path / "hub" / REPO / COMMIT, shards=20, size=100_000, extras=False)
    with Hub(tmp_path / "hub") as hub:
        hub.faults.bytes_per_second = 150_000
        env = {**os.environ, "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url}
        argv = [
            sys.executable,
            "-c",
            "import sys, asyncio; from firstlight.fetch.fetch import fetch; asyncio.run(fetch(sys.argv[1]))",
            REPO,
        ]
        first = subprocess.Popen(argv, env=env)
        while hub.counts.bytes < 400_000:
            time.sleep(0.02)

        async def second() -> tuple[Fetched, list[str]]:
            phases: list[str] = []
            task = asyncio.create_task(fetch(REPO, env=env, on_progress=lambda p: phases.append(p.phase)))
            while "waiting" not in phases:
                await asyncio.sleep(0.02)
                assert not task.done()
            hub.faults.bytes_per_second = 0
            first.kill()
            first.wait()
            return await task, phases

        fetched, phases = asyncio.run(second())
        assert digests(Path(fetched.path)) == digests(tmp_path / "hub" / REPO / COMMIT)
        assert 0 < fetched.bytes_fetched < sum(fetched.files.values()) - 200_000
        assert phases[-1] == "done"


def test_a_network_that_goes_and_comes_back(tmp_path: Path) -> None:
    write_model(tmp_path / "hub" / REPO / COMMIT, shards=12, size=200_000, extras=False)
    env = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}

    async def run() -> tuple[Fetched, list[str]]:
        notes: list[str] = []
        with Hub(tmp_path / "hub") as hub:
            hub.faults.bytes_per_second, port = 200_000, hub.port
            task = asyncio.create_task(fetch(REPO, env={**env, "HF_ENDPOINT": hub.url}, on_progress=lambda p: notes.append(p.note or "")))
            while hub.counts.bytes < 500_000:
                await asyncio.sleep(0.02)
                assert not task.done()
            hub.drop_all()
        await asyncio.sleep(1.0)
        assert not task.done()
        with Hub(tmp_path / "hub", port):
            return await task, notes

    fetched, notes = asyncio.run(run())
    assert digests(Path(fetched.path)) == digests(tmp_path / "hub" / REPO / COMMIT)
    assert any("refused" in note or "reset" in note or "early" in note for note in notes)
