"""Odd hosts: start files that talk, other shells, other Pythons, homes that cannot be written, full disks, installs that are killed."""

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runner import Firstlight, wait_for
from far_machine import HOME_THERE, HOST, USER, Far, up_there

from firstlight.app.carrying import carry, distributions, known_there
from firstlight.app.consent import Consent
from firstlight.core.errors import FirstlightError
from firstlight.probe.ssh import SshHost

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("way_in")]
THERE = ("--host", HOST)
GREETING = "printf 'Welcome to the cluster!\\nno newline at the end'; echo 'your quota: 93 %' >&2\n"


@pytest.fixture
def as_before(far: Far) -> Iterator[None]:
    yield
    far.inside("usermod", "-s", "/bin/bash", USER)
    far.inside("rm", "-f", f"{HOME_THERE}/.bashrc", f"{HOME_THERE}/.cshrc")
    far.cut()


@pytest.mark.llamacpp
@pytest.mark.usefixtures("as_before")
def test_start_files_that_talk_to_everybody_disturb_nothing(far: Far, firstlight: Firstlight, demo_gguf: Path, tmp_path: Path) -> None:
    """rsync and sftp cannot work there; the model is copied all the same, the engine starts, and `doctor` says what is odd."""
    far.machine.path(f"{HOME_THERE}/.bashrc").write_text(GREETING)
    far.cut()
    items = {i["name"]: i for i in json.loads(firstlight("doctor", *THERE, "-o", "json").stdout)["items"]}
    assert items["start files"]["verdict"] == "warning"
    assert "Welcome to the cluster!" in items["start files"]["text"]
    here = tmp_path / "only here.gguf"
    shutil.copy(demo_gguf, here)
    started = firstlight(*up_there(str(here)), seconds=600)
    assert started.returncode == 0, started.stderr
    there = json.loads((Path(firstlight.runs()[0]["folder"]) / "checkpoint.json").read_text())["path"]
    assert far.machine.path(there).read_bytes() == demo_gguf.read_bytes()
    assert "Welcome" not in firstlight("logs", "far").stdout
    assert firstlight("down", "far").returncode == 0
    assert far.of_user() == []


@pytest.mark.usefixtures("as_before")
def test_a_login_whose_files_everybody_may_write_keeps_its_runs_to_itself(far: Far, firstlight: Firstlight) -> None:
    """The supervisor is started from its folder there: whoever could put another into its place would run it as this user."""
    far.machine.path(f"{HOME_THERE}/.bashrc").write_text("umask 000\n")
    far.cut()
    server = ("--", "/usr/bin/python3", "-m", "http.server", "8794", "--bind", "127.0.0.1")
    started = firstlight("launch", *THERE, "--port", "8794", "--health-path", "/", "--name", "open", "--served-model-name", "m", *server)
    assert started.returncode == 0, started.stderr
    found = far.machine.run("find", f"{HOME_THERE}/.local", f"{HOME_THERE}/.cache", "-perm", "/022", "!", "-type", "l").stdout
    assert (found, firstlight("down", "open").returncode) == ("", 0)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("shell", ["/bin/tcsh", "/usr/bin/fish", "/bin/zsh", "/bin/dash"])
def test_any_login_shell_will_do(far: Far, firstlight: Firstlight, shell: str) -> None:
    if far.machine.run("test", "-x", shell).returncode != 0:
        pytest.skip(f"no {shell} on this machine")
    far.inside("usermod", "-s", shell, USER)
    far.cut()
    probed = firstlight("probe", *THERE, "-o", "json")
    assert probed.returncode == 0, probed.stderr
    assert json.loads(probed.stdout)["host"] == HOST
    assert firstlight("engines", "list", *THERE).returncode == 0


def refused(firstlight: Firstlight, *words: str) -> str:
    done = firstlight(*words, seconds=300)
    assert done.returncode != 0
    assert "unexpected" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(("version", "code"), [("3.8", "no-python"), ("3.6", "no-python")])
def test_a_python_that_is_too_old_is_said_before_anything_starts(
    far: Far, firstlight: Firstlight, gguf_there: str, version: str, code: str
) -> None:
    """What only reads works; a supervisor is not started by a Python that cannot run it."""
    old = far.machine.path("/usr/local/bin/python3")
    kept = old.read_bytes() if old.exists() else None
    minor = version.partition(".")[2]
    old.unlink(missing_ok=True)
    old.write_text(
        "#!/bin/sh\ncase \"$*\" in *'version_info >= (3, 9)'*) echo; exit 0;; "
        f"*'version_info[:3]'*) echo 3 {minor} 0; echo /usr/local/bin/python3; exit 0;; esac\nexec /usr/bin/python3 \"$@\"\n"
    )
    old.chmod(0o755)
    try:
        assert firstlight("probe", *THERE).returncode == 0
        assert f"{version}.0 at" in firstlight("doctor", *THERE).stdout
        said = refused(firstlight, *up_there(gguf_there))
        assert code in said
        assert far.of_user() == []
    finally:
        old.unlink()
        if kept is not None:
            old.write_bytes(kept)
            old.chmod(0o755)


def test_a_home_that_cannot_be_written_and_a_full_disk_are_told(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    state = f"{HOME_THERE}/.local/state"
    far.inside("runuser", "-u", USER, "--", "mkdir", "-p", state)
    for options, code in (("ro", "read-only-filesystem"), (f"size=16k,uid={far.uid}", "no-space")):
        far.inside("mount", "-t", "tmpfs", "-o", options, "tmpfs", state)
        try:
            if code == "no-space":
                far.machine.run("runuser", "-u", USER, "--", "dd", "if=/dev/zero", f"of={state}/filler", "bs=4k")
            assert firstlight("probe", *THERE, "--no-engines").returncode == 0
            assert code in refused(firstlight, *up_there(gguf_there))
            assert ("failed" in firstlight("doctor", *THERE).stdout) is (code == "read-only-filesystem")
        finally:
            far.inside("umount", "-l", state)
    assert far.of_user() == []


def test_hosts_that_are_not_there_are_told_apart_and_soon(firstlight: Firstlight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRSTLIGHT_SSH_CONFIG")
    for host in ("ssh://nowhere.invalid", "ssh://127.0.0.1:1"):
        for verb in (("doctor",), ("probe",), ("service", "list"), ("models", "list"), ("engines", "list"), ("cache", "list")):
            began = time.monotonic()
            done = firstlight(*verb, "--host", host)
            assert done.returncode == 1, verb
            assert "host-unreachable" in done.stderr + done.stdout, verb
            assert time.monotonic() - began < 30, verb
    assert "unknown-host" in firstlight("probe", "--host", "ssh://a b").stderr


@pytest.mark.llamacpp
def test_names_with_odd_letters_arrive_as_they_are(far: Far, firstlight: Firstlight, demo_gguf: Path) -> None:
    """A path with quotes, dollars and an emoji, a run's name that becomes a plain one."""
    path = f'{HOME_THERE}/o\'clock "$HOME" `id` ünï😀/m;x.gguf'
    target = far.machine.path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(demo_gguf, target)
    far.inside("chown", "-R", USER, HOME_THERE)
    words = [w if w != "far" else "Ünsere Küche; rm -rf /" for w in up_there(path)]
    started = firstlight(*words, seconds=600)
    assert started.returncode == 0, started.stderr
    (run,) = firstlight.runs()
    assert run["name"].isascii()
    assert " " not in run["name"]
    assert firstlight("down", run["name"]).returncode == 0
    assert far.of_user() == []


@pytest.mark.llamacpp
def test_an_install_that_is_killed_is_made_whole_by_the_next(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    """Killed here while firstlight is brought there: no half of it is ever used, and nothing runs on."""
    started = firstlight(*up_there(gguf_there), seconds=600)
    assert started.returncode == 0, started.stderr
    far.inside("rm", "-rf", f"{HOME_THERE}/.local/share/firstlight/carried")
    words = ("service", "install", "far", "--user", "--yes", "--ignore", "throw-away-environment")
    process = firstlight.start(*words)
    carried = far.machine.path(f"{HOME_THERE}/.local/share/firstlight/carried")
    wait_for(lambda: carried.exists() and any(carried.iterdir()), 60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    listed = firstlight("service", "list", *THERE)
    assert listed.returncode in (0, 2), "either nothing is there, or all of it"
    assert "Traceback" not in listed.stderr
    again = firstlight(*words, seconds=300)
    assert "no-systemd" in again.stderr, "the login has no manager here: said by firstlight itself, whole, there"
    records = subprocess.run(["find", str(carried), "-name", "carried.json"], capture_output=True, text=True, check=True).stdout.split("\n")
    assert len([r for r in records if r]) == 1
    assert any("supervisor.pyz" in row for row in far.of_user()), "the run serves on"
    assert firstlight("down", "far").returncode == 0
    assert os.path.exists(carried)


# firstlight where the Python is another


def pretend(far: Far, version: tuple[int, int], names: tuple[str, ...] = ("python3", "python3.11")) -> None:
    """Interpreters that say that they are of another version; underneath is this one, so that what they are given can run."""
    for name in names:
        path = f"/usr/local/bin/{name}"
        answer = json.dumps([path, version, f"cpython-{version[0]}{version[1]}-elsewhere"])
        script = f'#!/bin/sh\ncase "$*" in *SOABI*) echo \'{answer}\'; exit 0;; esac\nexec {sys.executable} "$@"\n'
        far.machine.path(path).unlink(missing_ok=True)
        far.machine.path(path).write_text(script)
        far.inside("chmod", "755", path)


@pytest.fixture
def other_pythons(far: Far) -> Iterator[Path]:
    """Takes them away again; gives the folder that the login's pip finds its wheels in, and nowhere else."""
    kept = {n: p.read_bytes() for n in ("python3", "python3.11") if (p := far.machine.path(f"/usr/local/bin/{n}")).exists()}
    wheels = far.machine.path("/srv/carried-wheels")
    far.inside("mkdir", "-p", "/srv/carried-wheels", f"{HOME_THERE}/.config/pip")
    settings = "[global]\nno-index = true\nfind-links =\n    /srv/carried-wheels\n"
    far.machine.path(f"{HOME_THERE}/.config/pip/pip.conf").write_text(settings)
    far.inside("chown", "-R", USER, f"{HOME_THERE}/.config")
    far.inside("rm", "-rf", f"{HOME_THERE}/.local/share/firstlight/carried")
    yield wheels
    for name in ("python3", "python3.11"):
        far.machine.path(f"/usr/local/bin/{name}").unlink(missing_ok=True)
    for name, data in kept.items():
        far.machine.path(f"/usr/local/bin/{name}").write_bytes(data)
        far.inside("chmod", "755", f"/usr/local/bin/{name}")
    far.inside("rm", "-rf", "/srv/carried-wheels", f"{HOME_THERE}/.config/pip", f"{HOME_THERE}/.local/share/firstlight/carried")


def wheel_of(part: importlib.metadata.Distribution, folder: Path) -> None:
    """What is installed here, as the wheel that it came from."""
    name = f"{part.name.replace('-', '_')}-{part.version}"
    files = {f.as_posix(): Path(str(f.locate())) for f in part.files or [] if ".." not in f.parts and f.suffix != ".pyc"}
    data = {n: p.read_bytes() for n, p in files.items() if p.is_file() and not n.endswith(("/RECORD", "/INSTALLER", "/REQUESTED"))}
    record = next(n for n in files if n.endswith("/RECORD"))
    rows = [f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b'=').decode()},{len(d)}" for n, d in data.items()]
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for n, d in {**data, record: "\n".join([*rows, f"{record},,\n"]).encode()}.items():
            wheel.writestr(n, d)


def test_a_host_of_another_python_gets_the_packages_by_its_own_pip(far: Far, other_pythons: Path) -> None:
    """Ours are compiled for this Python: only firstlight itself is copied, the same versions of the rest come from that host's index."""
    pretend(far, (3, 13))
    host, said = SshHost(HOST), list[str]()
    with pytest.raises(FirstlightError) as e:
        carry(host, Consent(yes=True), said.append)
    assert e.value.code == "cannot-carry"
    assert any("No matching distribution" in line for line in e.value.evidence), "in pip's own words"
    assert known_there(host) is None, "what is not whole is not there"
    for part in distributions():
        wheel_of(part, other_pythons)
    far.inside("chmod", "-R", "a+rX", "/srv/carried-wheels")
    found = carry(host, Consent(yes=True), said.append)
    assert found.python == "/usr/local/bin/python3"
    packages = set(far.inside("ls", found.folder).split())
    assert {"firstlight", "msgspec", "click", "rich"} <= packages
    assert "firstlight" in host.run(found.argv("--version")).text
    assert host.run(found.argv("service", "list")).ok
    assert known_there(host) == carry(host, Consent(), said.append) == found, "what is there is used, and nobody is asked again"
    assert said == [f"bringing firstlight to {HOST}"] * 2


def test_a_host_whose_pythons_are_all_too_old_for_a_service(far: Far, other_pythons: Path) -> None:
    pretend(far, (3, 10))
    with pytest.raises(FirstlightError) as e:
        carry(SshHost(HOST), Consent(yes=True), lambda _: None)
    assert (e.value.code, "/usr/local/bin/python3: 3.10" in e.value.evidence) == ("python-too-old", True)
    pretend(far, (3, 12), ("python3.11",))
    with pytest.raises(FirstlightError) as e:
        carry(SshHost(HOST), Consent(), lambda _: None)
    assert e.value.code == "consent-missing"
    assert any("/usr/local/bin/python3.11" in line for line in e.value.evidence), "the one that is new enough, whatever it is called"
