"""A port of another host's loopback at a port of ours, through the user's own ssh; it comes back after a cut."""

import shlex
import socket
import subprocess
import threading
import time

from firstlight.core.errors import HostError
from firstlight.probe.local import kill_group
from firstlight.probe.ssh import SshHost

PATIENCE_SECONDS = 30.0
AGAIN_SECONDS = 0.3
SETTLE_SECONDS = 1.5
HOPELESS = (b"Permission denied", b"Host key verification failed", b"Could not resolve")


def remote_target(name: str) -> str:
    """`ssh://me@host:22` as a person types it behind `ssh`."""
    rest = name.removeprefix("ssh://").rstrip("/")
    login, colon, port = rest.rpartition(":")
    numbered = bool(colon) and port.isdigit() and not rest.endswith("]")
    target = shlex.quote((login if numbered else rest).replace("[", "").replace("]", ""))
    return f"-p {port} {target}" if numbered else target


class Forward:
    """Enter gives the local port. breaks: how often the connection was lost. A connection of its own: it ends with this object."""

    def __init__(self, host: SshHost, port: int, address: str = "127.0.0.1") -> None:
        self.host, self.port, self.address, self.breaks, self.local = host, port, address, 0, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()

    def __enter__(self) -> int:
        """Raises HostError `tunnel-failed`."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.local = int(s.getsockname()[1])
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        threading.Thread(target=self._keep, name="ssh-forward", daemon=True).start()
        return self.local

    def lost(self) -> bool:
        """Whether the connection was lost meanwhile. A request feels a cut before ssh has ended: that is waited for."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            if self.breaks or self._process is None or self._process.poll() is not None:
                return True
            time.sleep(0.05)
        return False

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._process is not None:
            kill_group(self._process)

    def _start(self) -> None:
        wanted = f"127.0.0.1:{self.local}:{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"
        options = ("-N", "-L", wanted, "-oExitOnForwardFailure=yes", "-oControlMaster=no", "-oControlPath=none")
        self._process = subprocess.Popen(
            self.host.argv(*options), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )

    def _connect(self) -> None:
        """A connection that breaks while it is made is made again, for a while. Raises HostError `tunnel-failed`."""
        deadline, said = time.monotonic() + PATIENCE_SECONDS, b""
        while time.monotonic() < deadline:
            self._start()
            if self._listens(deadline):
                return
            assert self._process is not None
            kill, self._process = self._process, None
            if kill.poll() is not None and kill.stderr is not None:
                said = kill.stderr.read() or said
            kill_group(kill)
            if any(word in said for word in HOPELESS):
                break
            time.sleep(AGAIN_SECONDS)
        lines = tuple(said.decode("utf-8", "replace").splitlines()[-3:])
        raise HostError("tunnel-failed", f"port {self.port} of {self.host.name} cannot be reached through ssh", evidence=lines)

    def _listens(self, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.local)) == 0:
                    return True
            time.sleep(0.05)
        return False

    def _keep(self) -> None:
        """A cut tunnel is laid again at the same local port."""
        while not self._closed.is_set():
            process = self._process
            if process is None:
                return
            process.wait()
            if self._closed.is_set():
                return
            self.breaks += 1
            if self._closed.wait(AGAIN_SECONDS):
                return
            self._start()
