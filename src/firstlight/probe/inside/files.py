"""Runs on the target: one file or process operation. A JSON request line on stdin, then bytes; a JSON answer line, then bytes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat as modes
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

source, sink = sys.stdin.buffer, sys.stdout.buffer


def info(path: str) -> dict[str, Any] | None:
    try:
        found = os.stat(path)
        is_file, is_folder = modes.S_ISREG(found.st_mode), modes.S_ISDIR(found.st_mode)
        kind = "file" if is_file else "directory" if is_folder else "other"
    except (FileNotFoundError, NotADirectoryError):
        try:
            found, kind = os.lstat(path), "link"
        except (FileNotFoundError, NotADirectoryError):
            return None
    return {"path": path, "size": found.st_size, "kind": kind, "modified": found.st_mtime}


def listing(path: str) -> list[dict[str, Any]]:
    found = (info(os.path.join(path, name)) for name in sorted(os.listdir(path)))
    return [i for i in found if i is not None]


class Cut(Exception):
    """What was sent did not arrive whole: the connection broke."""


def write(path: str, mode: int, size: int) -> None:
    data = source.read()
    if len(data) != size:
        raise Cut
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix="." + name[:100] + ".", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def symlink(target: str, path: str, again: bool) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    if not (again and os.path.islink(path) and os.readlink(path) == target):
        os.symlink(target, path)


def rename(old: str, new: str, again: bool) -> None:
    if not (again and os.path.lexists(new) and not os.path.lexists(old)):
        os.replace(old, new)


def remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def spawn(argv: list[str], log: str, env: dict[str, str], cwd: str | None, token: str) -> int:
    """Once per token, however often it is asked: who comes second answers with the pid of the first."""
    folder = os.path.dirname(os.path.abspath(log))
    os.makedirs(folder, exist_ok=True)
    mark = os.path.join(folder, ".spawned-" + token)
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return first_pid(mark)
    try:
        pid = start(argv, log, env, cwd)
    except BaseException:
        os.unlink(mark)
        raise
    with open(mark + ".new", "w") as file:
        file.write(str(pid))
    os.replace(mark + ".new", mark)
    return pid


def first_pid(mark: str) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with open(mark) as file:
            text = file.read()
        if text:
            return int(text)
        time.sleep(0.05)
    raise OSError("it was started, and nobody knows with which pid")


def start(argv: list[str], log: str, env: dict[str, str], cwd: str | None) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    full = dict(os.environ, **env)
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=full, cwd=cwd, start_new_session=True, close_fds=True
    )
    return process.pid


def connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if len(os.fsencode(path)) <= 107:
        connection.connect(path)
    else:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        os.close(folder)
    return connection


def pump(connection: socket.socket) -> None:
    def outwards() -> None:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=outwards, daemon=True).start()
    while True:
        data = connection.recv(65536)
        if not data:
            return
        sink.write(data)
        sink.flush()


def answer(value: dict[str, Any]) -> None:
    sink.write(json.dumps(value).encode() + b"\n")
    sink.flush()


ACTIONS: dict[str, Callable[..., Any]] = {
    "stat": info,
    "list": listing,
    "write": write,
    "mkdir": lambda path, mode: os.makedirs(path, mode=mode, exist_ok=True),
    "symlink": symlink,
    "rename": rename,
    "remove": remove,
    "spawn": spawn,
}

# again: the same was asked before, and its answer was lost. size: of the bytes that follow
TOLD = {"write": ("size",), "symlink": ("again",), "rename": ("again",)}


def read_line() -> bytes:
    """Byte by byte from the descriptor where a stream follows that `pump` reads itself."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def main() -> None:
    os.umask(os.umask(0o077) | 0o022)  # programs of ours lie in these folders: nobody else may put others in their place
    request = json.loads(read_line().decode())
    action, arguments = request["action"], request["arguments"]
    try:
        if action == "connect":
            connection = connected(*arguments)
            answer({"value": None})
            pump(connection)
        else:
            told = [request[name] for name in TOLD.get(action, ())]
            answer({"value": ACTIONS[action](*arguments, *told)})
    except OSError as e:
        answer({"errno": e.errno, "text": str(e), "missing": getattr(e, "filename", None)})


if __name__ == "__main__":
    main()
