"""`up --host ssh://` against a real sshd on a machine with its own files, processes, network and user: what is there is only there."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import Firstlight, wait_for
from systemd_machine import SystemdMachine

from firstlight.app.elsewhere import ship_model
from firstlight.probe.ssh import SshHost

CUTS = 20
PAUSE = 2.0
USER, HOME_THERE = "llm", "/home/späce of llm"
HOST = "ssh://spark"


class Far:
    """The other machine, its sshd (one a connection, through `nsenter`), and our way in."""

    def __init__(self, folder: Path) -> None:
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
        if sshd is None or shutil.which("ssh") is None:
            pytest.skip("no OpenSSH server on this machine (`apt-get install openssh-server`)")
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o755)
        self.machine = SystemdMachine(folder / "machine", own_network=True)
        self._user()
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        self._settings(sshd)

    def _user(self) -> None:
        """Another user, with a home of its own; whatever our interpreter lies in can be read by it there."""
        self.inside("useradd", "-m", "-d", HOME_THERE, "-s", "/bin/bash", "-p", "*", USER)
        for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__), self.folder):
            for parent in path.absolute().parents:
                self.inside("chmod", "o+x", str(parent))

    def _settings(self, sshd: str) -> None:
        """Written where both machines see it; the keys of the login are in the other machine alone."""
        etc = self.machine.path("/etc/farsshd")
        etc.mkdir()
        for name in ("host_key", "host_key.pub"):
            shutil.copy(self.folder / name, etc / name)
        (etc / "authorized").write_text((self.folder / "user_key.pub").read_text())
        (etc / "sshd_config").write_text(
            f"HostKey /etc/farsshd/host_key\nAuthorizedKeysFile /etc/farsshd/authorized\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nAllowUsers {USER}\nSubsystem sftp internal-sftp\nPidFile none\nMaxSessions 40\n"
        )
        self.machine.run("mkdir", "-p", "/run/sshd")
        enter = " ".join(self.machine.enter())
        (self.folder / "known").write_text(f"spark {(self.folder / 'host_key.pub').read_text()}")
        self.config = self.folder / "config"
        self.config.write_text(
            f"Host *\n  User {USER}\n  ProxyCommand {enter} {sshd} -i -f /etc/farsshd/sshd_config 2>/dev/null\n"
            f"  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder}/known\n"
            "  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n"
        )

    def inside(self, *argv: str) -> str:
        done = self.machine.run(*argv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sessions(self) -> list[str]:
        return [p for p in self.machine.run("pgrep", "-x", "sshd").stdout.split() if p]

    def cut(self) -> int:
        """Ends every connection there is; returns how many processes served them."""
        pids = self.sessions()
        if pids:
            self.machine.run("kill", "-9", *pids)
        return len(pids)

    def of_user(self) -> list[str]:
        """Commands of the login's processes, connections aside."""
        rows = self.machine.run("ps", "-u", USER, "-o", "args=").stdout.splitlines()
        return [r for r in rows if not r.startswith("sshd") and "ps -u" not in r]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    far = Far(tmp_path_factory.mktemp("far") / "s")
    yield far
    far.machine.close()


@pytest.fixture(autouse=True)
def way_in(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_SSH_CONFIG", str(far.config))


@pytest.fixture
def gguf_there(far: Far, demo_gguf: Path) -> str:
    """The demo's file under a path with spaces, on the other machine only."""
    path = f"{HOME_THERE}/my models/smöl.gguf"
    target = far.machine.path(path)
    if not target.exists():
        target.parent.mkdir(parents=True)
        shutil.copy(demo_gguf, target)
        far.inside("chown", "-R", USER, HOME_THERE)
    return path


def up(model: str, *more: str) -> tuple[str, ...]:
    engine = ("--engine", "llamacpp", "--engine-python", sys.executable)
    return ("up", model, "--host", HOST, "--name", "far", *engine, "--skip", "bench", "--context", "2048", *more, "--", "--threads", "1")


def the_run(firstlight: Firstlight) -> dict[str, Any]:
    return firstlight.runs()[0]


@pytest.mark.llamacpp
def test_every_verb_works_on_a_run_of_another_user_elsewhere(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    started = firstlight(*up(gguf_there), seconds=240)
    assert started.returncode == 0, started.stderr
    assert "ssh -N -L " in started.stdout
    run = the_run(firstlight)
    assert run["host"] == HOST
    assert run["host_folder"].startswith(f"{HOME_THERE}/.local/state/firstlight/runs/")
    assert not Path(run["host_folder"]).exists(), "its folder is there, not here"
    assert any("supervisor.pyz" in row for row in far.of_user())
    assert firstlight("verify", "far", seconds=180).returncode == 0
    assert "all slots are idle" in firstlight("logs", "far").stdout
    assert run["id"] in firstlight("describe", "far").stdout
    assert firstlight("attach", "far").returncode == 0
    again = firstlight(*up(gguf_there), seconds=240)
    assert again.returncode == 0, again.stderr
    assert firstlight("restart", "far", seconds=180).returncode == 0
    assert firstlight("down", "far").returncode == 0
    assert firstlight.runs()[0]["state"] == "stopped"
    assert far.of_user() == []


@pytest.mark.llamacpp
def test_twenty_cuts_lose_no_event_and_leave_no_orphan(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    cuts, over = 0, threading.Event()

    def cutter() -> None:
        nonlocal cuts
        while not over.wait(PAUSE) and cuts < CUTS:
            cuts += far.cut() > 0

    process = firstlight.start(*up(gguf_there))
    try:
        run = wait_for(
            lambda: next((r for r in firstlight.runs() if r["state"] not in ("planned", "failed") and r["supervisor"]), None), 120
        )
        thread = threading.Thread(target=cutter, daemon=True)
        thread.start()
        out, err = process.communicate(timeout=380)
    finally:
        over.set()
    assert process.returncode == 0, err
    assert cuts == CUTS
    there = far.machine.path(f"{run['host_folder']}/attempts/1/supervisor.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in there]
    assert kinds.count("engine-started") == 1
    assert "ended" not in kinds
    events = [json.loads(line) for line in (Path(run["folder"]) / "events.jsonl").read_text().splitlines()]
    assert [e["seq"] for e in events] == list(range(len(events)))
    assert sum(e["kind"] == "ready" and "port" in e["data"] for e in events) == 1, "the supervisor's word, once"
    lines = far.machine.path(f"{run['host_folder']}/attempts/1/engine.log").read_bytes()
    assert firstlight("logs", "far").stdout.encode() == lines
    assert firstlight("down", "far").returncode == 0
    assert far.of_user() == []
    assert out


@pytest.mark.llamacpp
def test_a_model_that_is_fetched_here_is_copied_there(far: Far, firstlight: Firstlight, demo_gguf: Path) -> None:
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "firstlight" / "models" / "demo"
    cache.mkdir(parents=True)
    shutil.copy(demo_gguf, cache / demo_gguf.name)
    started = firstlight(*up("demo", "--yes"), seconds=240)
    assert started.returncode == 0, started.stderr
    there = f"{HOME_THERE}/.cache/firstlight/models/{demo_gguf.name}"
    assert far.machine.path(there).stat().st_size == demo_gguf.stat().st_size
    assert firstlight("down", "far").returncode == 0


@pytest.mark.parametrize("tool", ["rsync", "sftp"])
def test_folders_are_copied_with_what_their_links_lead_to(far: Far, tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not on this machine")
    blobs, folder = tmp_path / "blobs", tmp_path / f"a model, {tool} ü"
    (folder / "sub folder").mkdir(parents=True)
    blobs.mkdir()
    (blobs / "b1").write_bytes(b"weights")
    (folder / 'model "one".safetensors').symlink_to(blobs / "b1")
    (folder / "sub folder" / "config.json").write_text("{}")
    if tool == "sftp":
        far.machine.run("mv", "/usr/bin/rsync", "/usr/bin/rsync.away")
    try:
        there = ship_model(SshHost(HOST), str(folder))
    finally:
        far.machine.run("mv", "/usr/bin/rsync.away", "/usr/bin/rsync")
    assert there == f"{HOME_THERE}/.cache/firstlight/models/{folder.name}"
    assert far.machine.path(f'{there}/model "one".safetensors').read_bytes() == b"weights"
    assert not far.machine.path(f'{there}/model "one".safetensors').is_symlink()
    assert far.machine.path(f"{there}/sub folder/config.json").read_text() == "{}"


@pytest.mark.llamacpp
def test_a_key_is_shipped_into_a_file_of_its_owner_alone(far: Far, firstlight: Firstlight, gguf_there: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("canary-5dd01")
    key.chmod(0o600)
    started = firstlight(*up(gguf_there, "--api-key-file", str(key)), seconds=240)
    assert started.returncode == 0, started.stderr
    found = far.machine.run("grep", "-rla", "canary-5dd01", HOME_THERE, "/tmp/firstlight-" + far.inside("id", "-u", USER).strip()).stdout
    (path,) = found.splitlines()
    assert far.inside("stat", "-c", "%a %U", path).split() == ["600", USER]
    assert "canary-5dd01" not in far.inside("ps", "-eo", "args")
    assert firstlight("down", "far").returncode == 0


def test_a_host_without_python_can_be_probed_and_says_what_is_missing(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    hidden = [p for p in far.inside("sh", "-c", "ls /usr/bin/python3* /usr/local/bin/python3* 2>/dev/null || true").split() if p]
    for path in hidden:
        far.inside("mv", path, f"{path}.away")
    try:
        probed = firstlight("probe", "--host", HOST)
        assert probed.returncode == 0, probed.stderr
        refused = firstlight(*up(gguf_there))
        assert refused.returncode != 0
        assert "python" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        for path in hidden:
            far.inside("mv", f"{path}.away", path)
