"""Which attention kernel each vLLM release picks, per GPU generation, layer kind and KV cache dtype.

The table (`engines/vllm/backends.json`) is what each release's own selector answered, one run a release; it is regenerated and
compared by `tools/generate_backends.py --check`. Words: `layer` is the head size (`gqa128`), `+sink` for attention sinks,
MLA by its latent width (`mla576`), `+dsa` for sparse attention.
"""

import importlib.resources
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct, json

from firstlight.core.checkpoint import Checkpoint

NO_BACKEND = "-"
NOT_A_VALUE = "?"
ANY = "any"


class Choice(Struct, frozen=True, kw_only=True):
    """One cell. chosen: the backend, None when the release has none and refuses to start.

    release: the release whose row this is. known_dtype: False when the release does not have this --kv-cache-dtype at all.
    late: the engine's own words when the selector agrees but a constructor refuses afterwards; then `chosen` is None too.
    """

    layer: str
    kv_cache_dtype: str
    sm: int
    release: str
    chosen: str | None
    known_dtype: bool = True
    late: str | None = None


class Release(Struct, frozen=True, kw_only=True):
    """A release in the table. built: the day its wheel was made. kv_cache_dtypes: what --kv-cache-dtype takes."""

    version: str
    built: str
    sha256: str | None = None
    kv_cache_dtypes: list[str] = []


class Late(Struct, frozen=True, kw_only=True):
    """Passes the selector and dies in the constructor. sms, releases: where; raises: the engine's text."""

    backend: str
    kv_cache_dtype: str
    sms: list[int]
    releases: list[str]
    raises: str


class Row(Struct, frozen=True, kw_only=True):
    """Cells that share a history. history: `RELEASE:BACKEND` from each release on where the choice changed."""

    layers: str
    kv_cache_dtypes: str
    sms: str
    history: str


class Table(Struct, frozen=True, kw_only=True):
    generator: str
    generated: str
    source: str
    releases: list[Release]
    rows: list[Row]
    late: list[Late] = []
    kernels: list[Row] = []
    kernel_sms: list[int] = []


def lookup(version: str | None, sm: int, layer: str, kv_cache_dtype: str = "auto") -> Choice | None:
    """The cell for a release; None when the table does not know (unknown layer kind or GPU generation, release too old).

    A release that is not in the table is answered by its own minor version's last patch; one newer than all by the newest.
    """
    release, row_sm = release_for(version), _sm_in_table(sm, layer)
    if release is None or row_sm is None:
        return None
    if is_kernel(layer):
        kv_cache_dtype = ANY
    found = _cells().get((release, row_sm, layer, kv_cache_dtype))
    if found is None:
        known = not is_kernel(layer) and (release, row_sm, layer, "auto") in _cells()
        missing = Choice(layer=layer, kv_cache_dtype=kv_cache_dtype, sm=sm, release=release, chosen=None, known_dtype=False)
        return missing if known else None
    late = _late(release, row_sm, found, kv_cache_dtype)
    chosen = None if found == NO_BACKEND or late else found
    return Choice(layer=layer, kv_cache_dtype=kv_cache_dtype, sm=sm, release=release, chosen=chosen, late=late)


def choose(version: str | None, sm: int, layer: str, kv_cache_dtype: str = "auto") -> str | None:
    """The backend's name, None when the release has none for it or the table does not know; `lookup` tells the two apart."""
    found = lookup(version, sm, layer, kv_cache_dtype)
    return found.chosen if found else None


def first_release_with(sm: int, layer: str, kv_cache_dtype: str, *, after: str | None = None) -> str | None:
    """The earliest release (later than `after`) that has a backend for the cell: what an upgrade must reach."""
    later = [r.version for r in table().releases if after is None or version_key(r.version) > version_key(after)]
    return next((v for v in later if choose(v, sm, layer, kv_cache_dtype)), None)


def first_release_where(sm: int, layer: str, fits: Callable[[str], bool], *, after: str | None = None) -> str | None:
    """The earliest release (later than `after`) whose choice for the cell `fits`."""
    later = [r.version for r in table().releases if after is None or version_key(r.version) > version_key(after)]
    return next((v for v in later if (chosen := choose(v, sm, layer)) and fits(chosen)), None)


def rows(version: str, sm: int) -> list[Choice]:
    """Every cell of one release on one GPU generation, in the table's order; empty when the table does not know them."""
    release = release_for(version)
    names = [(layer, dtype) for r, s, layer, dtype in _cells() if r == release and s == _sm_in_table(sm, layer)]
    return [choice for layer, dtype in names if (choice := lookup(version, sm, layer, dtype)) is not None]


def release_for(version: str | None) -> str | None:
    """The table's release that answers for `version` (`0.16.0rc2.dev313+g1234` -> `0.16.0`); None for older than the table."""
    releases = [r.version for r in table().releases]
    if version is None:
        return None
    if version in releases:
        return version
    wanted = version_key(version)[:2]
    same = [v for v in releases if version_key(v)[:2] == wanted]
    older = [v for v in releases if version_key(v)[:2] < wanted]
    return same[-1] if same else older[-1] if older else None


@cache
def table() -> Table:
    data = importlib.resources.files("firstlight.catalog").joinpath("engines/vllm/backends.json").read_bytes()
    return json.decode(data, type=Table)


@cache
def _cells() -> dict[tuple[str, int, str, str], str]:
    """(release, sm, layer, dtype) -> backend or NO_BACKEND, in the order: release, sm, layer, dtype as the engine lists them."""
    return _expand(table().rows) | _expand(table().kernels)


def _expand(packed: Sequence[Row]) -> dict[tuple[str, int, str, str], str]:
    versions = [r.version for r in table().releases]
    order = {d: i for i, d in enumerate(dict.fromkeys(d for r in table().releases for d in r.kv_cache_dtypes))}
    cells: dict[tuple[str, int, str, str], str] = {}
    for row in packed:
        history = _history(row.history, versions)
        for layer in row.layers.split():
            for dtype in row.kv_cache_dtypes.split():
                for sm in row.sms.split():
                    cells.update({(v, int(sm), layer, dtype): chosen for v, chosen in history.items()})
    place = {v: i for i, v in enumerate(versions)}
    layers = {name: i for i, name in enumerate(dict.fromkeys(k[2] for k in cells))}
    key = sorted(cells, key=lambda c: (place[c[0]], c[1], layers[c[2]], order.get(c[3], 0)))
    return {k: cells[k] for k in key}


def _history(text: str, versions: list[str]) -> dict[str, str]:
    """`0.14.1:- 0.18.1:TRITON_MLA` -> the choice of every release from the first on; releases without the dtype are left out."""
    changes = dict(part.split(":", 1) for part in text.split())
    out, current = dict[str, str](), NOT_A_VALUE
    for version in versions:
        current = changes.get(version, current)
        if current != NOT_A_VALUE:
            out[version] = current
    return out


def _late(release: str, sm: int, backend: str, kv_cache_dtype: str) -> str | None:
    asked = _nearest(sm, table().kernel_sms)
    for late in table().late:
        if release in late.releases and late.backend == backend and late.kv_cache_dtype == kv_cache_dtype and asked in late.sms:
            return late.raises
    return None


def _sm_in_table(sm: int, layer: str) -> int | None:
    return _nearest(sm, table().kernel_sms if is_kernel(layer) else _attention_sms())


@cache
def _attention_sms() -> list[int]:
    return sorted({int(s) for row in table().rows for s in row.sms.split()})


def _nearest(sm: int, known: Sequence[int]) -> int | None:
    """SM 8.7 decides as 8.6 does: the highest one of its own generation that is not above it."""
    return max((s for s in known if s <= sm and s // 10 == sm // 10), default=None)


def is_kernel(layer: str) -> bool:
    """MoE and linear kernels (`moe-nvfp4`, `linear-fp8-block`) do not depend on the KV cache dtype."""
    return layer.startswith(("moe-", "linear-"))


def version_key(version: str) -> tuple[int, ...]:
    """Orders releases: `0.16.0rc2.dev313` -> (0, 16, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def attention_layers(checkpoint: Checkpoint) -> list[str]:
    """The table's names for the attention kinds of a model; empty when its config does not say enough."""
    config = checkpoint.config
    if rank := config.get("kv_lora_rank"):
        width = int(rank) + int(config.get("qk_rope_head_dim") or 0)
        return [f"mla{width}" + ("+dsa" if config.get("index_topk") else "")]
    if config.get("o_lora_rank") and config.get("index_topk"):
        return []  # DeepSeek-V4 brings its own kernels; the general selector, which the table holds, is not asked for its layers
    return [name + ("+sink" if _has_sinks(checkpoint) else "") for name in _head_sizes(config)]


def _head_sizes(config: dict[str, Any]) -> list[str]:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim") or (hidden // heads if heads and hidden else None)
    sizes = [s for s in (size, config.get("global_head_dim")) if s]
    return list(dict.fromkeys(f"gqa{s}" for s in sizes))


def _has_sinks(checkpoint: Checkpoint) -> bool:
    return checkpoint.model_type == "gpt_oss" or any("sinks" in g.pattern for g in checkpoint.tensor_groups)
