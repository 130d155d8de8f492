"""The safetensors header: read, checked and folded into groups, a piece at a time. Weights are never read.

Layout (https://github.com/huggingface/safetensors#format): 8 bytes little-endian length N, N bytes of JSON, then the data.
A piece of at most `PIECE` bytes is decoded (typed), folded by name pattern and dropped, so memory does not grow with the header.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import prod
from operator import attrgetter, sub
from typing import Literal

import msgspec

from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo
from firstlight.inspect.fold import Fold

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000  # the reference reader refuses longer ones too
TENSOR_LIMIT = 1_000_000
PIECE = 1 << 20
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_Dtype = Literal[
    "F64", "I64", "U64", "C64", "F32", "I32", "U32", "BF16", "F16", "I16", "U16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "I8", "U8", "BOOL", "F6_E2M3", "F6_E3M2", "F4",
]  # fmt: skip


class _Tensor(msgspec.Struct, gc=False):
    """One entry. A known dtype decodes to one shared string; `__metadata__` decodes to the defaults."""

    dtype: _Dtype | None = None
    shape: tuple[int, ...] | None = None
    data_offsets: tuple[int, int] | None = None


class _AnyTensor(msgspec.Struct, gc=False):
    """The same for a dtype that this table does not know."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    data_offsets: tuple[int, int] | None = None


_Entries = dict[str, _Tensor]
_decode = msgspec.json.Decoder(_Entries).decode
_decode_any = msgspec.json.Decoder(dict[str, _AnyTensor]).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(_AnyTensor).decode
_offsets, _dtype, _shape = attrgetter("data_offsets"), attrgetter("dtype"), attrgetter("shape")


class HeaderError(Exception):
    """A header that cannot be read; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(code: str, message: str, *evidence: str, hint: str | None = None, severity: Severity = Severity.BLOCKER) -> Finding:
    return Finding(code=code, severity=severity, message=message, evidence=list(evidence), hint=hint)


def not_readable(info: FileInfo, what: str) -> list[Finding]:
    """A finding when `info` is no regular file: it is not opened then (a pipe would never answer)."""
    if info.kind == "link":
        evidence = (f"expected: {what}, found: a link without its file",)
        return [problem("broken-link", f"{info.path} is a link that leads nowhere", *evidence, hint="download it again")]
    if info.kind != "file":
        return [problem("not-a-file", f"{info.path} is not a regular file", f"expected: {what}, found: a pipe, socket or device")]
    return []


def header_length(first: bytes, file: str, size: int) -> int:
    """N from the first 8 bytes; raises HeaderError for what cannot be a safetensors file of `size` bytes."""
    if size == 0:
        raise HeaderError(
            problem("shard-empty", f"{file} has no bytes", "expected: a header and weights, found: 0 bytes", hint="download it again")
        )
    if first.startswith(b"version https://git-lfs"):
        raise HeaderError(lfs_pointer(file, first))
    if size < LENGTH_BYTES or len(first) < LENGTH_BYTES:
        raise HeaderError(problem("shard-truncated", f"{file} ends inside its length field", f"expected: at least 8 bytes, found: {size}"))
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise HeaderError(
            problem(
                "header-too-large",
                f"{file} claims an absurd header",
                f"expected: at most {HEADER_LIMIT:,} bytes, found: {length:,}",
                f"begins with {first[:16]!r}",  # a page of HTML or an archive shows itself here
            )
        )
    if length > size - LENGTH_BYTES:
        found = f"expected: {length + LENGTH_BYTES:,} bytes or more, found: {size:,}"
        raise HeaderError(problem("shard-truncated", f"{file} ends inside its header", found, hint="download it again"))
    return length


def lfs_pointer(file: str, text: bytes, what: str = "weights") -> Finding:
    size = re.search(rb"size (\d{1,20})\b", text)
    expected = f"expected: {int(size[1]):,} bytes of {what}" if size else f"expected: {what}"
    return problem(
        "lfs-pointer", f"{file} is a Git LFS pointer, not the file", f"{expected}, found: a text that names them", hint="git lfs pull"
    )


def read_header(raw: bytes, file: str, size: int, fold: Fold) -> list[Finding]:
    """Checks one shard's header (its JSON bytes) against the file's size and folds its tensors into `fold`.

    Raises HeaderError when the header is not what the format says; returns findings about single tensors and the data's extent.
    """
    if raw[:1] != b"{":
        raise HeaderError(problem("header-not-json", f"the header of {file} is not a JSON object", f"starts with {raw[:12]!r}"))
    braces = raw.count(b"{")  # one for the header, one an entry: cheaper to count than any longer word
    if braces > TENSOR_LIMIT:
        raise HeaderError(problem("header-too-many-tensors", f"{file} claims {braces:,} tensors", f"expected: at most {TENSOR_LIMIT:,}"))
    fold.start_shard(file)
    extent = _Extent(file)
    metadata = 0
    for entries in _pieces(raw, file):
        metadata += entries.pop("__metadata__", None) is not None
        _fold_piece(entries, fold, extent)
    if braces - 1 - metadata != fold.shard_count:
        extent.duplicate(raw, raw.count(b'"data_offsets"') - fold.shard_count)
    return extent.findings(size - LENGTH_BYTES - len(raw))


def _pieces(raw: bytes, file: str) -> Iterator[_Entries]:
    """The header's entries in pieces; the whole at once when a cut would fall inside a name."""
    if len(raw) <= 2 * PIECE:
        yield _decode_entries(raw, file)
        return
    cuts, at = [0], PIECE
    while (at := raw.find(b'},"', at)) > 0:
        cuts.append(at + 1)
        at += PIECE
    if len(cuts) == 1:
        yield _decode_entries(raw, file)
        return
    whole = memoryview(raw)
    for number, (begin, end) in enumerate(zip(cuts, [*cuts[1:], len(raw)], strict=True)):
        head = b"" if number == 0 else b"{"
        tail = b"" if end == len(raw) else b"}"
        yield _decode_entries(b"".join((head, whole[begin + (number > 0) : end], tail)), file)


def _decode_entries(raw: bytes, file: str) -> _Entries:
    try:
        return _decode(raw)
    except RecursionError:
        raise HeaderError(_too_deep(file)) from None
    except (msgspec.ValidationError, UnicodeDecodeError):
        return _decode_slowly(raw, file)
    except msgspec.DecodeError as e:
        raise HeaderError(problem("header-not-json", f"the header of {file} is not JSON", str(e))) from None


def _too_deep(file: str) -> Finding:
    return problem("header-too-deep", f"the header of {file} nests too deeply", "expected: 3 levels, found: more than the parser follows")


def _decode_slowly(raw: bytes, file: str) -> _Entries:
    """Entry by entry: an unknown dtype passes, the first entry that is not a tensor is named."""
    name = ""
    try:
        result: dict[str, _AnyTensor] = {}
        for name, one in _decode_raw(raw).items():
            result[name] = _AnyTensor() if name == "__metadata__" else _decode_one(one)
        return result  # type: ignore[return-value]
    except RecursionError:
        raise HeaderError(_too_deep(file)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        where = f"tensor {name!r}: {e}" if name else str(e)
        raise HeaderError(problem("header-wrong-shape", f"the header of {file} is not a table of tensors", where)) from None


def _fold_piece(entries: _Entries, fold: Fold, extent: "_Extent") -> None:
    """Groups by name shape and size in one pass; what a group has in common is then looked at once a group."""
    try:
        begins, ends = zip(*map(_offsets, entries.values()), strict=True)
    except (TypeError, ValueError):  # an entry without offsets, or no entries
        _drop_incomplete(entries, extent)
        if not entries:
            return
        begins, ends = zip(*map(_offsets, entries.values()), strict=True)
    extent.add(begins, ends)
    sizes = list(map(sub, ends, begins))
    for (key, size), names in fold.grouped(entries, sizes).items():
        _fold_group(key, size, names, entries, fold, extent)


def _drop_incomplete(entries: _Entries, extent: "_Extent") -> None:
    for name in [n for n, t in entries.items() if t.data_offsets is None or t.shape is None or t.dtype is None]:
        extent.incomplete(name)
        del entries[name]


def _fold_group(key: bytes, size: int, names: list[str], entries: _Entries, fold: Fold, extent: "_Extent") -> None:
    """Tensors of one name shape and size: one dtype and shape in the usual case, split where they differ."""
    tensors = list(map(entries.__getitem__, names))
    dtypes, shapes = list(map(_dtype, tensors)), list(map(_shape, tensors))
    if dtypes.count(dtypes[0]) == shapes.count(shapes[0]) == len(names):
        _fold_alike(key, size, names, dtypes[0], shapes[0], fold, extent)
        return
    for dtype, shape in dict.fromkeys(zip(dtypes, shapes, strict=True)):
        chosen = [n for n, d, s in zip(names, dtypes, shapes, strict=True) if d == dtype and s == shape]
        _fold_alike(key, size, chosen, dtype, shape, fold, extent)


def _fold_alike(
    key: bytes, size: int, names: list[str], dtype: str | None, shape: tuple[int, ...] | None, fold: Fold, extent: "_Extent"
) -> None:
    if dtype is None or shape is None:
        for name in names:
            extent.incomplete(name)
        fold.forget(len(names))
        return
    extent.check_size(names, size, dtype, shape)
    fold.add(key, names, dtype, shape)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of one tensor; None for a dtype this table does not know or a negative dimension."""
    bits = BITS.get(dtype)
    if bits is None or any(n < 0 for n in shape):
        return None
    return (prod(shape) * bits + 7) // 8


def _twice(raw: bytes) -> list[str]:
    """The names that a header's JSON has more than once; none for a header too long to be read a second time."""
    import json

    if len(raw) > 8 * PIECE:
        return []
    outermost: list[tuple[str, object]] = []

    def pairs(found: list[tuple[str, object]]) -> None:
        outermost[:] = found  # objects are told inside out: the last is the header itself

    try:
        json.loads(raw, object_pairs_hook=pairs)
    except (ValueError, RecursionError):  # the stricter of two parsers: what msgspec skips unread, this one reads
        return []
    counts = Counter(name for name, _ in outermost)
    return [repr(name) for name, n in counts.items() if n > 1]


class _Extent:
    """What the offsets of one shard cover: begins at 0, no gap, no overlap, ends with the file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.end = 0
        self.in_order = True
        self._spans: list[tuple[int, int]] = []
        self._found: list[Finding] = []
        self._per_code: dict[str, int] = defaultdict(int)

    def add(self, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
        """Spans in header order, which is offset order in every file of the reference writer. A span that runs backwards fails its size."""
        if self.in_order and begins[0] == self.end and begins[1:] == ends[:-1]:
            self.end = ends[-1]
            return
        if self.in_order:
            self._spans = [(0, self.end)] if self.end else []
            self.in_order = False
        self._spans += zip(begins, ends, strict=True)

    def check_size(self, names: list[str], size: int, dtype: str, shape: tuple[int, ...]) -> None:
        """size: what the offsets of all `names` span."""
        expected = tensor_bytes(dtype, shape)
        if expected is None:
            what = f"dtype {dtype}" if dtype not in BITS else f"shape {list(shape)}"
            self._report("dtype-unknown" if dtype not in BITS else "shape-invalid", f"{names[0]} in {self.file} has {what}")
        elif size != expected:
            detail = f"{dtype} {list(shape)}: expected {expected:,} bytes, found {size:,}"
            self._report("tensor-size-mismatch", f"the offsets of {names[0]} in {self.file} do not fit its shape", detail)

    def incomplete(self, name: str) -> None:
        self._report("header-wrong-shape", f"{name!r} in {self.file} lacks dtype, shape or data_offsets")

    def duplicate(self, raw: bytes, count: int) -> None:
        """count: entries beyond the distinct names; 0 when braces in names misled."""
        if count > 0:
            evidence = "expected: each name once, found: " + (", ".join(_twice(raw)[:3]) or f"{count} too many")
            self._report("tensor-duplicate", f"{self.file} names {count} tensor(s) twice", evidence)

    def _report(self, code: str, message: str, *evidence: str) -> None:
        """At most 5 findings of a code and shard: one damaged file must not bury the page."""
        self._per_code[code] += 1
        if self._per_code[code] <= 5:
            self._found.append(problem(code, message, *evidence))

    def findings(self, data_bytes: int) -> list[Finding]:
        """data_bytes: what the file holds after its header."""
        if not self.in_order:
            self._check_unordered()
        if self.end > data_bytes:
            found = f"expected: {self.end:,} bytes of data, found: {data_bytes:,} ({self.end - data_bytes:,} missing)"
            self._found.append(problem("shard-truncated", f"{self.file} is shorter than its header says", found, hint="download it again"))
        elif self.end < data_bytes:
            found = f"expected: {self.end:,} bytes of data, found: {data_bytes:,} ({data_bytes - self.end:,} too many)"
            self._found.append(problem("shard-too-long", f"{self.file} is longer than its header says", found, hint="download it again"))
        return self._found

    def _check_unordered(self) -> None:
        end = 0
        for b, e in sorted(self._spans):
            if b < 0 or e < b:
                self._report("offsets-invalid", f"{self.file} has offsets that run backwards", f"[{b}, {e}]")
            elif b < end:
                self._report("offsets-overlap", f"tensors overlap in {self.file}", f"one begins at {b:,}, the one before ends at {end:,}")
            elif b > end:
                self._report("offsets-gap", f"{self.file} has bytes that no tensor owns", f"from {end:,} to {b:,}")
            end = max(end, e)
        self.end = end
