"""The demo model as a service of a user's own manager: a real engine, a generated key as a credential, lingering."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runner import run_folders, wait_for
from systemd_machine import SystemdMachine

pytestmark = pytest.mark.timeout(900)  # a busy machine may be ten times slower
UNIT = "firstlight-demo.service"
RUNTIME = "/run/user/0"


class Home:
    """A machine with logind, as any server has: `loginctl enable-linger` starts root's own manager."""

    def __init__(self, folder: Path) -> None:
        self.machine = SystemdMachine(folder / "machine", own_network=True)
        if not self.machine.logind():
            self.machine.close()
            pytest.skip("no logind in this machine (`apt-get install dbus systemd`)")
        self.home = folder / "home"
        self.home.mkdir()
        names = {"STATE": "state", "CACHE": "cache", "DATA": "data", "CONFIG": "config"}
        self.env = {"HOME": str(self.home), "CI": "1", "XDG_RUNTIME_DIR": RUNTIME}
        self.env |= {f"XDG_{k}_HOME": str(self.home / v) for k, v in names.items()}
        self.machine.run("mkdir", "-p", "/etc/systemd/system/user@0.service.d")
        settings = " ".join(f'"{k}={v}"' for k, v in self.env.items())
        self.machine.path("/etc/systemd/system/user@0.service.d/home.conf").write_text(f"[Service]\nEnvironment={settings}\n")
        self.machine.run("systemctl", "daemon-reload")

    def cli(self, *words: str, ok: bool = True) -> str:
        done = self.machine.run(sys.executable, "-m", "firstlight", *words, env=self.env, seconds=600)
        assert "Traceback" not in done.stderr, done.stderr
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def systemctl(self, *words: str) -> str:
        return self.machine.run("systemctl", "--user", *words, env=self.env).stdout

    def main_pid(self) -> str:
        return self.systemctl("show", UNIT, "-p", "MainPID").strip().partition("=")[2]

    def state(self) -> str:
        return self.systemctl("show", UNIT, "-p", "ActiveState").strip().partition("=")[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, demo_gguf: Path) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("user"))
    try:
        models = home.home / "cache" / "firstlight" / "models" / "demo"
        models.mkdir(parents=True)
        shutil.copy(demo_gguf, models / demo_gguf.name)
        yield home
    finally:
        home.machine.close()


@pytest.mark.llamacpp
def test_the_demo_as_a_service_of_its_user(home: Home) -> None:
    home.cli("up", "demo", "--generate-key", "--skip", "bench", "--context", "2048", "--", "--threads", "1")
    install = ("service", "install", "demo", "--user", "--ignore", "throw-away-environment")
    assert "no-systemd" in home.cli(*install, ok=False), "no manager of the user's own runs yet"
    home.machine.run("systemctl", "start", "user@0")
    refused = home.cli(*install, ok=False)
    assert "linger-off" in refused
    assert "enable-linger" in refused
    refused = home.cli(*install, "--allow", "linger", ok=False)
    assert "stop-run" in refused, "lingering was asked for by name, the run was not"
    assert home.machine.path("/var/lib/systemd/linger/root").exists(), "by logind itself"
    assert f"{UNIT} is active" in home.cli(*install, "--allow", "stop-run")
    key = (home.machine.path(home.home / "config" / "firstlight" / "keys" / "demo.key")).read_text().strip()
    assert (home.machine.path(home.home / "config" / "firstlight" / "keys" / "demo.key")).stat().st_mode & 0o777 == 0o600
    assert key not in home.systemctl("cat", UNIT) + home.systemctl("show", UNIT) + home.machine.run("ps", "-eo", "args").stdout
    endpoint = json.loads(home.machine.path(home.home / "config/firstlight/services/demo/endpoint.json").read_text())
    assert _answer(home, endpoint, key)[1].strip()
    assert _answer(home, endpoint, "another")[0] == 401
    pid = home.main_pid()
    home.machine.run("kill", "-9", pid)
    wait_for(lambda: home.main_pid() not in (pid, "0") and home.state() == "active", 120)
    assert _answer(home, endpoint, key)[1].strip()
    assert "is removed" in home.cli("service", "uninstall", "demo")
    assert "llamacpp" not in home.machine.run("ps", "-eo", "args").stdout


USER, THERE = "llm", "/home/llm of späce"


@pytest.mark.llamacpp
def test_root_installs_a_system_service_that_runs_as_the_user_who_verified(home: Home, demo_gguf: Path) -> None:
    inside = home.machine.run
    inside("useradd", "-m", "-d", THERE, "-s", "/bin/bash", USER)
    for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__)):
        inside("chmod", "o+x", *map(str, path.absolute().parents))
    model = f"{THERE}/my model.gguf"
    shutil.copy(demo_gguf, home.machine.path(model))
    inside("chown", USER, model)
    words = ["up", model, "--name", "theirs", "--engine", "llamacpp", "--engine-python", sys.executable]
    words += ["--skip", "bench", "--context", "2048"]
    login = ["env", "-i", f"HOME={THERE}", "PATH=/usr/bin:/bin", "CI=1", sys.executable, "-m", "firstlight"]
    up = inside("runuser", "-u", USER, "--", *login, *words, "--generate-key", "--", "--threads", "1", seconds=600)
    assert up.returncode == 0, up.stderr
    (run,) = run_folders(home.machine.path(f"{THERE}/.local/state/firstlight/runs"))
    folder = f"{THERE}/.local/state/firstlight/runs/{run.name}"
    root = ["env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CI=1", sys.executable, "-m", "firstlight", "service"]
    installed = inside(*root, "install", folder, "--system", "--yes", "--ignore", "throw-away-environment", seconds=600)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    owners = set(inside("ps", "-eo", "user:20,args").stdout.splitlines())
    assert [o.split()[0] for o in owners if "service run" in o or "supervisor.pyz" in o or "--alias" in o] == [USER] * 3
    shown = inside("systemd-analyze", "security", "--no-pager", "firstlight-theirs.service").stdout.strip().splitlines()[-1]
    assert float(shown.partition("service: ")[2].split()[0]) < 3.5, shown
    assert inside(*root, "uninstall", "theirs").returncode == 0
    assert inside("pgrep", "-u", USER).stdout == ""
    _as_a_user_without_rights(home, folder, login)


def _as_a_user_without_rights(home: Home, folder: str, login: list[str]) -> None:
    """The same run as a service of the user's own manager; limits that it may not raise are taken as far as they go."""
    inside, uid = home.machine.run, home.machine.run("id", "-u", USER).stdout.strip()
    own = ["runuser", "-u", USER, "--", login[0], login[1], f"XDG_RUNTIME_DIR=/run/user/{uid}", *login[2:], "service"]
    install = [*own, "install", folder, "--user", "--yes", "--ignore", "throw-away-environment"]
    inside("systemctl", "start", f"user@{uid}")
    refused = inside(*install).stderr
    assert "linger-off" in refused
    assert f"loginctl enable-linger {USER}: " in refused, "asked, and denied by logind: said in its words"
    assert inside("loginctl", "enable-linger", USER).returncode == 0
    installed = inside(*install, seconds=600)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "is active" in installed.stdout
    assert inside(*own, "status", "theirs").returncode == 0
    assert inside(*own, "restart", "theirs", seconds=600).returncode == 0
    assert inside(*own, "uninstall", "theirs").returncode == 0
    assert "--alias" not in inside("ps", "-u", USER, "-o", "args").stdout


def _answer(home: Home, endpoint: dict[str, str], key: str) -> tuple[int, str]:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": endpoint["model"], "messages": [question], "max_tokens": 24, "temperature": 0}
    status, answer = home.machine.post(f"{endpoint['base_url']}/chat/completions", body, key=key)
    return status, answer["choices"][0]["message"]["content"] if status == 200 else ""
