"""`service … --host ssh://`: a host with Python and nothing of ours keeps the demo up under its own systemd, managed from here."""

import json
import sys
from pathlib import Path

import pytest
from e2e_runner import Firstlight, wait_for
from far_machine import HOME_THERE, HOST, USER, Far, up_there

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("way_in")]
UNIT = "firstlight-kept.service"
INSTALL = ("service", "install", "far", "--user", "--name", "kept", "--ignore", "throw-away-environment", "--watchdog", "10")
CANARY = "canary-51c0ffee"


@pytest.fixture(scope="module")
def manager(far: Far) -> Far:
    """The login's own manager, as logind keeps it on any server, with lingering off."""
    if not far.machine.logind():
        pytest.skip("no logind in this machine (`apt-get install dbus systemd`)")
    far.inside("systemctl", "start", f"user@{far.uid}")
    return far


def systemctl(far: Far, *words: str) -> str:
    argv = ["runuser", "-u", USER, "--", "env", f"XDG_RUNTIME_DIR=/run/user/{far.uid}", "systemctl", "--user", *words]
    return far.machine.run(*argv).stdout


@pytest.mark.llamacpp
def test_the_demo_is_kept_up_on_another_host(manager: Far, firstlight: Firstlight, gguf_there: str, tmp_path: Path) -> None:
    far, key = manager, tmp_path / "the key"
    key.write_text(CANARY)
    key.chmod(0o600)
    started = firstlight(*up_there(gguf_there, "--api-key-file", str(key)), seconds=600)
    assert started.returncode == 0, started.stderr
    refused = firstlight("service", "list", "--host", HOST)
    assert "service-not-found" in refused.stderr, "nothing was brought yet, and listing brings nothing"
    refused = firstlight(*INSTALL)
    assert refused.returncode == 8
    assert "carry-firstlight" in refused.stderr
    refused = firstlight(*INSTALL, "--allow", "carry-firstlight", seconds=300)
    assert "linger-off" in refused.stderr, "its checks are made there"
    far.inside("loginctl", "enable-linger", USER)
    refused = firstlight(*INSTALL, "--allow", "carry-firstlight", seconds=300)
    assert refused.returncode == 8, refused.stderr
    assert "stop-run" in refused.stderr
    assert systemctl(far, "is-active", UNIT).strip() != "active"
    with far.cutting(8, every=1.5) as cuts:
        installed = firstlight(*INSTALL, "--allow", "carry-firstlight", "--allow", "stop-run", seconds=600)
    assert installed.returncode == 0, installed.stderr
    assert len(cuts) >= 2
    assert f"{UNIT} is active: serving" in installed.stdout
    assert "is stopped; port and memory are free" in installed.stderr, "what is said there is said here"
    assert firstlight.runs()[0]["state"] == "stopped", "the run that was verified made way, and is known to have"
    unit = systemctl(far, "cat", UNIT)
    assert f"{HOME_THERE}/.local/share/firstlight/carried/" in unit
    assert str(Path(__file__).parents[2] / "src") not in unit, "nothing that only the tests' own machine has"
    status = firstlight("service", "status", "kept", "--host", HOST)
    assert (status.returncode, "is active (running)" in status.stdout) == (0, True), status.stdout + status.stderr
    assert json.loads(firstlight("service", "list", "--host", HOST, "-o", "json").stdout)["items"][0]["name"] == "kept"
    assert "all slots are idle" in firstlight("service", "logs", "kept", "--host", HOST).stdout
    journal = firstlight("service", "logs", "kept", "--host", HOST, "--journal")
    assert "service kept" in journal.stdout or "insufficient permissions" in journal.stderr, "as that host's journalctl says it"
    pid = _main_pid(far)
    far.inside("kill", "-9", pid)
    wait_for(lambda: systemctl(far, "is-active", UNIT).strip() == "active" and _main_pid(far) != pid, 120)
    assert firstlight("service", "restart", "kept", "--host", HOST, seconds=300).returncode == 0
    _no_key_but_in_its_files(far)
    _and_not_without_its_manager(far, firstlight)
    gone = firstlight("service", "uninstall", "kept", "--host", HOST, seconds=200)
    assert gone.returncode == 0, gone.stderr
    assert "supervisor.pyz" not in "".join(far.of_user())
    missing = firstlight("service", "status", "kept", "--host", HOST)
    assert missing.returncode == 2
    assert "service-not-found" in missing.stderr + missing.stdout


def _main_pid(far: Far) -> str:
    return systemctl(far, "show", UNIT, "-p", "MainPID").strip().partition("=")[2]


def _no_key_but_in_its_files(far: Far) -> None:
    """Of everything that was written there, only 0600 files of the login hold the key; no argument, unit, journal or record does."""
    searched = far.machine.run("grep", "-rlaF", "--exclude-dir=mnt", CANARY, "/run", "/dev/shm", seconds=300)
    found = searched.stdout.splitlines()  # /run/upper: every file that anything there has written or changed
    keys = [f for f in found if f.endswith(".key") or f.startswith("/run/user/") or "/credentials/" in f]
    assert [f for f in found if f not in keys and "/pytest-of-" not in f] == []
    assert any(f.endswith("/keys/kept.key") for f in keys), (found, searched.returncode, searched.stderr[-500:])
    for path in keys:
        mode, owner = far.inside("stat", "-c", "%a %U", path).split()
        assert (mode in ("600", "400", "440"), owner in (USER, "root")) == (True, True), path
    texts = [far.inside("ps", "-eo", "args"), far.inside("journalctl", "--no-pager", "-o", "json"), systemctl(far, "cat", UNIT)]
    texts += [systemctl(far, "show", UNIT)]
    assert not any(CANARY in t for t in texts)


def _and_not_without_its_manager(far: Far, firstlight: Firstlight) -> None:
    """A host that is away says so, with its own code."""
    far.machine.run("mv", far.sshd, f"{far.sshd}.away")
    far.cut()
    try:
        refused = firstlight("service", "status", "kept", "--host", HOST)
        assert refused.returncode == 1
        assert "host-unreachable" in refused.stderr
    finally:
        far.machine.run("mv", f"{far.sshd}.away", far.sshd)


@pytest.mark.llamacpp
def test_a_plan_is_brought_up_there_first_and_a_host_without_a_manager_says_so(
    far: Far, firstlight: Firstlight, gguf_there: str, tmp_path: Path
) -> None:
    far.inside("sh", "-c", f"echo SetEnv FIRSTLIGHT_ENGINE_PYTHON={sys.executable} >>/etc/farsshd/sshd_config")  # as that login has it
    far.cut()
    plan = str(tmp_path / "plan.json")
    planned = firstlight(
        "plan", gguf_there, "--host", HOST, "--engine", "llamacpp", "--context", "2048", "--save", plan, "--", "--threads", "1"
    )
    assert planned.returncode == 0, planned.stderr
    far.machine.run("systemctl", "stop", f"user@{far.uid}")
    refused = firstlight("service", "install", plan, "--user", "--name", "far", "--yes", "--ignore", "throw-away-environment", seconds=600)
    assert refused.returncode == 4, refused.stderr
    assert "no-systemd" in refused.stderr
    run = firstlight.runs()[0]
    assert (run["host"], run["state"]) == (HOST, "serving")
    assert any("supervisor.pyz" in row for row in far.of_user()), "the run serves on"
    elsewhere = firstlight("service", "install", "far", "--host", "ssh://another")
    assert "run-on-another-host" in elsewhere.stderr
    assert firstlight("down", "far").returncode == 0
