"""A log file as UTF-8 pieces: gzip unpacked as it is read, UTF-16 (with its mark or without) decoded. Constant memory."""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import IO

CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_SAMPLE = 512


def is_packed(path: str) -> bool:
    """Whether a file is gzip: rotated, so that nobody writes it any more."""
    try:
        with open(path, "rb") as f:
            return f.read(2) == _GZIP
    except OSError:
        return False


def log_pieces(path: str) -> Iterator[bytes]:
    """The text of a file. A gzip that is cut or damaged ends where it cannot be read on. Raises OSError when it cannot be opened."""
    with open(path, "rb") as file:
        head = file.read(2)
        file.seek(0)
        yield from as_utf8(_unpacked(file) if head == _GZIP else iter(lambda: file.read(CHUNK), b""))


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.open(file) as packed:
        try:
            yield from iter(lambda: packed.read1(CHUNK), b"")
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return


def as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces of a stream as UTF-8; what is UTF-8 already goes through as it is."""
    first = next(pieces, b"")
    encoding = encoding_of(first)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")


def encoding_of(head: bytes) -> str | None:
    """`utf-16`, `utf-16-le` or `utf-16-be` by the mark or by where the zero bytes of plain letters are; None for everything else."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:_SAMPLE]
    if len(sample) < 4 or sample.count(0) * 5 < len(sample) * 2:
        return None
    low, high = sample[0::2].count(0), sample[1::2].count(0)
    if high > 4 * low:
        return "utf-16-le"
    return "utf-16-be" if low > 4 * high else None


def stdin_pieces(descriptor: int) -> Iterator[bytes]:
    """Standard input as it comes."""
    return as_utf8(iter(lambda: os.read(descriptor, CHUNK), b""))
