"""A real sshd on loopback, with keys, configuration and port of its own, for every test that needs another host."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)


def needed() -> None:
    """Skips where there is no server to be had; CI installs one."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH server on this machine (`apt-get install openssh-server`)")


@contextlib.contextmanager
def running(folder: Path, *, extra: str = "") -> Iterator["Sshd"]:
    """A server for as long as the block lasts; skips where there is none to be had."""
    needed()
    server = Sshd(folder, extra=extra)
    yield server
    server.stop()


class Sshd:
    """One server process; `cut` breaks every open connection, `stop` ends the server."""

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        self.folder, self.port = folder, _free_port()
        for name in ("host_key", "user_key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {(folder / 'host_key.pub').read_text()}")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
            f"StrictModes no\nPidFile {folder}/sshd.pid\nUsePAM no\nPasswordAuthentication no\nMaxSessions 40\nMaxStartups 100\n{extra}\n"
        )
        self.config = self.client_config("config", key="user_key")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def client_config(self, name: str, *, key: str, known: str = "known_hosts", extra: str = "") -> str:
        path = self.folder / name
        path.write_text(
            f"Host spark\n  HostName 127.0.0.1\n  Port {self.port}\nHost *\n  IdentityFile {self.folder}/{key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/{known}\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n{extra}"
        )
        return str(path)

    def start(self) -> None:
        with contextlib.suppress(PermissionError):  # only root's sshd separates privileges there
            os.makedirs("/run/sshd", exist_ok=True)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())

    def cut(self) -> int:
        """Kills the session processes, so that every client loses its connection; returns how many."""
        assert self._process is not None
        children = _children(self._process.pid)
        for pid in children:
            with suppress(ProcessLookupError):  # it may have ended by itself meanwhile
                os.kill(pid, 9)
        return len(children)

    def stop(self) -> None:
        self.cut()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    direct = [int(p) for p in text.split()]
    return [p for d in direct for p in _sessions(d)]


def _sessions(pid: int) -> list[int]:
    """A session's sshd processes (privilege separation has two), not the commands it runs."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [pid, *(p for c in below.split() for p in _sessions(int(c)))] if name.startswith("sshd") else []


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
