"""A command of minutes on another host: it goes on there when the connection breaks, and its end is found again."""

import posixpath
import secrets
import time
from collections.abc import Callable, Sequence

from firstlight.core.errors import HostError
from firstlight.core.ports import Completed, Host

LOOK_SECONDS = 1.0
SCRIPT = 'd=$1; shift; >"$d/err"; "$@" >"$d/out" 2>"$d/err"; echo $? >"$d/status.new"; mv "$d/status.new" "$d/status"'


def run_lasting(
    host: Host, argv: Sequence[str], *, scratch: str, timeout: float, on_line: Callable[[str], None] = lambda line: None
) -> Completed:
    """As `host.run`. scratch: a folder there, in which a folder of this command's own is made and removed again.

    on_line: is told what the command says on its standard error, line by line, on another host.
    Raises HostError `command-timeout`; the command is then ended there.
    """
    if host.is_local:
        return host.run(argv, timeout=timeout)
    folder, deadline = posixpath.join(scratch, f"step-{secrets.token_hex(4)}"), time.monotonic() + timeout
    host.mkdir(folder, 0o700)
    pid = host.spawn(["sh", "-c", SCRIPT, "sh", folder, *argv], log=f"{folder}/log")
    told = 0
    try:
        while host.stat(f"{folder}/status") is None:
            if time.monotonic() > deadline:
                host.run(["kill", "-9", "--", f"-{pid}"])
                raise HostError("command-timeout", f"`{argv[0]}` did not end within {timeout:g} s on {host.name}")
            told = _tell(host.read(f"{folder}/err", told), told, on_line)
            time.sleep(LOOK_SECONDS)
        out, err, status = (host.read(f"{folder}/{name}") for name in ("out", "err", "status"))
    finally:
        host.remove(folder)
    _tell(err[told:], told, on_line)
    return Completed(returncode=int(status), stdout=out, stderr=err)


def _tell(new: bytes, told: int, on_line: Callable[[str], None]) -> int:
    """Whole lines only; the byte where the next begins."""
    whole, mark, _ = new.rpartition(b"\n")
    for line in whole.splitlines():
        on_line(line.decode("utf-8", "replace"))
    return told + len(whole) + len(mark)
