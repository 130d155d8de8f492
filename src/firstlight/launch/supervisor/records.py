"""What the supervisor writes down: atomic JSON files, an event stream, and never a secret."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

REMOVED = "(removed)"
RESERVE = ".reserve"
RESERVE_BYTES = 256 * 1024
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|SESSION_ID)", re.I)
_NOT_SECRET = re.compile(r"(TOKENIZERS?_|MAX_.*TOKENS|_KEYS?_FILE|SSH_AUTH_SOCK|XAUTHORITY|TOKEN_PATH|KEYRING)", re.I)
_SECRET_OPTION = re.compile(r"^--?[\w-]*(api[-_]?key|token|secret|password)$", re.I)


def visible_environment(env: Mapping[str, str], secret_names: Sequence[str]) -> dict[str, str]:
    """The environment for a record: values of secrets, and of what looks like one, are removed."""
    return {k: REMOVED if k in secret_names or is_secret_name(k) else v for k, v in sorted(env.items())}


def is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def visible_arguments(argv: Sequence[str]) -> list[str]:
    """Arguments for a record: what follows `--api-key` and its like is removed, as a word of its own or after `=`."""
    shown: list[str] = []
    hide = False
    for word in argv:
        option, equals, value = word.partition("=")
        secret = bool(_SECRET_OPTION.match(option)) and not value.isdigit()
        shown.append(REMOVED if hide else f"{option}={REMOVED}" if secret and equals else word)
        hide = secret and not equals
    return shown


def keep_reserve(folder: str) -> None:
    """A file that is given up when the disk is full, so that the last records can still be written."""
    path = os.path.join(folder, RESERVE)
    with contextlib.suppress(OSError):
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(b"\0" * RESERVE_BYTES)


def give_up_reserve(folder: str) -> bool:
    """True where there was one."""
    try:
        os.unlink(os.path.join(folder, RESERVE))
    except OSError:
        return False
    return True


def write_json(path: str, value: Any) -> bool:
    """Atomic; False where it could not be written: the supervisor goes on, a full disk must not end an engine."""
    return _write_json(path, value) or (give_up_reserve(os.path.dirname(path)) and _write_json(path, value))


def _write_json(path: str, value: Any) -> bool:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return False
    return True


def read_json(path: str) -> dict[str, Any]:
    """Raises OSError, ValueError."""
    with open(path, encoding="utf-8") as file:
        value = json.load(file)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value


class EventFile:
    """One JSON object a line, appended whole. What a full disk refused is kept and written when there is room again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bytes = os.path.getsize(path) if os.path.exists(path) else 0
        self._waiting: list[bytes] = [b"\n"] if self._torn() else []

    def _torn(self) -> bool:
        """Whether whoever wrote the last line was killed in the middle of it."""
        if not self.bytes:
            return False
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
        return False

    def write(self, kind: str, data: Mapping[str, Any]) -> bytes:
        """Appends an event; returns its line."""
        line = json.dumps({"time": time.time(), "kind": kind, "data": data}, ensure_ascii=False).encode() + b"\n"
        self._waiting = [*self._waiting, line][-1000:]
        self.flush()
        return line

    def flush(self) -> None:
        if not self._waiting:
            return
        block = b"".join(self._waiting)
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            end = os.fstat(descriptor).st_size
            if _write_all(descriptor, block):
                self._waiting = []
                self.bytes = end + len(block)
            else:
                os.ftruncate(descriptor, end)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, block: bytes) -> bool:
    try:
        return os.write(descriptor, block) == len(block)
    except OSError:
        return False
