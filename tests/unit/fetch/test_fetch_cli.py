"""`firstlight fetch` and `firstlight models` as a person and a program meet them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub.models import COMMIT, REPO
from hub.server import Hub

Env = dict[str, str]


@pytest.fixture
def shell(env: Env, tmp_path: Path) -> Env:
    places = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CACHE", "STATE", "DATA", "CONFIG")}
    return {**env, **places, "PATH": os.environ["PATH"], "COLUMNS": "200"}


def run(shell: Env, *argv: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-c", "from firstlight.app.main import main; main()", *argv]
    done = subprocess.run(line, env=shell, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_result_on_stdout_the_rest_on_stderr(hub: Hub, shell: Env, tmp_path: Path) -> None:
    done = run(shell, "fetch", REPO)
    head, path = done.stdout.splitlines()
    assert head.startswith("✓ org/tiny: 10 files, 1.72 MiB, 1.72 MiB in ")
    assert path.strip() == str(tmp_path / "hf/hub/models--org--tiny/snapshots" / COMMIT)
    lines = done.stderr.splitlines()
    assert "  license   apache-2.0" in lines
    assert "  size      1.72 MiB in 10 files" in lines
    assert any(line.startswith("  left out  4 files, ") and "original: another runtime's copy" in line for line in lines)


def test_ascii_where_the_terminal_has_no_more(hub: Hub, shell: Env) -> None:
    done = run({**shell, "PYTHONIOENCODING": "ascii"}, "fetch", REPO)
    assert done.stdout.startswith("+ org/tiny: ")
    assert done.stderr.isascii()


def test_json_is_one_document(hub: Hub, shell: Env) -> None:
    document = json.loads(run(shell, "fetch", REPO, "-o", "json").stdout)
    assert (document["schema"], document["kind"], document["revision"]) == ("firstlight/1", "Fetched", COMMIT)
    plan = json.loads(run(shell, "fetch", REPO, "--dry-run", "-o", "json").stdout)
    assert (plan["kind"], plan["bytes_to_fetch"]) == ("FetchEstimate", 0)


def test_large_downloads_need_a_yes(hub: Hub, shell: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = hub.folder / "org/huge" / COMMIT / "model.safetensors"
    sparse.parent.mkdir(parents=True)
    with sparse.open("wb") as file:
        file.truncate(1_100_000_000)
    hub._digests[str(sparse), sparse.stat().st_mtime, "sha256"] = "0" * 64
    done = run(shell, "fetch", "org/huge", code=8)
    assert "consent-missing: Download 1.0 GiB of org/huge?" in done.stderr
    assert "--yes" in done.stderr
    assert "one connection, tried for a second, gave" in done.stderr


def test_a_model_without_room_is_said_once_and_nothing_is_asked(hub: Hub, shell: Env) -> None:
    """`--dry-run` tells it by its exit status, too."""
    sparse = hub.folder / "org/huge" / COMMIT / "model.safetensors"
    sparse.parent.mkdir(parents=True)
    with sparse.open("wb") as file:
        file.truncate(15_000_000_000_000)
    hub._digests[str(sparse), sparse.stat().st_mtime, "sha256"] = "0" * 64
    for more in ((), ("--dry-run",), ("--yes",)):
        done = run(shell, "fetch", "org/huge", *more, code=4)
        assert done.stderr.count("no-space: the model does not fit on this disk") == 1
        assert "consent" not in done.stderr


def test_why_it_waits_is_said_before_the_bar_is_there(hub: Hub, shell: Env) -> None:
    hub.faults.busy_listings, hub.faults.retry_after = 2, "1"
    done = run(shell, "fetch", REPO, "--dry-run")
    assert "▲ the hub answered 429; trying again in 1 s" in done.stderr


def test_what_inspect_verify_knows_in_the_cache(hub: Hub, shell: Env) -> None:
    """The cache names large files by their sha256, small ones by git's sha1; the manifest knows all."""
    run(shell, "fetch", REPO)
    assert "content-verified: 10 file(s)" in run(shell, "inspect", REPO, "--verify", "sha256").stdout
    config = next(Path(shell["HF_HOME"]).rglob("snapshots/*/config.json"))
    config.resolve().write_text(config.read_text().replace("llama", "lamma"))
    assert "content-mismatch: config.json" in run(shell, "inspect", REPO, "--verify", "sha256").stdout


def test_an_error_is_a_message(hub: Hub, shell: Env) -> None:
    done = run(shell, "fetch", "org/absent", code=2)
    assert "error model-not-found: the hub knows no model org/absent, or hides it from you" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_shard_is_found_when_it_lands(hub: Hub, shell: Env) -> None:
    shard = hub.folder / REPO / COMMIT / "model-00001-of-00006.safetensors"
    shard.write_bytes(b"\xff" * 300_000)
    done = run(shell, "fetch", REPO, code=1)
    assert "model-00001-of-00006.safetensors" in done.stderr
    assert "header" in done.stderr


def listening_to_interrupts() -> None:
    """A shell's background job ignores SIGINT, and so would every child of this test run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_quick_and_keeps_what_came(hub: Hub, shell: Env) -> None:
    hub.faults.bytes_per_second = 10_000  # slow enough that a busy machine cannot miss the moment
    line = [sys.executable, "-c", "from firstlight.app.main import main; main()", "fetch", REPO]
    process = subprocess.Popen(
        line, env=shell, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=listening_to_interrupts
    )
    while hub.counts.bytes < 100_000:
        time.sleep(0.02)
        assert process.poll() is None
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - begun < 15
    assert "Traceback" not in err
    assert list(Path(shell["HF_HOME"]).rglob("*.part"))


def test_models_lists_and_removes_by_typed_name(hub: Hub, shell: Env) -> None:
    path = json.loads(run(shell, "fetch", REPO, "-o", "json").stdout)["path"]
    (row,) = json.loads(run(shell, "models", "-o", "json").stdout)["items"]
    assert (row["name"], row["place"], row["complete"], row["revisions"]) == (REPO, "hub", True, [COMMIT])
    assert row["bytes"] >= 1_800_000
    assert REPO in run(shell, "models").stdout
    done = run(shell, "models", "rm", REPO, code=8)
    assert "was not removed" in done.stderr
    assert Path(path).exists()
    run(shell, "models", "rm", REPO, "--confirm", "org/tinny", code=8)
    assert "removed org/tiny" in run(shell, "models", "rm", REPO, "--confirm", REPO).stdout
    assert not Path(path).exists()
    assert "no model is cached" in run(shell, "models").stderr


def test_a_model_that_a_run_serves_is_not_removed(hub: Hub, shell: Env) -> None:
    from firstlight.core.checkpoint import Checkpoint
    from firstlight.core.run import Run, RunState
    from firstlight.core.schema import encode

    path = json.loads(run(shell, "fetch", REPO, "-o", "json").stdout)["path"]
    folder = Path(shell["XDG_STATE_HOME"]) / "firstlight" / "runs" / "tiny-20260101-000000-aaaa"
    folder.mkdir(parents=True)
    served = Run(id=folder.name, name="tiny", model=REPO, state=RunState.SERVING, created=0.0, updated=0.0, folder=str(folder))
    (folder / "run.json").write_bytes(encode(served))
    (folder / "checkpoint.json").write_bytes(encode(Checkpoint(ref=REPO, format="safetensors", path=path)))
    (row,) = json.loads(run(shell, "models", "-o", "json").stdout)["items"]
    assert row["used_by"] == ["tiny (serving)"]
    done = run(shell, "models", "rm", REPO, "--confirm", REPO, code=8)
    assert "model-in-use" in done.stderr


def test_a_model_that_is_being_fetched_is_not_removed(hub: Hub, shell: Env) -> None:
    hub.faults.bytes_per_second = 50_000
    line = [sys.executable, "-c", "from firstlight.app.main import main; main()", "fetch", REPO]
    process = subprocess.Popen(line, env=shell, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while hub.counts.bytes < 50_000:
            time.sleep(0.02)
            assert process.poll() is None
        (row,) = json.loads(run(shell, "models", "-o", "json").stdout)["items"]
        assert row["complete"] is False
        assert "being fetched" in run(shell, "models", "rm", REPO, "--confirm", REPO, code=1).stderr
    finally:
        process.kill()
        process.wait()
