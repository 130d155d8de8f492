"""This machine behind the Host port."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import stat as modes
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence

from firstlight.core.ports import Completed, FileInfo
from firstlight.probe.problems import command_not_found, command_timeout, host_error
from firstlight.probe.running import Running


@contextlib.contextmanager
def _io(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise host_error(e.errno, action, path, detail=str(e)) from None


def _merged(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else {**os.environ, **env}


class SocketChannel:
    """A connected Unix socket. `receive` returns b"" at the end of the stream."""

    def __init__(self, connection: socket.socket, path: str) -> None:
        self._socket = connection
        self._path = path

    def send(self, data: bytes) -> None:
        with _io("write to", self._path):
            self._socket.sendall(data)

    def receive(self, limit: int = 65536) -> bytes:
        with _io("read from", self._path):
            return self._socket.recv(limit)

    def close(self) -> None:
        self._socket.close()


class LocalHost:
    """Host port for the machine this runs on. Paths are taken as they are (`~` is not expanded).

    env of `run` and `spawn` is laid over the inherited environment. `stat` and `list` follow links; a link to nowhere has
    kind `link`. `remove` takes files, links and whole folders, follows no link, and is content when nothing is there.
    """

    name = "local"
    is_local = True

    def __init__(self) -> None:
        self._running = Running()

    def interrupt(self) -> None:
        """Ends what `run` waits for in other threads, with its group; this host runs nothing any more."""
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
        """Runs to the end; past `timeout` seconds the whole process group is killed and `command-timeout` raised."""
        process = self._start(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        try:
            with self._running.hold(process):
                out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise command_timeout(shlex.join(argv), timeout) from None
        except BaseException:
            kill_group(process)
            raise
        return Completed(returncode=process.returncode, stdout=out, stderr=err)

    def _start(self, argv: Sequence[str], *, env: Mapping[str, str] | None, cwd: str | None, stdin: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_merged(env),
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as e:
            raise _start_error(e, argv[0], cwd) from None

    def spawn(self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None) -> int:
        """Starts a session leader that outlives this process; returns its pid. A thread reaps it if we live longer."""
        self.mkdir(os.path.dirname(os.path.abspath(log)))
        with _io("open", log):
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_merged(env), cwd=cwd, start_new_session=True
            )
        except OSError as e:
            raise _start_error(e, argv[0], cwd) from None
        finally:
            os.close(output)
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
        return process.pid

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        with _io("read", path), open(path, "rb") as file:
            if offset:
                file.seek(offset)
            return file.read() if limit is None else file.read(limit)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Atomic: readers see the old content or the new one. Parents are made."""
        folder, name = os.path.split(os.path.abspath(path))
        with _io("write", path):
            os.makedirs(folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def stat(self, path: str) -> FileInfo | None:
        try:
            return _info(path, os.stat(path))
        except FileNotFoundError:
            return _dangling(path)
        except NotADirectoryError:
            return None
        except OSError as e:
            raise host_error(e.errno, "look at", path, detail=str(e)) from None

    def list(self, path: str) -> list[FileInfo]:
        """A folder's entries, sorted by name, paths absolute."""
        with _io("list", path):
            names = sorted(os.listdir(path))
        found = (self.stat(os.path.join(path, name)) for name in names)
        return [info for info in found if info is not None]

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        with _io("make the folder", path):
            os.makedirs(path, mode=mode, exist_ok=True)

    def symlink(self, target: str, path: str) -> None:
        with _io("link", path):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            os.symlink(target, path)

    def rename(self, old: str, new: str) -> None:
        with _io("rename", old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _io("remove", path), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def connect(self, socket_path: str) -> SocketChannel:
        """A Unix socket; paths beyond the kernel's 107 bytes go through the folder's descriptor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _io("connect to", socket_path):
                _connect(connection, socket_path)
        except BaseException:
            connection.close()
            raise
        return SocketChannel(connection, socket_path)

    def environ(self) -> Mapping[str, str]:
        return dict(os.environ)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that leads its own group, closes our ends of its pipes and reaps it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


def _start_error(error: OSError, command: str, cwd: str | None) -> Exception:
    if cwd is not None and not os.path.isdir(cwd):
        return host_error(error.errno, "start in", cwd, detail=str(error))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return command_not_found(command)
    return host_error(error.errno, "start", command, detail=str(error))


def _info(path: str, found: os.stat_result) -> FileInfo:
    kind = "file" if modes.S_ISREG(found.st_mode) else "directory" if modes.S_ISDIR(found.st_mode) else "other"
    return FileInfo(path=path, size=found.st_size, kind=kind, modified=found.st_mtime)


def _dangling(path: str) -> FileInfo | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return FileInfo(path=path, size=found.st_size, kind="link", modified=found.st_mtime)


def _connect(connection: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= 107:
        connection.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
