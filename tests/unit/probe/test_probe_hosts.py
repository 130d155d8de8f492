"""One contract, two hosts: what LocalHost does, SshHost does through a real sshd."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight.core.errors import HostError, UsageError
from firstlight.core.ports import Channel, Host
from firstlight.probe.hosts import open_host
from firstlight.probe.local import LocalHost
from firstlight.probe.ssh import SshHost

NAMES = ["plain", "with space", "üñí-漢字", "quote'\"$(x)`;&|*?", "-dash", "line\nbreak", "tab\tback\\slash"]


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "local":
        return LocalHost()
    return SshHost("ssh://spark", config=request.getfixturevalue("sshd").config)


def code(error: pytest.ExceptionInfo[HostError]) -> str:
    return error.value.code


def test_arguments_arrive_as_they_are(host: Host) -> None:
    script = "import sys; sys.stdout.write(repr(sys.argv[1:]))"
    done = host.run([sys.executable, "-c", script, *NAMES, ""])
    assert done.ok
    assert done.text == repr([*NAMES, ""])


def test_input_output_and_status_are_apart(host: Host) -> None:
    done = host.run(["sh", "-c", "cat; echo problem >&2; exit 7"], stdin=b"\x00\xffdata\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\x00\xffdata\n", b"problem\n")


def test_no_input_is_end_of_file(host: Host) -> None:
    assert host.run(["cat"], timeout=5).stdout == b""


def test_a_large_answer_comes_whole(host: Host) -> None:
    assert len(host.run(["head", "-c", "3000000", "/dev/zero"]).stdout) == 3_000_000


def test_variables_and_folder(host: Host, tmp_path: Path) -> None:
    done = host.run(["sh", "-c", 'echo "$MARK"; pwd; echo "$HOME"'], env={"MARK": "a 'b' $c\nd"}, cwd=str(tmp_path))
    assert done.text.splitlines()[:3] == ["a 'b' $c", "d", str(tmp_path)]
    assert done.text.splitlines()[3], "the inherited environment is still there"


def test_a_signal_is_negative_and_255_is_the_commands_own(host: Host) -> None:
    assert host.run(["sh", "-c", "kill -9 $$"]).returncode == -9
    assert host.run(["sh", "-c", "exit 255"]).returncode == 255
    assert host.run(["sh", "-c", "exit 127"]).returncode == 127


def test_three_failures_have_three_codes(host: Host, tmp_path: Path) -> None:
    (tmp_path / "not-a-program").write_text("x")
    with pytest.raises(HostError) as missing:
        host.run(["no-such-command-here"])
    with pytest.raises(HostError) as missing_path:
        host.run([str(tmp_path / "nothing")])
    with pytest.raises(HostError) as denied:
        host.run([str(tmp_path / "not-a-program")])
    with pytest.raises(HostError) as folder:
        host.run(["true"], cwd=str(tmp_path / "gone"))
    assert [code(e) for e in (missing, missing_path, denied, folder)] == [
        "command-not-found",
        "command-not-found",
        "permission-denied",
        "file-not-found",
    ]


def test_a_timeout_ends_the_command_and_what_it_started(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(HostError) as slow:
        host.run(["sh", "-c", f"sleep 60 & echo $! >'{mark}'; wait"], timeout=1)
    assert code(slow) == "command-timeout"
    assert time.monotonic() - began < 15
    assert gone(int(mark.read_text()))


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("name", ["with space üñí-漢字", "-quote'\"$(x)`;&|*?\tand\\", "line\nbreak"])
def test_files_with_any_name(host: Host, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "made" / name)
    host.write(path, b"0123456789", 0o600)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert (host.read(path), host.read(path, 3), host.read(path, 3, 4), host.read(path, 20)) == (b"0123456789", b"3456789", b"3456", b"")
    found = host.stat(path)
    assert found is not None
    assert (found.kind, found.size, found.path) == ("file", 10, path)
    assert [f.path for f in host.list(str(tmp_path / "made"))] == [path]
    host.rename(path, path + "2")
    host.remove(path + "2")
    assert host.stat(path + "2") is None


def test_write_replaces_whole_and_leaves_nothing_behind(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    host.write(str(path), b"old" * 1000)
    host.write(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state.json"]


def test_links_folders_and_removal(host: Host, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("kept")
    host.symlink(str(tmp_path / "real"), str(tmp_path / "deep" / "link"))
    host.symlink("nowhere", str(tmp_path / "deep" / "dangling"))
    assert {Path(f.path).name: f.kind for f in host.list(str(tmp_path / "deep"))} == {"dangling": "link", "link": "directory"}
    host.mkdir(str(tmp_path / "a" / "b"))
    host.mkdir(str(tmp_path / "a" / "b"))
    host.remove(str(tmp_path / "deep"))
    host.remove(str(tmp_path / "deep"))
    assert (tmp_path / "real" / "file").read_text() == "kept", "removal follows no link"


def test_problems_with_files_are_told(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cases = {
        "file-not-found": lambda: host.read(str(tmp_path / "none")),
        "is-a-folder": lambda: host.read(str(tmp_path)),
        "not-a-folder": lambda: host.list(str(tmp_path / "file")),
        "file-exists": lambda: host.symlink("x", str(tmp_path / "file")),
    }
    found = {}
    for name, action in cases.items():
        with pytest.raises(HostError) as error:
            action()
        found[name] = code(error)
        assert str(tmp_path) in error.value.message
    assert found == {name: name for name in cases}


def test_a_full_disk_and_a_read_only_place_are_told(tmp_path: Path) -> None:
    from firstlight.probe.problems import host_error

    full, locked = host_error(28, "write", "/x/y"), host_error(30, "write", "/x/y", host="ssh://a")
    assert (full.code, locked.code) == ("no-space", "read-only-filesystem")
    assert "XDG_CACHE_HOME" in (full.hint or "")
    with pytest.raises(HostError) as error:
        LocalHost().write("/proc/version/below/new", b"x")
    assert error.value.code == "not-a-folder"


def test_spawned_process_leads_a_session_and_logs(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "out.txt"
    pid = host.spawn(["sh", "-c", 'echo "$MARK"; pwd; echo bad >&2; sleep 30'], log=str(log), env={"MARK": "m"}, cwd=str(tmp_path))
    try:
        deadline = time.monotonic() + 10
        while log.read_text().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(log.read_text().split()) == sorted(["m", str(tmp_path), "bad"])
        assert os.getsid(pid) == pid
    finally:
        os.killpg(pid, 9)
    assert gone(pid)


def test_spawn_of_nothing_is_command_not_found(host: Host, tmp_path: Path) -> None:
    with pytest.raises(HostError) as error:
        host.spawn(["no-such-command-here"], log=str(tmp_path / "log"))
    assert code(error) == "command-not-found"


@pytest.mark.parametrize("folder", ["s", "x" * 120])
def test_a_unix_socket_echoes(host: Host, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "sock"
    with echo_server(path):
        channel = host.connect(str(path))
        payload = bytes(range(256)) * 2000
        sender = threading.Thread(target=channel.send, args=(payload,))
        sender.start()
        assert receive(channel, len(payload)) == payload
        sender.join()
        channel.send(b"bye")
        assert receive(channel, 3) == b"bye"
        assert channel.receive() == b""
        channel.close()


def receive(channel: Channel, amount: int) -> bytes:
    data = b""
    while len(data) < amount:
        part = channel.receive()
        assert part, "ended early"
        data += part
    return data


class echo_server:
    """Answers one client with its own bytes and closes after `bye`. Bound through its folder: the path may be too long."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            last = b""
            while not last.endswith(b"bye"):
                data = connection.recv(65536)
                last = (last + data)[-3:]
                connection.sendall(data)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()


def test_a_socket_nobody_listens_on(host: Host, tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    for name, expected in (("left", "connection-refused"), ("none", "file-not-found")):
        with pytest.raises(HostError) as error:
            host.connect(str(tmp_path / name))
        assert code(error) == expected


def test_environ_is_the_hosts(host: Host) -> None:
    assert host.environ()["HOME"].startswith("/")


@given(st.lists(st.text(alphabet=st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), max_size=40), max_size=6))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_both_ways(sshd: object, words: list[str]) -> None:
    ssh = SshHost("ssh://spark", config=sshd.config)  # type: ignore[attr-defined]
    done = ssh.run(["printf", "%s\\0", *words, "end"])
    assert done.stdout.decode().split("\0")[:-1] == [*words, "end"]


def test_names_of_hosts() -> None:
    assert open_host("local").is_local
    assert open_host("ssh://me@gpu1:2222").name == "ssh://me@gpu1:2222"
    for bad in ("gpu1", "ssh://", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://h:port"):
        with pytest.raises(UsageError) as error:
            open_host(bad)
        assert error.value.code == "unknown-host"
