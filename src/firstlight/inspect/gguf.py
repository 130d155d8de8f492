"""The GGUF header: key-value pairs and tensor infos, read in windows. Tensors are never read, long arrays are stepped over.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version (2 or 3), tensor count, pair count, pairs, tensor
infos, padding to the alignment, data. Little endian, or big endian from version 3 on (llama.cpp tells by the version's own bytes).
"""

import struct
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from firstlight.core.errors import InputError

MAGIC = b"GGUF"
WINDOW = 1 << 20
KEY_LIMIT = 65_535
PAIR_LIMIT = 65_536
TENSOR_LIMIT = 131_072  # Kimi K2 has 1,096
DIMENSIONS = 4
KEEP_ITEMS = 4096  # arrays up to this length are kept; longer ones are stepped over and only counted
KEPT_ITEMS = 262_144  # of all arrays together: a file must not make us hold eight times its own size
TEXT_LIMIT = 16 << 20  # of all texts together; chat templates have some kilobytes
ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml type: name, weights per block, bytes per block (ggml/src/ggml-common.h)
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
BY_NAME = {name: (weights, size) for name, weights, size in TYPES.values()}


class GgufTensor(NamedTuple):
    """shape: as Hugging Face writes it (the file stores it reversed). offset: from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class GgufHeader(NamedTuple):
    """values: pairs of the file; a stepped-over array is its length under `KEY#length`."""

    version: int
    big_endian: bool
    values: dict[str, Any]
    tensors: list[GgufTensor]
    data_start: int
    alignment: int = ALIGNMENT


class _Cursor:
    """Reads forward through one file, a window at a time."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, file: str) -> None:
        self._read = read
        self.size = size
        self.file = file
        self.order = "<"
        self._start = 0
        self.window = b""
        self.at = 0
        self.items_left = KEPT_ITEMS
        self.text_left = TEXT_LIMIT

    @property
    def position(self) -> int:
        return self._start + self.at

    def need(self, n: int) -> None:
        """At least `n` bytes from `at` on in the window; raises InputError `gguf-truncated` past the file's end."""
        if self.at + n <= len(self.window):
            return
        if n > self.size - self.position:
            raise self._cut(n)
        self._start, self.at = self.position, 0
        self.window = self._read(self._start, min(max(n, WINDOW), self.size - self._start))
        if len(self.window) < n:
            raise self._cut(n)

    def _cut(self, n: int) -> InputError:
        evidence = (f"needs {n:,} bytes at {self.position:,}", f"the file has {self.size:,} bytes")
        return InputError("gguf-truncated", f"{self.file} ends inside its header", evidence=evidence, hint="download it again")

    def take(self, n: int) -> bytes:
        self.need(n)
        self.at += n
        return self.window[self.at - n : self.at]

    def number(self, code: str) -> Any:
        form = struct.Struct(self.order + code)
        return form.unpack(self.take(form.size))[0]

    def text(self, limit: int) -> bytes:
        length = self.number("Q")
        if length > limit:
            raise self.absurd("a string", length, limit)
        return self.take(length)

    def absurd(self, what: str, found: int, limit: int) -> InputError:
        return InputError(
            "gguf-absurd-count", f"{self.file} claims {what} of {found:,}", evidence=(f"at {self.position:,}", f"limit: {limit:,}")
        )

    def skip(self, n: int) -> None:
        if self.at + n <= len(self.window):
            self.at += n
            return
        if n > self.size - self.position:
            raise self._cut(n)
        self._start, self.at, self.window = self.position + n, 0, b""

    def skip_strings(self, count: int) -> None:
        """Steps over `count` strings by their lengths alone: no string is made."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        while count:
            window, at = self.window, self.at
            end = len(window) - 8
            while count and at <= end:
                after = at + 8 + unpack(window, at)[0]
                if after > end + 8:
                    break
                at = after
                count -= 1
            self.at = at
            if count:
                self.skip(self.number("Q"))
                count -= 1


def read_gguf(read: Callable[[int, int], bytes], size: int, file: str) -> GgufHeader:
    """The header of one file of `size` bytes; `read(offset, length)` gives its bytes.

    Raises InputError: gguf-wrong-magic, gguf-version, gguf-truncated, gguf-absurd-count, gguf-invalid.
    """
    cursor = _Cursor(read, size, file)
    version = _read_start(cursor)
    tensor_count = _count(cursor, "tensors", TENSOR_LIMIT, 8 + 4 + 4 + 8)
    pair_count = _count(cursor, "key-value pairs", PAIR_LIMIT, 8 + 4 + 1)
    values: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text(KEY_LIMIT).decode("utf-8", "replace")
        _read_value(cursor, key, cursor.number("I"), values)
    tensors = [_read_tensor(cursor) for _ in range(tensor_count)]
    alignment = values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment <= 0 or alignment & (alignment - 1):
        raise InputError("gguf-invalid", f"{file} has an impossible alignment", evidence=(f"general.alignment: {alignment!r}",))
    return GgufHeader(version, cursor.order == ">", values, tensors, padded(cursor.position, alignment), alignment)


def _read_start(cursor: _Cursor) -> int:
    first = cursor.window[:0] if cursor.size < 4 else cursor.take(4)
    if first != MAGIC:
        found = "the file is empty" if not cursor.size else f"expected: {MAGIC!r}, found: {first!r}"
        if first == b"vers":
            message = f"{cursor.file} is a Git LFS pointer, not the file"
            raise InputError("lfs-pointer", message, evidence=(found,), hint="git lfs pull")
        raise InputError("gguf-wrong-magic", f"{cursor.file} is not a GGUF file", evidence=(found,))
    raw = cursor.take(4)
    version = int.from_bytes(raw, "little")
    if version & 0xFFFF == 0 and version:
        cursor.order, version = ">", int.from_bytes(raw, "big")
    if version not in (2, 3):
        hint = "convert it again with a current llama.cpp" if version == 1 else None
        raise InputError("gguf-version", f"{cursor.file} has GGUF version {version}", evidence=("versions 2 and 3 are read",), hint=hint)
    return version


def _count(cursor: _Cursor, what: str, limit: int, smallest: int) -> int:
    """A count that the rest of the file could hold at all."""
    found: int = cursor.number("Q")
    possible = min(limit, (cursor.size - cursor.position) // smallest)
    if found > possible:
        raise InputError(
            "gguf-absurd-count",
            f"{cursor.file} claims {found:,} {what}",
            evidence=(f"a file of {cursor.size:,} bytes holds at most {possible:,}",),
            hint="download it again",
        )
    return found


def _read_value(cursor: _Cursor, key: str, kind: int, values: dict[str, Any]) -> None:
    if kind in _SCALARS:
        values[key] = cursor.number(_SCALARS[kind])
    elif kind == _STRING:
        raw = cursor.text(cursor.text_left)
        cursor.text_left -= len(raw)
        values[key] = raw.decode("utf-8", "replace")
    elif kind == _ARRAY:
        _read_array(cursor, key, values)
    else:
        raise InputError("gguf-invalid", f"{cursor.file} has a value of unknown type", evidence=(f"{key}: type {kind}",))


def _read_array(cursor: _Cursor, key: str, values: dict[str, Any]) -> None:
    kind, count = cursor.number("I"), cursor.number("Q")
    item = struct.calcsize("<" + _SCALARS[kind]) if kind in _SCALARS else 8 if kind == _STRING else 0
    if not item:
        raise InputError("gguf-invalid", f"{cursor.file} has an array of unknown type", evidence=(f"{key}: type {kind}",))
    if count > (cursor.size - cursor.position) // item:
        raise cursor.absurd(f"an array ({key})", count, (cursor.size - cursor.position) // item)
    values[key + "#length"] = count
    if kind == _STRING:
        cursor.skip_strings(count)
    elif count <= min(KEEP_ITEMS, cursor.items_left):
        cursor.items_left -= count
        form = struct.Struct(f"{cursor.order}{count}{_SCALARS[kind]}")
        values[key] = list(form.unpack(cursor.take(form.size)))
    else:
        cursor.skip(count * item)


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.text(KEY_LIMIT).decode("utf-8", "replace")
    dimensions = cursor.number("I")
    if dimensions > DIMENSIONS:
        raise cursor.absurd(f"dimensions ({name})", dimensions, DIMENSIONS)
    shape = tuple(reversed(struct.unpack(f"{cursor.order}{dimensions}Q", cursor.take(8 * dimensions))))
    kind = cursor.number("I")
    dtype = TYPES[kind][0] if kind in TYPES else f"type-{kind}"
    return GgufTensor(name, dtype, shape, cursor.number("Q"))


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def gguf_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of one tensor as stored; None for a type this table does not know."""
    if dtype not in BY_NAME:
        return None
    weights, size = BY_NAME[dtype]
    return -(-prod(shape) // weights) * size
