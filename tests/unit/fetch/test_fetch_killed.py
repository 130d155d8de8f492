"""kill -9 at random points: what is there under its own name is always whole, and the last run ends with identical files."""

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
