"""A real systemd as PID 1 in namespaces of its own, on a copy-on-write view of this machine: nothing it does is seen outside.

It boots a target that holds nothing but our own units, so that none of the machine's services, and no clean-up of /tmp, ever runs.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SYSTEMD = "/lib/systemd/systemd"
_CGROUP_ROOTS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")

# $1: an empty folder; $2: systemd; $3: who raises the loopback, may be empty, with $4; then a line a place that lies on a file
# system of its own. What systemd writes to is all its own: files above the machine's (all of them stay in /run/upper), /dev, /run,
# shared memory; kernel settings and devices in /sys cannot be written. The distribution's units are hidden by SYSTEMD_UNIT_PATH.
_INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
for name in null zero full random urandom tty; do : >dev/$name; mount --bind /dev/$name dev/$name; done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
ln -s pts/ptmx dev/ptmx
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/upper old
mount --bind "$1/upper" run/upper
rm -rf etc/systemd/system etc/systemd/user var/log/journal
mkdir -p etc/systemd/system etc/systemd/user var/log run/systemd
init=$2 raise=$3 code=$4
shift 4
for place in "$@"; do mkdir -p ".$place"; mount --bind "$place" ".$place"; done
pivot_root . old
umount -l /old
[ -z "$raise" ] || "$raise" -c "$code"
cd /etc/systemd/system
for name in sysinit basic multi-user default network-online shutdown umount final sockets; do
  printf '[Unit]\\nDefaultDependencies=no\\n' >$name.target
done
for name in .service .socket -dev-log.socket; do cp "/lib/systemd/system/systemd-journald$name" .; done
set -- "$init" --system --unit=default.target
exec env -i container=firstlight PATH="$PATH" SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_LOG_TARGET=console "$@"
"""

# SIOCGIFFLAGS, SIOCSIFFLAGS: the loopback of a new network namespace is down
_LOOPBACK_UP = """
import fcntl, socket, struct
s = socket.socket()
name, flags = struct.unpack("16sh", fcntl.ioctl(s, 0x8913, struct.pack("16sh14x", b"lo", 0))[:18])
fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
"""

_POST = """
import sys, urllib.error, urllib.request
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.stdin.read().strip()}
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.argv[2].encode(), headers), timeout=60)
except urllib.error.HTTPError as e:
    answer = e
print(answer.status, answer.read().decode(), sep="\\n")
"""


# the last is pytest-xdist's: `ps` would cut its lines there
_NOT_INSIDE = frozenset({"NOTIFY_SOCKET", "INVOCATION_ID", "XDG_RUNTIME_DIR", "COLUMNS"})


def needed() -> None:
    """Skips, with the reason, where no systemd can be booted."""
    if not Path(SYSTEMD).exists() or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("no systemd on this machine (`apt-get install systemd`)")
    if os.geteuid() != 0:
        pytest.skip("booting a systemd in namespaces needs root")
    if _cgroup_root() is None:
        pytest.skip("this machine has no cgroup version 2 hierarchy that can be written")


def _cgroup_root() -> Path | None:
    return next(
        (Path(r) for r in _CGROUP_ROOTS if os.access(f"{r}/cgroup.procs", os.W_OK) and Path(r, "cgroup.controllers").exists()), None
    )


def _other_disks(folder: Path) -> list[str]:
    """Where the tests, the interpreter and this test's own folder lie, if not on the root file system: they are bound there."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2], folder.parent}
    return sorted(str(p.resolve()) for p in wanted if p.resolve().stat().st_dev != Path("/").stat().st_dev)


class SystemdMachine:
    """Boots on construction; `run` runs a command inside, `path` is a file inside as seen from here, `close` ends all of it."""

    def __init__(self, folder: Path, *, own_network: bool = False) -> None:
        """own_network: a loopback of its own, so that nothing inside is reached from here but by a way that a test lays."""
        needed()
        self._net = ["-n"] if own_network else []
        root = _cgroup_root()
        assert root is not None
        self.folder = folder
        self._cgroup = root / f"firstlight-test-{os.getpid()}-{time.monotonic_ns()}"
        self._cgroup.mkdir()
        (folder / "mnt").mkdir(parents=True)
        self._log = folder / "systemd.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *["unshare", "-m", "-p", "-f", "-C", "-u", "-i", *self._net, "--kill-child", "sh", "-c", _INIT],
                    *["sh", str(folder / "mnt"), SYSTEMD, sys.executable if own_network else "", _LOOPBACK_UP, *_other_disks(folder)],
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._in_child,
            )
        self.pid = 0
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _in_child(self) -> None:
        """Into the cgroup; and the machine ends with this process, even if that is killed."""
        (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.pid = self.pid or self._child()
            if self.pid and self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"):
                self.run("systemctl", "start", "systemd-journald.socket", "systemd-journald.service")
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        pytest.skip(f"systemd did not boot in namespaces here: {self._log.read_text(errors='replace')[-400:]}")

    def _child(self) -> int:
        """PID 1 of the namespaces, once it is systemd itself."""
        text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(text[0]) if text and Path(f"/proc/{text[0]}/comm").read_text().strip() == "systemd" else 0

    def logind(self) -> bool:
        """Starts the system bus and logind, as on any server; False where they are not installed or do not start."""
        for name in ("dbus.service", "dbus.socket", "systemd-logind.service", "user@.service", "user-runtime-dir@.service", "user.slice"):
            if self.run("cp", f"/lib/systemd/system/{name}", "/etc/systemd/system").returncode != 0:
                return False
        self.run("ln", "-s", "systemd-logind.service", "/etc/systemd/system/dbus-org.freedesktop.login1.service")
        self.run("systemctl", "daemon-reload")
        started = [self.run("systemctl", "start", *units) for units in (("dbus.socket", "dbus.service"), ("systemd-logind",))]
        return all(s.returncode == 0 for s in started)

    def run(self, *argv: str, env: Mapping[str, str] | None = None, seconds: float = 120) -> "subprocess.CompletedProcess[str]":
        """Never raises for an exit status. The environment is the caller's own plus `env`."""
        enter = self.enter()
        unset = {k: v for k, v in os.environ.items() if k not in _NOT_INSIDE}
        return subprocess.run(
            [*enter, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**unset, **(env or {})},
            timeout=seconds,
            check=False,
        )

    def post(self, url: str, body: Mapping[str, Any], *, key: str) -> tuple[int, Any]:
        """Status and JSON of a request that is made inside, where the endpoint is; the key goes on standard input."""
        argv = [*self.enter(), sys.executable, "-c", _POST, url, json.dumps(body)]
        done = subprocess.run(argv, input=key, capture_output=True, text=True, timeout=90, check=False)
        status, _, text = done.stdout.partition("\n")
        return int(status or 0), json.loads(text or "null")

    def enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-C", "-u", "-i", *self._net, "--"]

    def path(self, inside: str | Path) -> Path:
        return Path(f"/proc/{self.pid}/root{inside}")

    def properties(self, unit: str, *names: str) -> dict[str, str]:
        shown = self.run("systemctl", "show", unit, *(f"-p{n}" for n in names)).stdout
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for path in sorted(self._cgroup.rglob("*"), reverse=True):
            if path.is_dir():
                _remove(path)
        _remove(self._cgroup)


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
