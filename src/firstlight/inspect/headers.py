"""The headers of all shards of a folder, read and folded, and the index held against them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from firstlight.core.checkpoint import TensorGroup
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.fold import Fold, Shard
from firstlight.inspect.index import index_findings, read_index
from firstlight.inspect.parallel import Child, may_fork
from firstlight.inspect.safetensors import LENGTH_BYTES, HeaderError, header_length, problem, read_header
from firstlight.inspect.sums import group_bytes

FIRST_READ = 1 << 16
BATCH = 8 << 20  # bytes of first reads held at once
INDEX = "model.safetensors.index.json"
LARGE_INDEX = 8 << 20  # from about 70,000 tensors on a second process pays
Indexed = tuple[dict[str, Shard], Finding | None] | None


class Weights(NamedTuple):
    """files: weight files that are there, readable or not."""

    files: list[FileInfo]
    groups: list[TensorGroup]
    tensors: int
    tensor_bytes: int | None
    findings: list[Finding]


def read_weights(source: Source, files: Sequence[FileInfo], num_hidden_layers: int | None) -> Weights:
    """Every .safetensors at the top of the folder, folded into groups, and the index held against them."""
    shards, aside = _shards(files)
    index = next((f for f in files if f.path == INDEX), None)
    fold = Fold(num_hidden_layers)
    if index is not None and index.size > LARGE_INDEX and source.root is not None and _is_local(source) and may_fork():
        findings, indexed = _in_two(source, shards, index, fold)
    else:
        findings = _fold_all(source, shards, fold)
        indexed = _read_index(source, index)
    findings += aside + _compare(indexed, index, shards, fold)
    groups = fold.tensor_groups()
    sizes = [group_bytes(g) for g in groups]
    total = None if not groups or None in sizes else sum(s for s in sizes if s is not None)
    return Weights(shards, groups, sum(g.count for g in groups), total, findings)


def _shards(files: Sequence[FileInfo]) -> tuple[list[FileInfo], list[Finding]]:
    """The weight files at the top of the folder. A second copy in another layout (Mistral's) is set aside, not counted twice."""
    found = [f for f in files if f.path.endswith(".safetensors") and "/" not in f.path and not f.path.startswith(("adapter_", "."))]
    second = [f for f in found if f.path.startswith("consolidated")]
    if not second or len(second) == len(found):
        return found, []
    message = "the weights are here a second time in another layout; it is not counted"
    aside = Finding(
        code="weights-twice", severity=Severity.NOTE, message=message, evidence=[f"{f.path}: {f.size:,} bytes" for f in second[:4]]
    )
    return [f for f in found if f not in second], [aside]


def _is_local(source: Source) -> bool:
    host = getattr(source, "host", None)
    return host is not None and bool(host.is_local)


def _in_two(source: Source, shards: Sequence[FileInfo], index: FileInfo, fold: Fold) -> tuple[list[Finding], Indexed]:
    """A child folds some shards meanwhile; reading the index costs about a quarter of all headers, so its share is the larger."""
    cut = len(shards) * 3 // 8
    child = Child(lambda: _in_child(source, shards[cut:], fold))
    findings = _fold_all(source, shards[:cut], fold)
    indexed = _read_index(source, index)
    answer = child.result()
    if answer is None:  # it was killed: then here, one after another
        return findings + _fold_all(source, shards[cut:], fold), indexed
    plain, found = answer
    fold.merge(plain)
    return findings + [msgspec.convert(f, Finding) for f in found], indexed


def _in_child(source: Source, shards: Sequence[FileInfo], fold: Fold) -> tuple[Any, Any]:
    findings = _fold_all(source, shards, fold)
    return fold.plain(), msgspec.to_builtins(findings)


def _fold_all(source: Source, shards: Sequence[FileInfo], fold: Fold) -> list[Finding]:
    findings: list[Finding] = []
    for info, raw in _headers(source, shards, findings):
        try:
            findings += read_header(raw, info.path, info.size, fold)
        except HeaderError as e:
            findings.append(e.finding)
            fold.shards.pop(info.path, None)
    return findings


def _headers(source: Source, shards: Sequence[FileInfo], findings: list[Finding]) -> Iterator[tuple[FileInfo, bytes]]:
    """Each shard with its header's bytes: a first read that holds most headers whole, a second for the rest of the others."""
    usable = [f for f in shards if not _unusable(f, findings)]
    window = getattr(source, "first_read", FIRST_READ)
    size = max(BATCH // window, 1)
    for at in range(0, len(usable), size):
        yield from _batch(source, usable[at : at + size], window, findings)


def _batch(source: Source, shards: Sequence[FileInfo], window: int, findings: list[Finding]) -> Iterator[tuple[FileInfo, bytes]]:
    firsts: list[tuple[FileInfo, bytes, int]] = []
    for info, first in zip(shards, source.read_many([(f.path, 0, min(window, f.size)) for f in shards]), strict=True):
        try:
            firsts.append((info, first, LENGTH_BYTES + header_length(first, info.path, info.size)))
        except HeaderError as e:
            findings.append(e.finding)
    rests = iter(source.read_many([(f.path, len(first), end - len(first)) for f, first, end in firsts if end > len(first)]))
    for info, first, end in firsts:
        raw = first + next(rests) if end > len(first) else first
        if len(raw) < end:
            found = f"expected: {end:,} bytes, found: {len(raw):,}"
            findings.append(problem("shard-truncated", f"{info.path} ends inside its header", found, hint="download it again"))
        else:
            yield info, raw[LENGTH_BYTES:end]


def _unusable(info: FileInfo, findings: list[Finding]) -> bool:
    if info.kind == "link":
        findings.append(problem("broken-link", f"{info.path} is a link that leads nowhere", hint="download it again"))
    elif info.kind != "file":
        findings.append(problem("not-a-file", f"{info.path} is not a regular file"))
    return info.kind != "file"


def _read_index(source: Source, index: FileInfo | None) -> Indexed:
    if index is None:
        return None
    return read_index(lambda offset, length: source.read(index.path, offset, length), index.size, index.path)


def _compare(indexed: Indexed, index: FileInfo | None, shards: Sequence[FileInfo], fold: Fold) -> list[Finding]:
    if indexed is None or index is None:
        return _without_index(shards, fold)
    by_file, bad = indexed
    if bad is not None:
        return [bad]
    return index_findings(by_file, fold.shards, {f.path for f in shards}, index.path)


def _without_index(shards: Sequence[FileInfo], fold: Fold) -> list[Finding]:
    if len(shards) < 2:
        return []
    message = f"{len(shards)} weight files and no {INDEX}"
    return [
        Finding(code="index-missing", severity=Severity.WARNING, message=message, evidence=[f"{len(fold.shards)} headers could be read"])
    ]
