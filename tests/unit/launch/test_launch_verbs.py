"""The verbs `launch` and `cache` as a user types them."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from launch_runs import FAKE, free_port

from firstlight.app.group import run
from firstlight.app.places import cache_folder
from firstlight.app.store import RunStore
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.run import LaunchSpec
from firstlight.core.schema import encode
from firstlight.launch.caches import list_caches, with_caches
from firstlight.probe.local import LocalHost

pytestmark = pytest.mark.timeout(60)


def engine(script: str, port: int) -> list[str]:
    return [sys.executable, str(FAKE), script, "--port", str(port), "--served-model-name", "mine"]


def test_an_own_command_becomes_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert run(["launch", "-ojson", "--port", str(port), "--served-model-name", "mine", "--", *engine("ready", port)]) == 0
    try:
        started = json.loads(capsys.readouterr().out)
        assert (started["kind"], started["state"], started["name"]) == ("Run", "ready", "mine")
        assert started["endpoint"]["base_url"] == f"http://127.0.0.1:{port}/v1"
        assert run(["launch", "--port", str(port), "--name", "mine", "--", *engine("ready", port)]) == 2
        assert "name-in-use" in capsys.readouterr().err
    finally:
        assert run(["down", "mine"]) == 0
    saved = RunStore().find("mine").path / "launch.json"
    assert run(["launch", str(saved), "--name", "again"]) == 0
    assert run(["down", "again"]) == 0


def test_an_engine_that_fails_shows_its_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert run(["launch", "--port", str(port), "--name", "bad", "--", *engine("oom-weights", port)]) == 5
    said = capsys.readouterr().err
    assert "CUDA out of memory" in said
    assert "firstlight diagnose bad-" in said


def test_down_names_a_stranger_on_the_port_and_a_changed_name_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        assert run(["launch", "--no-wait", "--port", str(port), "--name", "Not Mine!", "--", *engine("silent", port)]) == 0
        assert "the run is called not-mine: " in capsys.readouterr().err
        stranger.listen()
        assert run(["down", "not-mine"]) == 0
    said = capsys.readouterr()
    assert "not-mine is stopped; nothing of it is left" in said.out
    assert f"port {port} is held by pid {os.getpid()}, uid {os.getuid()}: " in said.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "launch-what"),
        (["--", "vllm", "serve"], "port-missing"),
        (["/no/such/launch.json"], "not-found"),
        (["x.json", "--", "y"], "launch-what"),
        (["--port", "0", "--", "x"], "bad-launch"),
        (["--port", "70000", "--", "x"], "bad-launch"),
        (["--port", "1", "--", ""], "bad-launch"),
        (["--port", "1", "--bind", "a b", "--", "x"], "bad-launch"),
        (["--port", "1", "--health-path", "health\nX: y", "--", "x"], "bad-launch"),
    ],
)
def test_unclear_launches_are_refused(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", *arguments]) == 2
    assert code in capsys.readouterr().err


def test_a_launch_file_that_is_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"schema": "firstlight/1", "kind": "Run"}')
    assert run(["launch", str(path)]) == 2
    assert "wrong-kind" in capsys.readouterr().err


def test_caches_are_listed_and_pruned_on_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "list"]) == 0
    assert "no caches yet" in capsys.readouterr().err
    install = EngineInstall(engine="vllm", version="0.32.0", build="vllm 0.32.0")
    env = with_caches(
        LaunchSpec(engine="vllm", argv=["x"]), install, Machine(hostname="h", architecture="x86_64"), host=LocalHost(),
        root=str(cache_folder() / "compile"),
    ).env  # fmt: skip
    Path(env["TRITON_CACHE_DIR"], "kernel").write_bytes(b"k" * 5000)
    assert run(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert "vllm 0.32.0, cpu-x86_64" in shown
    assert "triton" in shown
    assert run(["cache", "list", "-ojson"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["items"]
    assert run(["cache", "prune", row["path"]]) == 8
    assert "consent-missing" in capsys.readouterr().err
    assert run(["cache", "prune", "--older-than", "1"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert run(["cache", "prune"]) == 2
    capsys.readouterr()
    assert run(["cache", "prune", "--all", "--yes"]) == 0
    assert row["path"] in capsys.readouterr().out
    assert not Path(row["path"]).exists()


def test_the_cache_of_an_engine_that_runs_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, root = free_port(), str(cache_folder() / "compile")
    spec = LaunchSpec(engine="fake", argv=engine("silent", port), port=port, served_model_name="mine")
    spec = with_caches(spec, EngineInstall(engine="vllm", version="1"), Machine(hostname="h"), host=LocalHost(), root=root)
    (tmp_path / "launch.json").write_bytes(encode(spec))
    assert run(["launch", "--no-wait", str(tmp_path / "launch.json")]) == 0
    try:
        (cache,) = list_caches(LocalHost(), root=root)
        assert run(["cache", "prune", "--older-than", "0", "--yes"]) == 0
        assert f"left: {cache.path}" in capsys.readouterr().err
        assert run(["cache", "prune", f"{cache.path}/", "--yes"]) == 2
        assert "cache-in-use" in capsys.readouterr().err
        assert Path(cache.path).is_dir()
    finally:
        assert run(["down", "mine"]) == 0
    assert run(["cache", "prune", "--all", "--yes"]) == 0
    assert not Path(cache.path).exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--older-than", "-1"], "bad-age"), (["--older-than", "nan"], "bad-age"), (["--all", "--older-than", "3"], "which-caches")],
)
def test_ages_that_say_nothing_prune_nothing(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "prune", "--yes", *words]) == 2
    assert code in capsys.readouterr().err
