"""A checkpoint's modules before quantization: name, shape, role, layers. A tensor's shape is as stored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from firstlight.inspect.config import integer


class Part(NamedTuple):
    """One parameter in `layers`, `experts` times each.

    name: without its leaf (`model.layers.{layer}.mlp.gate_proj`). leaf: `weight`, `bias`, or empty for a bare parameter.
    linear: a matrix [out, in] (or [experts, out, in]) that quantization may change. transposed: a fused one stored [experts, in, out].
    """

    name: str
    shape: tuple[int, ...]
    role: str
    layers: tuple[int, ...] = ()
    experts: int = 1
    leaf: str = "weight"
    linear: bool = False
    transposed: bool = False
    dtype: str | None = None

    @property
    def pattern(self) -> str:
        return f"{self.name}.{self.leaf}" if self.leaf else self.name


class Missing(Exception):
    """A field that the layout needs is not in the config."""


class Sizes:
    """The config's numbers by name; a number that is not there raises Missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __call__(self, *names: str) -> int:
        value = integer(self.config, *names)
        if value is None:
            raise Missing(names[0])
        return value

    def get(self, *names: str, default: int = 0) -> int:
        value = integer(self.config, *names)
        return default if value is None else value

    @property
    def hidden(self) -> int:
        return self("hidden_size")

    @property
    def layers(self) -> range:
        return range(self("num_hidden_layers"))


class Parts:
    """Collects the parts of one layout."""

    def __init__(self) -> None:
        self.listed: list[Part] = []

    def linear(
        self, name: str, out: int, into: int, role: str, layers: Sequence[int] = (), *, experts: int = 1, bias: bool = False
    ) -> None:
        """A matrix [out, in], and its bias."""
        self._add(Part(name, (out, into), role, tuple(layers), experts, linear=True))
        if bias:
            self._add(Part(name, (out,), role, tuple(layers), experts, leaf="bias"))

    def plain(
        self, name: str, shape: Sequence[int], role: str, layers: Sequence[int] = (), *, leaf: str = "weight", dtype: str | None = None
    ) -> None:
        """A parameter that quantization leaves alone."""
        self._add(Part(name, tuple(shape), role, tuple(layers), leaf=leaf, dtype=dtype))

    def fused(self, name: str, shape: Sequence[int], role: str, layers: Sequence[int], *, transposed: bool = False, leaf: str = "") -> None:
        """All experts of a layer in one tensor [experts, out, in]."""
        self._add(Part(name, tuple(shape), role, tuple(layers), leaf=leaf, linear=True, transposed=transposed))

    def _add(self, part: Part) -> None:
        if (part.layers or "{layer}" not in part.name) and all(n > 0 for n in part.shape):
            self.listed.append(part)


def by_shape(layers: Iterable[int], shape: Mapping[int, Any]) -> dict[Any, list[int]]:
    """Layers grouped by what `shape` says about each."""
    result: dict[Any, list[int]] = {}
    for layer in layers:
        result.setdefault(shape[layer], []).append(layer)
    return result
