"""The shard index against the shards: every name in the file it is said to be in, no file missing, none forgotten.

The index of a large model has 30 MB; it is decoded in pieces and compared by count and sum of name hashes per file. Only when a
file's fingerprint differs are its names looked at one by one.
"""

from collections.abc import Callable, Iterator
from itertools import groupby, islice

import msgspec

from firstlight.core.findings import Finding
from firstlight.inspect.fold import Shard
from firstlight.inspect.safetensors import problem

INDEX_LIMIT = 1 << 30
PIECE = 1 << 20
_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_index(read: Callable[[int, int], bytes], size: int, file: str) -> tuple[dict[str, Shard], Finding | None]:
    """Per file the names' count and hash sum; the finding when the index cannot be read."""
    shards: dict[str, list[int]] = {}
    try:
        for piece in _weight_map(read, size):
            _count(piece, shards)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        return {}, problem("index-not-json", f"{file} is not an index", str(e), hint="download it again")
    return {name: Shard(count, total) for name, (count, total) in shards.items()}, None


def _count(piece: dict[str, str], shards: dict[str, list[int]]) -> None:
    names = iter(piece)
    for file, run in groupby(piece.values()):
        length = sum(1 for _ in run)
        entry = shards.setdefault(file, [0, 0])
        entry[0] += length
        entry[1] += sum(map(hash, islice(names, length)))


def _weight_map(read: Callable[[int, int], bytes], size: int) -> Iterator[dict[str, str]]:
    """The map in pieces cut between entries; a file that does not cut so is decoded whole."""
    try:
        yield from _pieces(read, size)
    except _NotCuttable:
        yield msgspec.json.decode(read(0, size), type=_Index).weight_map


class _NotCuttable(Exception):
    """The map is not laid out as every writer lays it out; nothing was given out yet."""


def _pieces(read: Callable[[int, int], bytes], size: int) -> Iterator[dict[str, str]]:
    head = read(0, min(size, PIECE))
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
        cut = end if end >= 0 else rest.rfind(b'",') + 1
        if cut > 0:
            yield _decode_map(b"{" + rest[:cut].strip().strip(b",") + b"}")
        if end >= 0 or not more:
            return
        rest = rest[cut:]


def _end_of_map(rest: bytes, *, last: bool) -> int:
    """Where the map's closing brace stands; -1 while it is not in sight. Names hold no brace; if one does, decoding fails."""
    end = rest.find(b"}")
    return end if end >= 0 else (len(rest) if last else -1)


def index_findings(
    index: dict[str, Shard], shards: dict[str, Shard], present: set[str], file: str, names: Callable[[str], list[str]]
) -> list[Finding]:
    """present: weight files that are there; shards: those whose header could be read. names(shard): its names in the index."""
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
            found.append(problem("index-shard-mismatch", f"{file} and the header of {name} disagree", evidence, *names(name)))
    return found
