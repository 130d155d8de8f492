"""Another machine for the tests: its own files, processes, network and user, reached through a real sshd."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from systemd_machine import SystemdMachine

USER, HOME_THERE = "llm", "/home/späce of llm"
HOST = "ssh://spark"


class Far:
    """The other machine, its sshd (one a connection, through `nsenter`), and our way in."""

    def __init__(self, folder: Path) -> None:
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
        if sshd is None or shutil.which("ssh") is None:
            pytest.skip("no OpenSSH server on this machine (`apt-get install openssh-server`)")
        self.folder, self.sshd = folder, sshd
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

        self.uid = self.inside("id", "-u", USER).strip()

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

    @contextmanager
    def cutting(self, times: int, every: float) -> Iterator[list[int]]:
        """Cuts every connection every so many seconds, so many times, while the block runs; the list holds what each cut ended."""
        cuts, over = list[int](), threading.Event()

        def cutter() -> None:
            while len(cuts) < times and not over.wait(every):
                if ended := self.cut():
                    cuts.append(ended)

        thread = threading.Thread(target=cutter, daemon=True)
        thread.start()
        try:
            yield cuts
        finally:
            over.set()
            thread.join()

    def of_user(self) -> list[str]:
        """Commands of the login's processes, connections aside."""
        rows = self.machine.run("ps", "-u", USER, "-o", "args=").stdout.splitlines()
        return [r for r in rows if not r.startswith("sshd") and "ps -u" not in r]


def up_there(model: str, *more: str) -> tuple[str, ...]:
    engine = ("--engine", "llamacpp", "--engine-python", sys.executable)
    return ("up", model, "--host", HOST, "--name", "far", *engine, "--skip", "bench", "--context", "2048", *more, "--", "--threads", "1")
