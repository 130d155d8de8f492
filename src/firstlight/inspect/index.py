"""The shard index against the shards: every name in the file it is said to be in, no file missing, none forgotten.

The index of a large model has 30 MB; it is decoded in pieces and compared by count and sum of name hashes per file. Only when a
file's fingerprint differs are its names looked at one by one.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

import msgspec

from firstlight.core.findings import Finding
from firstlight.inspect.fold import Shard
from firstlight.inspect.safetensors import lfs_pointer, problem

INDEX_LIMIT = 1 << 30  # 278,219 tensors have 31 MB
WHOLE_LIMIT = 64 << 20  # of an index that can only be decoded at once
PIECE = 1 << 20
_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_index(read: Callable[[int, int], bytes], size: int, file: str) -> tuple[dict[str, Shard], Finding | None]:
    """Per file the names' count and hash sum; the finding when the index cannot be read."""
    if size > INDEX_LIMIT:
        return {}, _no_index(file, f"expected: at most {INDEX_LIMIT:,} bytes, found: {size:,}")
    head = read(0, min(size, PIECE))
    if head.startswith(b"version https://git-lfs"):
        return {}, lfs_pointer(file, head, "an index")
    try:
        return _fingerprints(_pieces(head, read, size)), None
    except (_NotCuttable, msgspec.DecodeError, UnicodeDecodeError):
        pass  # not laid out as every writer lays it out: the whole at once
    start = f"{size:,} bytes, begins with {head[:40]!r}"
    if size > WHOLE_LIMIT:
        return {}, _no_index(file, "expected: a map of tensor names to files", start)
    try:
        return _fingerprints([msgspec.json.decode(head if size <= PIECE else read(0, size), type=_Index).weight_map]), None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        return {}, _no_index(file, str(e), start)


def _no_index(file: str, *evidence: str) -> Finding:
    return problem("index-not-json", f"{file} is not an index", *evidence, hint="download it again")


def _fingerprints(pieces: Iterable[dict[str, str]]) -> dict[str, Shard]:
    shards: dict[str, list[int]] = {}
    for piece in pieces:
        _count(piece, shards)
    return {name: Shard(count, total) for name, (count, total) in shards.items()}


def _count(piece: dict[str, str], shards: dict[str, list[int]]) -> None:
    names = iter(piece)
    for file, run in groupby(piece.values()):
        length = len(list(run))
        entry = shards.setdefault(file, [0, 0])
        entry[0] += length
        entry[1] += sum(map(hash, islice(names, length)))


class _NotCuttable(Exception):
    """The map does not begin where it is looked for, or is too small to bother."""


def _pieces(head: bytes, read: Callable[[int, int], bytes], size: int) -> Iterator[dict[str, str]]:
    start = head.find(b'"weight_map"')
    brace = head.find(b"{", start) if start >= 0 else -1
    if brace < 0 or size <= PIECE:
        raise _NotCuttable
    rest, at = head[brace + 1 :], len(head)
    while True:
        more = read(at, PIECE) if at < size else b""
        at += len(more)
        rest += more
        end = _end_of_map(rest, last=at >= size)
        if end < 0 and len(rest) > 2 * PIECE and b'",' not in rest[-PIECE:]:
            raise _NotCuttable  # no name has a megabyte
        cut = end if end >= 0 else rest.rfind(b'",') + 1
        if cut > 0 and b'"' in rest[:cut]:
            last = rest.rindex(b'"', 0, cut) + 1  # without the comma
            yield _decode_map(b"{%b}" % rest[:last])
        if end >= 0 or not more:
            return
        rest = rest[cut + (rest[cut : cut + 1] == b",") :]


def _end_of_map(rest: bytes, *, last: bool) -> int:
    """Where the map's closing brace stands; -1 while it is not in sight. Names hold no brace; if one does, decoding fails."""
    end = rest.find(b"}")
    return end if end >= 0 else (len(rest) if last else -1)


def index_findings(index: dict[str, Shard], shards: dict[str, Shard], present: set[str], file: str) -> list[Finding]:
    """present: weight files that are there; shards: those whose header could be read."""
    found = [
        problem("shard-missing", f"{name} is not there", f"{file} names it for {index[name].tensors:,} tensors", hint="download it again")
        for name in sorted(index)
        if name not in present
    ]
    for name in sorted(shards):
        if name not in index:
            found.append(
                problem("shard-not-in-index", f"{name} is there, but {file} does not name it", f"{shards[name].tensors:,} tensors")
            )
        elif index[name] != shards[name]:
            evidence = f"expected: {index[name].tensors:,} tensors, found: {shards[name].tensors:,}"
            same = index[name].tensors == shards[name].tensors
            note = "as many, but under other names" if same else ""
            found.append(problem("index-shard-mismatch", f"{file} and the header of {name} disagree", evidence, *([note] if note else [])))
    return found
