"""Folds hundreds of thousands of tensor names into a few dozen groups, without a regular expression per name.

Digits are first mapped to `0` over all names of a piece at once (one C call); names of one *shape* are then alike but for their
digits, and the few distinct shapes are taken apart with a regular expression each.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from firstlight.core.checkpoint import TensorGroup
from firstlight.core.errors import InputError
from firstlight.inspect.roles import role_of

GROUP_LIMIT = 50_000
_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_NUMBER = re.compile(r"\d+")
_LAYER_WORDS = ("layers", "layer", "blocks", "block", "blk", "h", "mtp", "mtp_layers")


class _Key(NamedTuple):
    """past_stack: layer numbers from the stack's end on, where DeepSeek and its kin keep multi-token prediction."""

    pattern: str
    dtype: str
    shape: tuple[int, ...]
    past_stack: bool = False


class _Spans(NamedTuple):
    """Where the numbers of a name shape stand. others: digits that belong to the name itself."""

    layer: tuple[int, int] | None
    expert: tuple[int, int] | None
    others: tuple[tuple[int, int], ...]


class _Group:
    __slots__ = ("count", "layers")

    def __init__(self) -> None:
        self.count = 0
        self.layers: set[int] = set()


class Shard(NamedTuple):
    """What the index is compared with: how many names, and the sum of their hashes."""

    tensors: int
    names_hash: int


class Fold:
    """Accumulates groups over all shards, and per shard a fingerprint of its names.

    watch_names: without an index, names that two files have are looked for. twice: per file how many, and the first of them.
    """

    def __init__(self, num_hidden_layers: int | None = None, *, watch_names: bool = False) -> None:
        self.twice: dict[str, tuple[int, list[str]]] = {}
        self._seen: set[int] | None = set() if watch_names else None
        self.groups: dict[_Key, _Group] = {}
        self.stack_end = num_hidden_layers
        self.shards: dict[str, Shard] = {}
        self.shard_count = 0
        self._file = ""
        self._spans: dict[bytes, _Spans] = {}

    def start_shard(self, file: str) -> None:
        self._file = file
        self.shard_count = 0
        self.shards[file] = Shard(0, 0)

    def grouped(self, names: Iterable[str], sizes: Iterable[int]) -> dict[tuple[bytes, int], list[str]]:
        """Names grouped by what is left when every digit is 0, and by size; also counts them into the shard's fingerprint."""
        listed = list(names)
        self.shard_count += len(listed)
        if self._seen is not None:
            self._watch(listed, self._seen)
        before = self.shards[self._file]
        self.shards[self._file] = Shard(before.tensors + len(listed), before.names_hash + sum(map(hash, listed)))
        groups: dict[tuple[bytes, int], list[str]] = defaultdict(list)
        for name, key in zip(listed, zip(_shapes(listed), sizes, strict=True), strict=True):
            groups[key].append(name)
        return groups

    def _watch(self, names: list[str], seen: set[int]) -> None:
        again = [n for n in names if hash(n) in seen]
        seen.update(map(hash, names))
        if again:
            count, shown = self.twice.get(self._file, (0, []))
            self.twice[self._file] = (count + len(again), [*shown, *again][:3])

    def forget(self, count: int) -> None:
        """Entries that turned out to be no tensors."""
        before = self.shards[self._file]
        self.shards[self._file] = Shard(before.tensors - count, before.names_hash)

    def add(self, key: bytes, names: list[str], dtype: str, shape: tuple[int, ...]) -> None:
        """Tensors of one name shape, dtype and shape."""
        spans = self._spans.get(key) or self._spans.setdefault(key, _find_spans(names[0]))
        for part in _split_by_digits(names, spans.others):
            self._add_layers(_Key(_pattern(part[0], spans), dtype, shape), part, spans)

    def _add_layers(self, key: _Key, names: list[str], spans: _Spans) -> None:
        if spans.layer is None:
            self._add(key, len(names), ())
            return
        begin, end = spans.layer
        layers = set(map(int, set(map(itemgetter(slice(begin, end)), names))))
        if self.stack_end is None or max(layers) < self.stack_end or not _in_text_stack(key.pattern):
            self._add(key, len(names), layers)
            return
        past = sum(int(n[begin:end]) >= self.stack_end for n in names)
        inside = {n for n in layers if n < self.stack_end}
        if inside:
            self._add(key, len(names) - past, inside)
        self._add(key._replace(past_stack=True), past, layers - inside)

    def _add(self, key: _Key, count: int, layers: Iterable[int]) -> None:
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= GROUP_LIMIT:
                raise InputError("too-many-groups", f"the tensors fall into more than {GROUP_LIMIT:,} groups", evidence=(key.pattern,))
            group = self.groups[key] = _Group()
        group.count += count
        group.layers.update(layers)

    def plain(self) -> tuple[Any, Any]:
        """Everything as plain values, for another process."""
        groups = [(*key, group.count, group.layers) for key, group in self.groups.items()]
        return groups, {file: tuple(shard) for file, shard in self.shards.items()}

    def merge(self, plain: tuple[Any, Any]) -> None:
        """What another process folded."""
        groups, shards = plain
        for pattern, dtype, shape, past_stack, count, layers in groups:
            self._add(_Key(pattern, dtype, shape, past_stack), count, layers)
        self.shards |= {file: Shard(*shard) for file, shard in shards.items()}

    def tensor_groups(self) -> list[TensorGroup]:
        """The groups as the checkpoint carries them, in the order of their first appearance."""
        return [
            TensorGroup(
                pattern=key.pattern,
                role="mtp" if key.past_stack else role_of(key.pattern),
                dtype=key.dtype,
                shape=list(key.shape),
                count=group.count,
                layers=sorted(group.layers),
            )
            for key, group in self.groups.items()
        ]


def _in_text_stack(pattern: str) -> bool:
    return role_of(pattern) not in ("vision", "projector")


def _shapes(names: list[str]) -> list[bytes]:
    keys = "\n".join(names).encode("utf-8", "surrogatepass").translate(_TO_ZERO).split(b"\n")
    if len(keys) == len(names):
        return keys
    return [n.encode("utf-8", "surrogatepass").translate(_TO_ZERO) for n in names]  # a name with a newline in it


def _find_spans(name: str) -> _Spans:
    layer = expert = None
    others = []
    for match in _NUMBER.finditer(name):
        begin, end = match.span()
        word = name[:begin].rpartition(".")[0].rpartition(".")[2] if name[begin - 1 : begin] == "." else ""
        whole = end == len(name) or name[end] == "."
        if whole and layer is None and word in _LAYER_WORDS:
            layer = (begin, end)
        elif whole and expert is None and word == "experts":
            expert = (begin, end)
        else:
            others.append((begin, end))
    return _Spans(layer, expert, tuple(others))


def _split_by_digits(names: list[str], others: tuple[tuple[int, int], ...]) -> Iterable[list[str]]:
    """Names that also agree in the digits that are part of the name (`proj.0` and `proj.2` are two)."""
    if not others or all(len({n[b:e] for n in names}) == 1 for b, e in others):
        return [names]
    split: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for n in names:
        split[tuple(n[b:e] for b, e in others)].append(n)
    return split.values()


def _pattern(name: str, spans: _Spans) -> str:
    for span, word in sorted((s, w) for s, w in ((spans.layer, "{layer}"), (spans.expert, "{expert}")) if s)[::-1]:
        name = name[: span[0]] + word + name[span[1] :]
    return name
