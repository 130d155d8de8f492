"""Operating system errors as HostErrors: a code for what went wrong, the path as evidence."""

import errno

from firstlight.core.errors import HostError

_CODES = {
    errno.ENOENT: ("file-not-found", "no such file or folder"),
    errno.EACCES: ("permission-denied", "permission denied"),
    errno.EPERM: ("permission-denied", "operation not permitted"),
    errno.ENOSPC: ("no-space", "no space left on the device"),
    errno.EDQUOT: ("no-space", "disk quota exceeded"),
    errno.EROFS: ("read-only-filesystem", "the file system is read-only"),
    errno.EEXIST: ("file-exists", "the path exists already"),
    errno.ENOTDIR: ("not-a-folder", "a part of the path is not a folder"),
    errno.EISDIR: ("is-a-folder", "the path is a folder"),
    errno.ECONNREFUSED: ("connection-refused", "nobody listens on the socket"),
    errno.EPIPE: ("connection-closed", "the other side closed the connection"),
    errno.ECONNRESET: ("connection-closed", "the other side closed the connection"),
}
_HINTS = {
    "no-space": "free space there, or choose another place with XDG_CACHE_HOME, XDG_STATE_HOME or HF_HOME",
    "read-only-filesystem": "choose a place that can be written with XDG_CACHE_HOME, XDG_STATE_HOME or HF_HOME",
}


def host_error(number: int | None, action: str, path: str, *, host: str = "local", detail: str = "") -> HostError:
    """An errno of `action` on `path` as a HostError; an unlisted number becomes `host-io-failed` with the system's own text."""
    code, text = _CODES.get(number or 0, ("host-io-failed", detail or f"error {number}"))
    where = path if host == "local" else f"{path} on {host}"
    return HostError(code, f"cannot {action} {where}: {text}", evidence=(f"path: {path}",), hint=_HINTS.get(code))


def command_not_found(command: str, *, host: str = "local") -> HostError:
    where = "" if host == "local" else f" on {host}"
    return HostError("command-not-found", f"the command {command} was not found{where}", evidence=(f"command: {command}",))


def command_timeout(argv: str, timeout: float, *, host: str = "local") -> HostError:
    where = "" if host == "local" else f" on {host}"
    return HostError("command-timeout", f"a command did not end within {timeout:g} s{where}", evidence=(f"command: {argv}",))
