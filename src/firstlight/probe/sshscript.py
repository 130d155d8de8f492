"""What is sent to the other side of ssh: a POSIX sh script per command, wrapped so that any login shell can start it. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOT_FOUND, NOT_EXECUTABLE, NO_FOLDER = 121, 122, 123

# The login shell (bash, zsh, csh, fish, …) sees only this constant; the script itself comes first on stdin. `dd bs=1` takes
# exactly that many bytes, so that what follows is the command's own input. Arguments never appear in the target's `ps`.
_ENTRY = """exec sh -c 'eval "$(dd bs=1 count=$0 2>/dev/null)"' {length}"""


def entry(script: bytes) -> str:
    return _ENTRY.format(length=len(script))


def command_script(
    argv: Sequence[str], *, token: str, env: Mapping[str, str] | None = None, cwd: str | None = None, timeout: float | None = None
) -> bytes:
    """Announces itself with `TOKEN:start` on stderr and `TOKEN:out` on stdout, runs argv, and closes with `TOKEN:STATUS` or `TOKEN:eCODE`.

    One group in braces: of a script that was cut on its way nothing is run.
    """
    quoted = " ".join(shlex.quote(a) for a in argv)
    lines = ["{", f"printf '%s:start\\n' {token} >&2; printf '%s:out\\n' {token}"]
    lines.append(f"end() {{ printf '\\n%s:%s\\n' {token} \"$1\" >&2; exit 0; }}")
    if cwd is not None:
        lines.append(f"cd -- {shlex.quote(cwd)} 2>/dev/null || end e{NO_FOLDER}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items() if re.fullmatch(r"[A-Za-z_]\w*", name)]
    lines.append(_found(shlex.quote(argv[0]), "/" in argv[0]))
    lines += [_limited(quoted, timeout), 'end "$?"', "}"]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _found(command: str, is_path: bool) -> str:
    if is_path:
        return f"[ -e {command} ] || end e{NOT_FOUND}; [ -x {command} ] && [ ! -d {command} ] || end e{NOT_EXECUTABLE}"
    return f"command -v {command} >/dev/null 2>&1 || end e{NOT_FOUND}"


def _limited(quoted: str, timeout: float | None) -> str:
    """`timeout` ends the command on the target too; without it only our side stops waiting."""
    if timeout is None:
        return quoted
    limit = max(1, round(timeout + 0.5))
    return f"if command -v timeout >/dev/null 2>&1; then timeout -s KILL {limit} {quoted}; else {quoted}; fi"


def out_mark(token: str) -> bytes:
    return f"{token}:out\n".encode()


def own_output(out: bytes, token: str) -> bytes:
    """The command's own output, without what a login's start files print to everybody."""
    noise, mark, own = out.partition(out_mark(token))
    return own if mark else noise


class Answer(NamedTuple):
    """started: the script ran. status: the command's, None when its end was never heard. problem: one of the codes above."""

    started: bool
    status: int | None
    problem: int | None
    stderr: bytes
    banner: bytes


def read_answer(stderr: bytes, token: str) -> Answer:
    """Takes our two marks out of stderr; what came before the first is ssh's or the login shell's."""
    banner, start, rest = stderr.partition(f"{token}:start\n".encode())
    if not start:
        return Answer(False, None, None, b"", banner)
    end = re.search(rb"\n" + token.encode() + rb":(e?)(\d+)\n", rest)
    if end is None:
        return Answer(True, None, None, rest, banner)
    number, own = int(end[2]), rest[: end.start()] + rest[end.end() :]
    return Answer(True, None, number, own, banner) if end[1] else Answer(True, number, None, own, banner)


def returncode(status: int) -> int:
    """A shell's 128 + n for a command that signal n ended becomes -n, as it is for local commands."""
    return -(status - 128) if 128 < status <= 128 + 64 else status


_REFUSALS = (
    (rb"Permission denied|Too many authentication failures|No more authentication", "host-login-refused", "the host refused the login"),
    (
        rb"Host key verification failed|REMOTE HOST IDENTIFICATION",
        "host-key-unknown",
        "the host's key is not the one that is known, or none is known",
    ),
    (rb"Could not resolve hostname|Name or service not known", "host-unreachable", "the host's name cannot be resolved"),
    (rb"Connection refused", "host-unreachable", "nothing accepts ssh connections there"),
    (rb"timed out", "host-unreachable", "the host does not answer"),
)
_HINTS = {
    "host-login-refused": "try `ssh {host} true`; firstlight asks no passwords: load the key into an agent or name it in ~/.ssh/config",
    "host-key-unknown": "compare the key and accept it once with `ssh {host} true`",
    "host-unreachable": "try `ssh {host} true`; name, port, user and jumps come from ~/.ssh/config",
}
UNREACHABLE = frozenset(_HINTS)
# ssh's words for a connection that was there: not for a host that refuses, is unknown or never answers
_CUT = re.compile(
    rb"closed by|reset by peer|Broken pipe|[Mm]ux|closed\.? *$|Timeout, server|shared connection|^\s*$|Syntax error|syntax error"
)


def is_cut(stderr: bytes) -> bool:
    """Whether the connection broke, and the same may be tried again."""
    return not any(re.search(pattern, stderr) for pattern, _, _ in _REFUSALS) and bool(_CUT.search(stderr))


def refusal(stderr: bytes, host: str, words: str | None = None) -> tuple[str, str, str]:
    """ssh's own failure as code, message and hint. words: what `ssh` is told to get there, user and port too."""
    for pattern, code, text in _REFUSALS:
        if re.search(pattern, stderr):
            return code, f"{host}: {text}", _HINTS[code].format(host=words or host)
    return "host-unreachable", f"{host}: ssh could not run a command there", _HINTS["host-unreachable"].format(host=words or host)
