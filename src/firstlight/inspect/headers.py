"""The headers of all shards of a folder, read and folded, and the index held against them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from firstlight.core.checkpoint import TensorGroup
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.fold import Fold, Shard
from firstlight.inspect.index import index_findings, read_index
from firstlight.inspect.parallel import Child, may_fork
from firstlight.inspect.safetensors import LENGTH_BYTES, HeaderError, header_length, not_readable, problem, read_header
from firstlight.inspect.sums import group_bytes

FIRST_READ = 1 << 16
LONG_HEADER = 8 << 20
BATCH = 8 << 20  # bytes of first reads held at once
INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors$")
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
    fold = Fold(num_hidden_layers, watch_names=index is None and len(shards) > 1)
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
            length = header_length(first, info.path, info.size)
            # a very long header is read again from its start: never two copies of it in memory
            firsts.append((info, b"" if length > LONG_HEADER else first[LENGTH_BYTES : LENGTH_BYTES + length], length))
        except HeaderError as e:
            findings.append(e.finding)
    wanted = [(f.path, LENGTH_BYTES + len(first), length - len(first)) for f, first, length in firsts if len(first) < length]
    rests = iter(source.read_many(wanted))
    for info, first, length in firsts:
        raw = first if len(first) == length else first + next(rests) if first else next(rests)
        if len(raw) < length:
            found = f"expected: {length:,} bytes, found: {len(raw):,}"
            findings.append(problem("shard-truncated", f"{info.path} ends inside its header", found, hint="download it again"))
        else:
            yield info, raw


def _unusable(info: FileInfo, findings: list[Finding]) -> bool:
    found = not_readable(info, "weights")
    findings += found
    return bool(found)


def _read_index(source: Source, index: FileInfo | None) -> Indexed:
    if index is None:
        return None
    if found := not_readable(index, "an index"):
        return {}, found[0]
    return read_index(lambda offset, length: source.read(index.path, offset, length), index.size, index.path)


def _compare(indexed: Indexed, index: FileInfo | None, shards: Sequence[FileInfo], fold: Fold) -> list[Finding]:
    if indexed is None or index is None:
        return _without_index(shards, fold)
    by_file, bad = indexed
    if bad is not None:
        return [bad]
    return index_findings(by_file, fold.shards, {f.path for f in shards}, index.path)


def _without_index(shards: Sequence[FileInfo], fold: Fold) -> list[Finding]:
    found = _missing_numbers([f.path for f in shards])
    found += [
        problem("tensor-duplicate", f"{count:,} tensor name(s) of {file} are in another file, too", *names)
        for file, (count, names) in fold.twice.items()
    ]
    if len(shards) > 1:
        message = f"{len(shards)} weight files and no {INDEX}"
        evidence = [f"{len(fold.shards)} headers could be read"]
        found.append(Finding(code="index-missing", severity=Severity.WARNING, message=message, evidence=evidence))
    return found


def _missing_numbers(names: Sequence[str]) -> list[Finding]:
    """Files that the others' own names count: `model-00002-of-00003`."""
    matches = [m for m in map(_NUMBERED.match, names) if m]
    wanted = {f"{m['stem']}-{n:05d}-of-{m['count']}.safetensors" for m in matches for n in range(1, min(int(m["count"]), 10_000) + 1)}
    missing = sorted(wanted.difference(names))
    evidence = f"expected: {len(wanted):,} numbered files, found: {len(wanted) - len(missing):,}"
    shown = [problem("shard-missing", f"{name} is not there", evidence, hint="download it again") for name in missing[:20]]
    rest = len(missing) - len(shown)
    return shown + ([problem("shard-missing", f"{rest:,} more numbered files are not there", evidence)] if rest else [])
