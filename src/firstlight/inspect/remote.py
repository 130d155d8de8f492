"""Files on another host: one command for a whole list, one for a whole batch of ranges, instead of a round trip each."""

import struct
from collections.abc import Iterator, Sequence

import msgspec

from firstlight.core.errors import HostError
from firstlight.core.ports import FileInfo, Host

TIMEOUT = 120.0
# Runs in the host's own Python, whatever its version: answers with a JSON list, or with each range's length and bytes.
_LIST = """
import json, os, stat, sys
root, depth = sys.argv[1], int(sys.argv[2])
found, seen, pending = [], {os.path.realpath(root)}, [("", 0)]
while pending:
    prefix, level = pending.pop()
    try:
        names = os.listdir(os.path.join(root, prefix))
    except OSError:
        continue
    for name in names:
        path = prefix + name
        full = os.path.join(root, path)
        try:
            info = os.stat(full)
        except OSError:
            found.append((path, 0, "link", None))
            continue
        if not stat.S_ISDIR(info.st_mode):
            found.append((path, info.st_size, "file" if stat.S_ISREG(info.st_mode) else "other", info.st_mtime))
        elif level < depth and name != ".git" and os.path.realpath(full) not in seen:
            seen.add(os.path.realpath(full))
            pending.append((path + "/", level + 1))
print(json.dumps(found))
"""
_READ = """
import json, os, struct, sys
root, out = sys.argv[1], sys.stdout.buffer
for path, offset, length in json.load(sys.stdin):
    try:
        with open(os.path.join(root, path), "rb") as f:
            f.seek(offset)
            data = f.read(length)
    except OSError:
        out.write(struct.pack("<q", -1))
        continue
    out.write(struct.pack("<q", len(data)) + data)
"""


def list_files(host: Host, root: str, depth: int) -> list[FileInfo] | None:
    """Everything below `root`; None when the host has no Python."""
    raw = _run(host, _LIST, [root, str(depth)], b"")
    if raw is None:
        return None
    rows = msgspec.json.decode(raw, type=list[tuple[str, int, str, float | None]])
    return [FileInfo(path=path, size=size, kind=kind, modified=modified) for path, size, kind, modified in rows]


def read_ranges(host: Host, root: str, ranges: Sequence[tuple[str, int, int]]) -> Iterator[bytes] | None:
    """Each range's bytes in order; None when the host has no Python. A file that cannot be read raises HostError."""
    raw = _run(host, _READ, [root], msgspec.json.encode(ranges))
    return None if raw is None else _frames(raw, ranges, host)


def _run(host: Host, script: str, arguments: list[str], stdin: bytes) -> bytes | None:
    try:
        done = host.run(["python3", "-c", script, *arguments], stdin=stdin, timeout=TIMEOUT)
    except HostError as e:
        if e.code == "command-not-found":
            return None
        raise
    return done.stdout if done.ok else None


def _frames(raw: bytes, ranges: Sequence[tuple[str, int, int]], host: Host) -> Iterator[bytes]:
    at = 0
    for path, _, _ in ranges:
        length = struct.unpack_from("<q", raw, at)[0] if at + 8 <= len(raw) else -1
        if length < 0:
            raise HostError("file-unreadable", f"{path} cannot be read on {host.name}")
        yield raw[at + 8 : at + 8 + length]
        at += 8 + length
