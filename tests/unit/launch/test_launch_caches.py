"""Compile caches in one place, and the head start: where it helps, how far it reads."""

import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
from launch_runs import Runs, until

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.run import LaunchSpec
from firstlight.core.units import GIB, MIB
from firstlight.launch.caches import list_caches, prune, stale, with_caches
from firstlight.launch.client import Options
from firstlight.launch.headstart import HeadStart, plan_head_start
from firstlight.launch.supervisor.readahead import ReadAhead, shortage
from firstlight.probe.local import LocalHost

BUILD = EngineInstall(engine="vllm", version="0.32.0", build="vllm 0.32.0, torch 2.13.0")
H200 = Machine(hostname="h", accelerators=[Accelerator(index=0, name="NVIDIA H200")])
SPEC = LaunchSpec(engine="vllm", argv=["x"])


def test_one_place_per_build_and_gpu(host: LocalHost, tmp_path: Path) -> None:
    root = str(tmp_path)
    first = with_caches(SPEC, BUILD, H200, host=host, root=root).env
    assert first == with_caches(SPEC, BUILD, H200, host=host, root=root).env
    assert Path(first["VLLM_CACHE_ROOT"]).is_dir()
    other = msgspec.structs.replace(BUILD, build="vllm 0.32.0, torch 2.14.0")
    assert with_caches(SPEC, other, H200, host=host, root=root).env["VLLM_CACHE_ROOT"] != first["VLLM_CACHE_ROOT"]
    assert with_caches(SPEC, BUILD, Machine(hostname="h"), host=host, root=root).env["TRITON_CACHE_DIR"] != first["TRITON_CACHE_DIR"]


def test_a_place_that_was_chosen_is_respected(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    mine = msgspec.structs.replace(SPEC, env={"VLLM_CACHE_ROOT": "/also mine"})
    env = with_caches(mine, BUILD, H200, host=host, root=str(tmp_path)).env
    assert env["VLLM_CACHE_ROOT"] == "/also mine"
    assert "TRITON_CACHE_DIR" not in env


def test_sizes_and_pruning(host: LocalHost, tmp_path: Path) -> None:
    root = str(tmp_path / "compile")
    assert list_caches(host, root=root) == []
    env = with_caches(SPEC, BUILD, H200, host=host, root=root).env
    Path(env["VLLM_CACHE_ROOT"], "blob").write_bytes(b"x" * MIB)
    (found,) = list_caches(host, root=root)
    assert (found.engine, found.gpu, found.build) == ("vllm", "NVIDIA H200", BUILD.build)
    assert found.bytes is not None
    assert MIB <= found.parts["vllm"] <= found.bytes < 2 * MIB
    assert found.used == pytest.approx(time.time(), abs=60)
    assert not stale(found, 1)
    assert stale(msgspec.structs.replace(found, used=time.time() - 2 * 86400), 1)
    with pytest.raises(FirstlightError) as raised:
        prune(host, root=root, paths=frozenset({found.path, "/etc"}))
    assert raised.value.code == "not-a-cache"
    assert Path(found.path).exists()
    assert [c.path for c in prune(host, root=root, paths=frozenset({found.path}))] == [found.path]
    assert list_caches(host, root=root) == []
    assert list(Path(root).iterdir()) == []


def model(tmp_path: Path, sizes: dict[str, int]) -> Checkpoint:
    return Checkpoint(ref="m", format="safetensors", path=str(tmp_path), files={**sizes, "config.json": 100, "original/old.pth": GIB})


SHARDS = {"model-00002-of-2.safetensors": GIB, "model-00001-of-2.safetensors": GIB, "pytorch_model.bin": GIB}


def test_shards_in_loading_order_within_free_memory(host: LocalHost, tmp_path: Path) -> None:
    class Disk(LocalHost):
        def run(self, argv: Any, **options: Any) -> Any:
            return msgspec.structs.replace(super().run(["true"]), stdout=b"ext2/ext3\n")

    found = plan_head_start(Disk(), model(tmp_path, SHARDS), args=[], available_bytes=100 * GIB)
    assert [os.path.basename(f) for f in found.files] == ["model-00001-of-2.safetensors", "model-00002-of-2.safetensors"]
    assert found.limit_bytes == 2 * GIB
    little = plan_head_start(Disk(), model(tmp_path, SHARDS), args=[], available_bytes=8 * GIB, engine_memory_bytes=3 * GIB)
    assert little.limit_bytes == GIB
    assert "the first 1.00 GiB" in little.because


@pytest.mark.parametrize(
    ("args", "available", "sizes", "because"),
    [
        (["--load-format", "dummy"], 100, SHARDS, "dummy"),
        (["--load-format=runai_streamer"], 100, SHARDS, "runai_streamer"),
        (["--direct-io"], 100, SHARDS, "past the page cache"),
        ([], 4, SHARDS, "is free"),
        ([], 100, {"model.safetensors": 1000}, "at once"),
    ],
)
def test_where_it_does_not_help_it_says_why(
    host: LocalHost, tmp_path: Path, args: list[str], available: int, sizes: dict[str, int], because: str
) -> None:
    found = plan_head_start(host, model(tmp_path, sizes), args=args, available_bytes=available * GIB)
    assert found.files == []
    assert because in found.because


def test_reading_ahead_stops_at_the_limit_and_at_a_shortage(tmp_path: Path) -> None:
    paths = []
    for name in "ab":
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(100 * MIB)
        paths.append(str(path))

    def read(*files: str, limit: int, short: str | None = None) -> dict[str, Any]:
        return ReadAhead(list(files), limit_bytes=limit * MIB, keep_free_bytes=0, threads=1, short=lambda keep: short).run()

    done = ReadAhead(paths, limit_bytes=200 * MIB, keep_free_bytes=0, short=lambda keep: None).run()
    assert (done["bytes"], done["stopped"]) == (200 * MIB, "done")
    assert read(*paths, limit=64)["bytes"] == 64 * MIB
    assert read(*paths, limit=200, short="pressure") == {**read(*paths, limit=64), "stopped": "pressure", "seconds": ANY}
    assert "No such file" in read(str(tmp_path / "gone"), limit=1)["stopped"]
    assert shortage(1 << 60) == "memory"


def test_the_supervisor_reads_ahead_while_the_engine_starts(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"x" * MIB)
    wanted = HeadStart(files=[str(path)], limit_bytes=MIB, keep_free_bytes=0)
    client = runs.start({"steps": [{"sleep": 5}, {"serve": {}}]}, options=Options(head_start=wanted))
    assert until(client, "head-start-finished").data["bytes"] == MIB
    until(client, "ready")
    assert client.stop().exit["proof"]["clean"] is True  # type: ignore[index]


def test_readiness_ends_the_head_start(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    client = runs.start("plain", options=Options(head_start=HeadStart(files=[str(path)], limit_bytes=1 << 40, keep_free_bytes=0)))
    until(client, "ready")
    stopped = until(client, "head-start-finished").data["stopped"]
    assert stopped in ("overtaken", "pressure", "memory")  # a machine short of memory ends it earlier
