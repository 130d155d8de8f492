"""The same supervisor on a host that has Python and nothing of ours; what the driver says about GPU memory; the foreground."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from launch_runs import FAKE, Runs, fake_spec, until, wait_for

from firstlight.core.errors import FirstlightError, HostError
from firstlight.engines.llamacpp.adapter import RUNNER
from firstlight.launch.client import SupervisorClient, prepare, start
from firstlight.probe.local import LocalHost


class Far(LocalHost):
    """This machine as if it were another one: nothing may be taken from our own interpreter or files."""

    name = "ssh://far"
    is_local = False


def test_a_host_with_nothing_but_python(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    client = start(Far(), folder=str(folder), spec=fake_spec("plain"))
    try:
        assert until(client, "ready").data["seconds"] > 0
        request = (folder / "supervise.json").read_text()
        assert "firstlight" not in request.replace(str(FAKE.parents[2]), "").replace(str(tmp_path), "")
    finally:
        assert client.stop().state == "stopped"


def test_our_own_runners_go_along(tmp_path: Path) -> None:
    spec = fake_spec("plain", argv=["python3", RUNNER, "--model", "/m.gguf"])
    prepare(Far(), folder=str(tmp_path), spec=spec)
    shipped = tmp_path / "inside" / "serve.py"
    assert shipped.read_bytes() == Path(RUNNER).read_bytes()
    assert str(shipped) in (tmp_path / "supervise.json").read_text()
    assert RUNNER not in (tmp_path / "supervise.json").read_text()


def test_a_host_without_python_is_said(tmp_path: Path) -> None:
    class Bare(Far):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            raise HostError("command-not-found", "the command python3 was not found")

    with pytest.raises(FirstlightError) as raised:
        start(Bare(), folder=str(tmp_path), spec=fake_spec("plain"))
    assert raised.value.code == "no-python"


def test_the_archive_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    """Whatever the order of hashes, and whether the interpreter has compiled the sources before."""
    digest = (
        "import hashlib; from firstlight.launch.archive import supervisor_archive as a; print(hashlib.sha256(a()).hexdigest(), len(a()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-X", f"pycache_prefix={tmp_path / cache}", "-c", digest],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for cache, seed in (("one", "1"), ("one", "2"), ("two", "3"), ("three", "4"))
    }
    assert len(found) == 1
    assert int(found.pop().split()[1]) < 250_000


def test_a_supervisor_that_cannot_start_says_why(tmp_path: Path, host: LocalHost) -> None:
    argv = prepare(host, folder=str(tmp_path), spec=fake_spec("plain"))
    (tmp_path / "supervise.json").write_text("{ cut")
    done = host.run(argv)
    assert done.returncode == 1
    assert b"supervisor-cannot-start" in done.stderr
    with pytest.raises(FirstlightError) as raised:
        SupervisorClient(host, str(tmp_path)).status()
    assert raised.value.code == "never-supervised"


def test_gpu_memory_before_and_after_is_in_the_proof(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that gives memory back a moment later than the process ends."""
    tools, used = tmp_path / "bin", tmp_path / "used"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text(f"#!{sys.executable}\nprint('0, ' + open({str(used)!r}).read())\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    used.write_text("12")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    client = runs.start({"steps": [{"sleep": 2.5}, {"serve": {}}]})
    until(client, "ready")
    used.write_text("900")
    engine = client.status().engine
    assert engine is not None
    os.kill(engine.pid, 9)
    until(client, "died")
    used.write_text("13")
    assert until(client, "ended").data["proof"]["gpu_memory"] == {"0": {"before": 12, "after": 13}}


def test_foreground_shows_the_log_and_ends_with_the_engine(host: LocalHost, tmp_path: Path) -> None:
    from firstlight.launch.client import Options

    spec = fake_spec({"steps": [{"log": "seen on the terminal"}, {"exit": 3}]})
    argv = prepare(host, folder=str(tmp_path), spec=spec, options=Options(tee=True))
    done = subprocess.run(argv, capture_output=True, timeout=30)
    assert done.returncode == 5
    assert b"seen on the terminal" in done.stdout


def test_foreground_stops_gracefully_on_sigterm(host: LocalHost, tmp_path: Path) -> None:
    argv = prepare(host, folder=str(tmp_path), spec=fake_spec("plain"))
    with subprocess.Popen(argv) as supervisor:
        client = SupervisorClient(host, str(tmp_path))
        wait_for(lambda: (tmp_path / "supervisor.json").exists())
        until(client, "ready")
        supervisor.terminate()
        assert supervisor.wait(timeout=20) == 0
    assert (client.exit() or {})["proof"]["clean"] is True
