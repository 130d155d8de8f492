"""What only another host can do: refuse, vanish, keep working without us."""

import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from firstlight.core.errors import HostError, UsageError
from firstlight.probe.cuts import ConnectionLost
from firstlight.probe.forward import remote_target
from firstlight.probe.machine import probe_machine
from firstlight.probe.patient import open_patient_host
from firstlight.probe.ssh import SshHost, _request
from firstlight.probe.sshscript import command_script, entry, own_output, read_answer


def failure(address: str, config: str) -> HostError:
    with pytest.raises(HostError) as error:
        SshHost(address, config=config).run(["true"])
    return error.value


@pytest.mark.parametrize(
    "name",
    ["ssh://-oProxyCommand=touch x", "ssh://-oProxyCommand=x", "ssh://-oX@h", "ssh://a;b", "ssh://$(id)", "ssh://`id`@h", "ssh://h|x",
     "ssh://h\n", "ssh://a b", "ssh://h:99999999", "ssh://u'@h", "ssh://", "ssh://@h", "ssh://h%h", "ssh://h\x1b[0m", "ssh://[::1;x]",
     "ssh://h/../x", "ssh://h\\x", "ssh://h&y", "ssh://${X}"],
)  # fmt: skip
def test_what_is_no_host_s_name_never_reaches_ssh(name: str) -> None:
    """ssh hands names on to a shell (ProxyCommand's %h and %r), and people paste the lines that we print."""
    with pytest.raises(UsageError) as refused:
        SshHost(name)
    assert refused.value.code == "unknown-host"
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(
    "name", ["ssh://gpu1", "ssh://llm@gpu1:2222", "ssh://[fe80::1%eth0]:22", "ssh://späce_1", "ssh://DOM+me@h.example/"]
)
def test_names_that_a_host_may_have(name: str) -> None:
    assert SshHost(name).argv()[-2] == "--"
    assert len(shlex.split(remote_target(name))) in (1, 3)


def test_a_jump_of_the_user_s_own_configuration_is_taken(sshd: Any) -> None:
    """Each hop logs in: two connections for one command."""
    extra = f"Host far\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump spark\n"
    config = sshd.client_config("jump", key="user_key", extra=extra)
    before = (sshd.folder / "log").read_text().count("Accepted publickey")
    assert SshHost("ssh://far", config=config).run(["echo", "through"]).text == "through\n"
    assert (sshd.folder / "log").read_text().count("Accepted publickey") == before + 2


def test_reading_waits_for_a_host_that_was_reached_and_not_for_one_that_never_was(
    sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_SSH_CONFIG", sshd.config)
    lost: list[str] = []
    (tmp_path / "log").write_bytes(b"0123456789")
    host = open_patient_host("ssh://spark", lambda e: lost.append(e.code))
    assert host.read(str(tmp_path / "log"), 0, 4) == b"0123"
    sshd.stop()
    try:
        back = threading.Timer(2.0, sshd.start)
        back.start()
        assert host.read(str(tmp_path / "log"), 4) == b"456789"
        assert lost == ["host-unreachable"]
    finally:
        back.join()
    never = open_patient_host(f"ssh://127.0.0.1:{free_port()}")
    with pytest.raises(HostError):
        never.stat("/")


def test_refusals_are_told_apart(sshd: Any) -> None:
    port = free_port()
    found = [
        failure(f"ssh://127.0.0.1:{port}", sshd.config),
        failure("ssh://nowhere.invalid", sshd.config),
        failure("ssh://spark", sshd.client_config("wrong-key", key="other_key")),
        failure("ssh://spark", sshd.client_config("no-known-host", key="user_key", known="nothing")),
        failure("ssh://no-such-user@spark", sshd.config),
    ]
    assert [e.code for e in found] == [
        "host-unreachable",
        "host-unreachable",
        "host-login-refused",
        "host-key-unknown",
        "host-login-refused",
    ]
    assert [e.message for e in found[:2]] == [
        "127.0.0.1: nothing accepts ssh connections there",
        "nowhere.invalid: the host's name cannot be resolved",
    ]
    assert all(e.hint and "ssh " in e.hint for e in found)


def test_a_host_that_never_answers_is_unreachable(sshd: Any) -> None:
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(0)
    try:
        config = sshd.client_config("short", key="user_key", extra="  ConnectTimeout 1\n")
        host = SshHost(f"ssh://127.0.0.1:{silent.getsockname()[1]}", config=config)
        host._options = [o if not o.startswith("-oConnectTimeout") else "-oConnectTimeout=1" for o in host._options]
        began = time.monotonic()
        with pytest.raises(HostError) as error:
            host.run(["true"])
        assert error.value.code == "host-unreachable"
        assert time.monotonic() - began < 10
    finally:
        silent.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def test_without_an_ssh_client(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SshHost("ssh://spark", config=sshd.config)
    assert host.run(["true"]).ok
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HostError) as error:
        host.run(["true"])
    assert (error.value.code, "ssh" in error.value.message) == ("command-not-found", True)


def test_a_command_that_was_cut_runs_again_and_is_told_once_patience_is_over(sshd: Any, tmp_path: Path) -> None:
    mark, lost = tmp_path / "started", list[str]()
    script = f"echo run >>'{mark}'; [ $(wc -l <'{mark}') -gt 1 ] || sleep 20; echo whole"
    timer = threading.Thread(target=lambda: (wait_for(mark.exists), sshd.cut()))
    timer.start()
    host = SshHost("ssh://spark", config=sshd.config, on_lost=lambda e: lost.append(e.message))
    assert host.run(["sh", "-c", script], timeout=30).text == "whole\n"
    timer.join()
    assert mark.read_text() == "run\nrun\n"
    assert len(lost) == 1
    assert "lost" in lost[0]
    mark.unlink()
    timer = threading.Thread(target=lambda: (wait_for(mark.exists), sshd.cut()))
    timer.start()
    with pytest.raises(HostError) as error:
        SshHost("ssh://spark", config=sshd.config, patience=0.0).run(["sh", "-c", f"touch '{mark}'; sleep 20"], timeout=30)
    timer.join()
    assert error.value.code == "host-unreachable"


def test_what_must_happen_once_happens_once_though_its_answer_was_lost(sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of every operation is thrown away, as a cut after the deed would do."""
    host = SshHost("ssh://spark", config=sshd.config)
    assert host.run(["true"]).ok
    real, asked = host._run_once, list[str]()

    def lossy(argv: Any, stdin: Any, *more: Any) -> Any:
        answer = real(argv, stdin, *more)
        request = (stdin or b"").split(b"\n")[0]
        if b'"again": false' in request:
            asked.append(request.decode())
            raise ConnectionLost("host-unreachable", "lost on its way")
        return answer

    monkeypatch.setattr(host, "_run_once", lossy)
    a, b, link, log = (str(tmp_path / n) for n in ("a ü", "b", "link", "log"))
    host.write(a, b"whole")
    host.rename(a, b)
    host.symlink(b, link)
    pid = host.spawn(["sh", "-c", "echo started; sleep 30"], log=log)
    try:
        wait_for(lambda: Path(log).exists() and Path(log).read_text())
        time.sleep(0.3)
        assert Path(log).read_text() == "started\n", "once"
        assert Path(b).read_bytes() == Path(link).read_bytes() == b"whole"
        assert Path(f"/proc/{pid}").exists()
    finally:
        os.kill(pid, 9)
    host.remove(b)
    host.mkdir(str(tmp_path / "folder"))
    assert len(asked) >= 6


def test_of_a_script_that_was_cut_on_its_way_nothing_runs(tmp_path: Path) -> None:
    script = command_script(["touch", str(tmp_path / "first"), str(tmp_path / "second")], token="t" * 24)
    for length in range(0, len(script) - 1, 7):
        subprocess.run(["sh", "-c", entry(script)], input=script[:length], capture_output=True, check=False, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_on_its_way_is_not_written(sshd: Any, tmp_path: Path) -> None:
    host, path = SshHost("ssh://spark", config=sshd.config), tmp_path / "weights"
    path.write_bytes(b"former")
    request = _request("write", str(path), 0o644, size=1000, again=False)
    assert not host._run_once(host._helper(), request + b"only the beginning", 30).ok
    assert path.read_bytes() == b"former"
    assert [p.name for p in tmp_path.iterdir()] == ["weights"]


def greeted(host: SshHost, path: Path) -> tuple[Any, socket.socket, socket.socket]:
    """(channel, its other end, listener): a relayed socket through which a word has come."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    channel = host.connect(str(path))
    server, _ = listener.accept()
    server.sendall(b"hello")
    assert channel.receive() == b"hello"
    return channel, server, listener


def test_what_a_login_s_start_files_print_is_nobody_s_answer(noisy_sshd: Any, tmp_path: Path) -> None:
    host = SshHost("ssh://spark", config=noisy_sshd.config)
    assert host.run(["printf", "own"]).stdout == b"own"
    host.write(str(tmp_path / "x"), b"0123456789")
    assert host.read(str(tmp_path / "x"), 2, 3) == b"234"
    assert [i.path for i in host.list(str(tmp_path))] == [str(tmp_path / "x")]
    channel, server, listener = greeted(host, tmp_path / "sock")
    for one in (channel, server, listener):
        one.close()


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 15
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_spawned_processes_and_reading_from_a_byte_survive_cuts(sshd: Any, tmp_path: Path) -> None:
    """A writer on the target counts on; a reader that is cut off again and again loses and repeats nothing."""
    host = SshHost("ssh://spark", config=sshd.config)
    log, enough = str(tmp_path / "a log"), tmp_path / "enough"
    pid = host.spawn(["sh", "-c", f"i=0; while [ ! -e '{enough}' ]; do echo line $i; i=$((i+1)); sleep 0.05; done"], log=log)
    seen, cuts, problems = b"", 0, []
    deadline = time.monotonic() + 90
    while cuts < 5 and time.monotonic() < deadline:
        cuts += sshd.cut() > 0
        try:
            seen += host.read(log, len(seen))
        except HostError as e:
            problems.append(e.code)
    enough.touch()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    seen += host.read(log, len(seen))
    assert cuts == 5
    assert set(problems) <= {"host-unreachable"}
    lines = seen.decode().splitlines()
    assert lines == [f"line {i}" for i in range(len(lines))]
    assert len(lines) > 5


def test_a_relayed_socket_tells_loss_from_end(sshd: Any, tmp_path: Path) -> None:
    host = SshHost("ssh://spark", config=sshd.config)
    channel, server, listener = greeted(host, tmp_path / "sock")
    sshd.cut()
    with pytest.raises(HostError) as error:
        channel.receive()
    assert error.value.code == "host-unreachable"
    channel.close()
    server.close()
    listener.close()


def test_one_connection_serves_all_commands(sshd: Any) -> None:
    log = sshd.folder / "log"
    SshHost("ssh://spark", config=sshd.config).run(["true"])
    before = log.read_text().count("Accepted publickey")
    for _ in range(4):
        SshHost("ssh://spark", config=sshd.config).run(["true"])
    assert log.read_text().count("Accepted publickey") == before


def test_the_users_own_sharing_is_left_alone(sshd: Any, tmp_path: Path) -> None:
    own = sshd.client_config("shares", key="user_key", extra=f"  ControlMaster auto\n  ControlPath {tmp_path}/c\n  ControlPersist 5\n")
    host = SshHost("ssh://spark", config=own)
    assert host.run(["true"]).ok
    assert os.path.exists(tmp_path / "c")
    assert not any("ControlPath" in option for option in host._options)


def test_probing_needs_no_python(bare_sshd: Any, tmp_path: Path) -> None:
    host = SshHost("ssh://spark", config=bare_sshd.config)
    raw: dict[str, str] = {}
    machine = probe_machine(host, paths=[str(tmp_path / "not yet there")], raw=raw)
    here = os.uname()
    assert (machine.hostname, machine.kernel, machine.host) == (here.nodename, here.release, "ssh://spark")
    assert machine.memory_total_bytes
    assert machine.storage[0].total_bytes == shutil.disk_usage(tmp_path).total
    assert (machine.python, machine.tools["python3"]) == (None, None)
    assert "MemTotal" in raw["meminfo"]
    (tmp_path / "there").write_bytes(b"0123")
    assert host.read(str(tmp_path / "there"), 1, 2) == b"12"
    found = host.stat(str(tmp_path / "there"))
    assert found is not None
    assert (found.size, found.kind, host.stat(str(tmp_path / "none"))) == (4, "file", None)
    with pytest.raises(HostError) as error:
        host.write(str(tmp_path / "new"), b"x")
    assert error.value.code == "python-missing"


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "csh", "busybox"])
def test_any_login_shell_starts_the_script(shell: str) -> None:
    """What a login shell sees is one constant line; the script and the command's own input follow on stdin."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    script = command_script(["sh", "-c", 'printf "%s|" "$@"; cat', "x", "a 'b' \\ ! $HOME", "line\nbreak", "ü"], token="t" * 24)
    argv = [path, "sh", "-c"] if shell == "busybox" else [path, "-c"]
    done = subprocess.run([*argv, entry(script)], input=script + b"own input", capture_output=True, check=False, timeout=60)
    answer = read_answer(done.stderr, "t" * 24)
    assert (answer.started, answer.status) == (True, 0), done.stderr
    assert own_output(done.stdout, "t" * 24).decode() == "a 'b' \\ ! $HOME|line\nbreak|ü|own input"
