"""Another machine behind the Host port, through the user's own `ssh`. Probing needs POSIX sh there; the rest Python 3."""

import json
import os
import re
import secrets
import shlex
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import Any

import msgspec

from firstlight.core.errors import HostError, UsageError
from firstlight.core.ids import digest
from firstlight.core.ports import Completed, FileInfo
from firstlight.probe.cuts import PATIENCE_SECONDS, ConnectionLost, Cuts
from firstlight.probe.local import kill_group
from firstlight.probe.problems import command_not_found, command_timeout, host_error
from firstlight.probe.running import Running
from firstlight.probe.sshchannel import SshChannel, past_noise
from firstlight.probe.sshscript import (
    NO_FOLDER,
    NOT_EXECUTABLE,
    Answer,
    command_script,
    entry,
    is_cut,
    own_output,
    read_answer,
    refusal,
    returncode,
)

CONNECT_SECONDS = 10
# ssh passes names on to a shell (ProxyCommand, Match exec), people paste them, and a leading `-` would be an option
_SHELL = r"\x00-\x20\x7f'\"`$;&<>|(){}\[\]\\*?!#~"
_USER, _NAME = rf"[^-@/:{_SHELL}][^@/:{_SHELL}]*", rf"[^-@/:%{_SHELL}][^@/:%\s{_SHELL}]*"
_ADDRESS = re.compile(rf"ssh://(?:(?P<user>{_USER})@)?(?P<host>\[[0-9a-fA-F:.%\w]+\]|{_NAME})(?::(?P<port>\d{{1,5}}))?/?")


class SshHost:
    """`ssh://[user@]host[:port]`. Everything else (keys, jumps, aliases) is the user's ssh configuration; nothing asks for a password.

    One connection is shared by all commands (the user's ControlPath if one is set, else ours, kept for two minutes).
    FIRSTLIGHT_SSH_CONFIG names another configuration file (`ssh -F`). A process that `spawn` started survives a lost connection.

    A connection that is lost is made again, with growing pauses, and what was asked is asked again, for `patience` seconds: every
    method may be done twice there (a second `spawn` finds the first). on_lost: told once per loss. `connect` alone is its caller's.
    """

    is_local = False

    def __init__(
        self,
        name: str,
        *,
        config: str | None = None,
        patience: float = PATIENCE_SECONDS,
        on_lost: Callable[[HostError], None] | None = None,
    ) -> None:
        match = _ADDRESS.fullmatch(name)
        if match is None:
            hint = "write `ssh://[user@]host[:port]`; other names go into ~/.ssh/config"
            raise UsageError("unknown-host", f"{ascii(name)[1:-1]} is not an ssh address", hint=hint)
        self.name = name
        self._target = match["host"].strip("[]")
        self._config = config or os.environ.get("FIRSTLIGHT_SSH_CONFIG")
        self._flags = [*(["-l", match["user"]] if match["user"] else []), *(["-p", match["port"]] if match["port"] else [])]
        self._python: str | None = None
        self.cuts = Cuts(patience, on_lost)
        self._running = Running()

    def interrupt(self) -> None:
        """Ends our side of what `run` waits for in other threads; there its time limit ends it."""
        self.cuts.patience = 0.0
        self._running.interrupt()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Completed:
        return self.cuts.across(lambda _: self._run_once(argv, stdin, timeout, env, cwd))

    def _run_once(
        self, argv: Sequence[str], stdin: bytes | None, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Completed:
        token = secrets.token_hex(12)
        script = command_script(argv, token=token, env=env, cwd=cwd, timeout=timeout)
        began = time.monotonic()
        process = self._ssh(script)
        try:
            with self._running.hold(process):
                out, err = process.communicate(script + (stdin or b""), timeout=timeout + CONNECT_SECONDS + 5)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise command_timeout(shlex.join(argv), timeout, host=self.name) from None
        except BaseException:
            kill_group(process)
            raise
        answer = read_answer(err, token)
        self._check(answer, argv, cwd)
        status = returncode(answer.status or 0)
        if status == -9 and time.monotonic() - began >= timeout:
            raise command_timeout(shlex.join(argv), timeout, host=self.name)
        return Completed(returncode=status, stdout=own_output(out, token), stderr=answer.stderr)

    def _check(self, answer: Answer, argv: Sequence[str], cwd: str | None) -> None:
        if not answer.started:
            raise self._refused(answer.banner)
        if answer.problem == NO_FOLDER:
            raise host_error(2, "start in", cwd or "", host=self.name)
        if answer.problem == NOT_EXECUTABLE:
            raise host_error(13, "start", argv[0], host=self.name)
        if answer.problem is not None:
            raise command_not_found(argv[0], host=self.name)
        if answer.status is None:
            raise self._lost(answer.stderr)

    def _refused(self, stderr: bytes) -> HostError:
        code, message, hint = refusal(stderr, self._target, shlex.join([*self._flags, self._target]))
        kind = ConnectionLost if is_cut(stderr) else HostError
        return kind(code, message, evidence=_tail(stderr), hint=hint)

    def _lost(self, stderr: bytes) -> HostError:
        self.cuts.reached = True  # the command had begun
        return ConnectionLost("host-unreachable", f"{self._target}: the connection was lost while a command ran", evidence=_tail(stderr))

    def argv(self, *options: str) -> list[str]:
        """The plain ssh command line to this host; its last two words are `--` and the target. ssh takes the first of equal options."""
        return ["ssh", *options, *self._options, *self._flags, "--", self._target]

    def _ssh(self, script: bytes) -> subprocess.Popen[bytes]:
        argv = [*self.argv(), entry(script)]
        try:
            return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except OSError:
            raise HostError(
                "command-not-found", "the command ssh was not found on this machine", hint="install an OpenSSH client"
            ) from None

    @cached_property
    def _options(self) -> list[str]:
        own = ["-F", self._config] if self._config else []
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "ForwardX11": "no",
            "ForwardAgent": "no",
            "RequestTTY": "no",
            "LogLevel": "ERROR",
        }
        if not self._user_shares(own):
            settings |= {"ControlMaster": "auto", "ControlPersist": "120", "ControlPath": f"{_control_folder()}/%C{self._mark()}"}
        return [*own, *(f"-o{key}={value}" for key, value in settings.items())]

    def _mark(self) -> str:
        """Another configuration file is another way in: it shares no connection with the usual one."""
        return f"-{digest(self._config, length=6)}" if self._config else ""

    def _user_shares(self, own: list[str]) -> bool:
        """Whether the user's configuration shares connections to this host already."""
        asked = subprocess.run(
            ["ssh", *own, "-G", *self._flags, "--", self._target], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        found = dict(line.split(" ", 1) for line in asked.stdout.decode("utf-8", "replace").splitlines() if " " in line)
        return found.get("controlpath", "none") != "none" and found.get("controlmaster", "false") in ("auto", "autoask", "yes", "ask")

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """POSIX tools only, so that probing reads files where there is no Python."""
        script = 'p=$1; [ -d "$p" ] && exit 21; [ -e "$p" ] || exit 2; [ -r "$p" ] || exit 13; exec <"$p"; '
        script += f"tail -c +{offset + 1} <&0" if offset else "cat"
        script += f" | head -c {limit}" if limit is not None else ""
        done = self.run(["sh", "-c", script, "sh", path], timeout=120)
        if done.returncode in (2, 13, 21):
            raise host_error(done.returncode, "read", path, host=self.name)
        return done.stdout

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._do("write", path, mode, at=path, data=data)

    def stat(self, path: str) -> FileInfo | None:
        found = self._do("stat", path, at=path) if self._has_python() else self._plain_stat(path)
        return None if found is None else msgspec.convert(found, FileInfo)

    def _plain_stat(self, path: str) -> dict[str, Any] | None:
        done = self.run(["stat", "-L", "-c", "%s %f %Y", "--", path])
        fields = done.text.split()
        if not done.ok or len(fields) != 3:
            return None
        kind = {0o100000: "file", 0o040000: "directory"}.get(int(fields[1], 16) & 0o170000, "other")
        return {"path": path, "size": int(fields[0]), "kind": kind, "modified": float(fields[2])}

    def list(self, path: str) -> list[FileInfo]:
        return _infos(self._do("list", path, at=path))

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self._do("mkdir", path, mode, at=path)

    def symlink(self, target: str, path: str) -> None:
        self._do("symlink", target, path, at=path)

    def rename(self, old: str, new: str) -> None:
        self._do("rename", old, new, at=old)

    def remove(self, path: str) -> None:
        self._do("remove", path, at=path)

    def spawn(self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None) -> int:
        pid: int = self._do("spawn", list(argv), log, dict(env or {}), cwd, secrets.token_hex(8), at=argv[0])
        return pid

    def environ(self) -> Mapping[str, str]:
        raw = self.run(["cat", "/proc/self/environ"]).stdout.decode("utf-8", "surrogateescape")
        return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)

    def connect(self, socket_path: str) -> SshChannel:
        """A Unix socket on the target, relayed by a small Python script over the shared connection."""
        token = secrets.token_hex(12)
        script = command_script(self._helper(), token=token)
        process = self._ssh(script)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(script + _request("connect", socket_path))
            process.stdin.flush()
            past_noise(process.stdout, token)
            line = process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            _, err = process.communicate(timeout=CONNECT_SECONDS)
            answer = read_answer(err, token)
            raise self._refused(answer.banner) if not answer.started else self._lost(answer.stderr)
        channel = SshChannel(process, socket_path, self.name)
        try:
            _value(line, "connect to", socket_path, self.name)
        except BaseException:
            channel.close()
            raise
        return channel

    def _has_python(self) -> bool:
        if self._python is None:
            done = self.run(["sh", "-c", "command -v python3; true"])
            self._python = done.text.strip()
        return bool(self._python)

    def _helper(self) -> Sequence[str]:
        if not self._has_python():
            raise HostError(
                "python-missing",
                f"{self._target} has no python3",
                evidence=("command -v python3: nothing",),
                hint="install Python 3 there; without it only `probe`, `inspect` of local files and `plan` work",
            )
        source = resources.files(f"{__package__}.inside").joinpath("files.py").read_text("utf-8")
        return ["python3", "-X", "utf8", "-S", "-c", source]

    def _do(self, action: str, *arguments: Any, at: str, data: bytes = b"") -> Any:
        helper = self._helper()

        def once(losses: int) -> Completed:
            return self._run_once(helper, _request(action, *arguments, size=len(data), again=losses > 0) + data, 120)

        done = self.cuts.across(once)
        if not done.ok or not done.stdout:
            raise HostError("host-io-failed", f"cannot {action} {at} on {self.name}", evidence=_tail(done.stderr))
        return _value(done.stdout.partition(b"\n")[0], _VERBS.get(action, action), at, self.name)


def _infos(rows: Any) -> list[FileInfo]:
    return msgspec.convert(rows, list[FileInfo])


_VERBS = {"stat": "look at", "mkdir": "make the folder", "symlink": "link", "spawn": "start"}


def _request(action: str, *arguments: Any, size: int = 0, again: bool = False) -> bytes:
    return json.dumps({"action": action, "arguments": arguments, "size": size, "again": again}).encode() + b"\n"


def _value(line: bytes, verb: str, at: str, host: str) -> Any:
    answer = json.loads(line)
    if "errno" not in answer:
        return answer["value"]
    if verb == "start" and answer["errno"] == 2 and answer.get("missing") in (at, None):
        raise command_not_found(at, host=host)
    where = answer.get("missing") or at if verb == "start" else at
    raise host_error(answer["errno"], verb, where, host=host, detail=answer["text"])


def _tail(stderr: bytes) -> tuple[str, ...]:
    return tuple(line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip())[-4:]


def _control_folder() -> str:
    """Short (a socket's path has 107 bytes), private, the same for every firstlight process of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if 0 < len(runtime) < 40 and os.access(runtime, os.W_OK) else tempfile.gettempdir()
    folder = os.path.join(base, f"firstlight-ssh-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HostError("permission-denied", f"{folder} belongs to somebody else or is open to others", hint=f"remove {folder}")
    return folder
