"""A log as UTF-8 pieces: gzip, bzip2 and xz unpacked as they are read, UTF-16 (with its mark or without) decoded. Constant memory."""

import bz2
import codecs
import os
import select
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from firstlight.core.errors import InputError

CHUNK = 1 << 20
SILENT_SECONDS = 2.0
_SAMPLE = 512
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
}
UNPACK = {"gzip": "gzip -dc", "bzip2": "bzip2 -dc", "xz": "xz -dc", "zstd": "zstd -dc", "zip": "unzip -p", "lz4": "lz4 -dc"}


def packing_of(head: bytes) -> str | None:
    """`gzip`, `bzip2`, `xz`, `zstd`, `zip` or `lz4` by how the bytes begin; None for text."""
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)


def is_packed(path: str) -> bool:
    """Whether a file is packed: rotated, so that nobody writes it any more."""
    try:
        with open(path, "rb") as f:
            return packing_of(f.read(8)) is not None
    except OSError:
        return False


def is_stream(path: str) -> bool:
    """Whether a path is a FIFO, a pipe or a device: read once, from where it is to its end."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def log_pieces(path: str) -> Iterator[bytes]:
    """The text of a file. One that is cut or damaged ends where it cannot be read on.

    Raises OSError when it cannot be opened, InputError `log-packed` for what Python does not unpack.
    """
    with open(path, "rb") as file:
        yield from text_of(iter(lambda: file.read(CHUNK), b""), path)


def text_of(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Pieces as UTF-8 text, whatever packs and encodes them. Raises InputError `log-packed`."""
    first = next(pieces, b"")
    while first and len(first) < 8 and (more := next(pieces, b"")):
        first += more
    return as_utf8(unpacked(first, pieces, name))


def unpacked(first: bytes, pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    kind = packing_of(first)
    if kind is None:
        yield first
        yield from pieces
        return
    make = _unpacker(kind)
    if make is None:
        tool = UNPACK[kind]
        raise InputError("log-packed", f"{name} is packed with {kind}", hint=f"`{tool} {name} | firstlight diagnose -`")
    yield from _unpack(make, first, pieces)


class _Unpacker(Protocol):
    """One packed stream, as bz2 and lzma have it. needs_input: it holds back no text of what it was given."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's, whose caller keeps what was not unpacked yet."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _unpacker(kind: str) -> Callable[[], _Unpacker] | None:
    """What makes an unpacker, None where Python has none (lzma is missing in some builds)."""
    if kind == "gzip":
        return _Gzip
    if kind == "bzip2":
        return bz2.BZ2Decompressor
    if kind == "xz":
        try:
            import lzma
        except ImportError:
            return None
        return lzma.LZMADecompressor
    return None


def _unpack(make: Callable[[], _Unpacker], first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The text of one packed stream after the other; a cut or damaged one ends where it cannot be read on."""
    unpacker, data = make(), first
    while data or _holds_back(unpacker):
        try:
            text = unpacker.decompress(data, CHUNK)
        except (OSError, zlib.error, ValueError, EOFError, _lzma_error()):
            return
        if text:
            yield text
        data = b""
        if unpacker.eof:
            data, unpacker = unpacker.unused_data, make()
            if data and packing_of(data) is None and len(data) >= 8:
                return
        if not data and not _holds_back(unpacker):
            data = next(pieces, b"")


def _holds_back(unpacker: _Unpacker) -> bool:
    return not unpacker.needs_input and not unpacker.eof


def _lzma_error() -> type[Exception]:
    try:
        import lzma
    except ImportError:
        return ValueError
    return lzma.LZMAError


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
    return text_of(iter(lambda: os.read(descriptor, CHUNK), b""), "standard input")


def stream_pieces(path: str, say: Callable[[str], None]) -> Iterator[bytes]:
    """A FIFO or a device as it comes, until its last writer closes it. A FIFO that nobody writes yet is waited for, which `say` is told.

    Raises OSError when it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield from text_of(_as_it_comes(descriptor, path, say), path)
    finally:
        os.close(descriptor)


def _as_it_comes(descriptor: int, path: str, say: Callable[[str], None]) -> Iterator[bytes]:
    poll, heard = select.poll(), False
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(SILENT_SECONDS * 1e3):
            if not heard:
                say(f"{path}: nobody writes to it yet; waiting (Ctrl-C ends)")
            heard = True
            continue
        heard = True
        if not (chunk := os.read(descriptor, CHUNK)):
            return
        yield chunk
