"""The table of kernels for people and for JSON: one release, or what differs between two."""

import re
import sys

import click
from msgspec import Struct

from firstlight.app.output import console, glyphs, say
from firstlight.catalog.backends import Choice, release_for, rows, table
from firstlight.core.errors import InputError, UsageError


class Change(Struct, frozen=True, kw_only=True):
    """One cell that two releases answer differently. before, after: the backend, None for none."""

    layer: str
    kv_cache_dtype: str
    sm: int
    before: str | None
    after: str | None
    became: str


def sm_of(gpu: str) -> int:
    """`sm_120`, `120`, `12.0`, or a GPU's name. Raises InputError `unknown-gpu`."""
    if match := re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", gpu.lower()):
        return int(match[1])
    if match := re.fullmatch(r"(\d{1,2})\.(\d)", gpu):
        return int(match[1]) * 10 + int(match[2])
    from firstlight.catalog.gpus import find_gpu

    return find_gpu(gpu).sm


def choices(engine: str, gpu: str, layer: str | None) -> list[Choice]:
    """Rows of the table. Raises UsageError `engine-unknown`, InputError `release-unknown`, `unknown-gpu`."""
    version, sm = _version(engine), sm_of(gpu)
    found = [row for row in rows(version, sm) if layer in (None, row.layer)]
    if not found:
        raise InputError(
            "cell-unknown",
            f"the table has nothing for {engine} on sm_{sm}" + (f" and {layer}" if layer else ""),
            evidence=(f"releases: {table().releases[0].version} to {table().releases[-1].version}",),
            hint="firstlight ask MODEL --engine-wheel vllm==VERSION asks the engine itself",
        )
    if found[0].release != version:
        say(f"{glyphs(sys.stderr).note} {version} is not in the table: shown is {found[0].release}")
    return found


def _version(engine: str) -> str:
    from firstlight.ask.environments import parse_engine

    ref = parse_engine(engine)
    if ref.name != "vllm":
        raise UsageError("no-table", f"there is no table of kernels for {ref.name}", hint="vllm@0.26.0")
    version = ref.version or table().releases[-1].version
    if release_for(version) is None:
        first = table().releases[0].version
        raise InputError("release-unknown", f"vLLM {version} is older than the table", evidence=(f"its first release is {first}",))
    return version


def changes(before: str, after: str, gpu: str, show_all: bool) -> list[Change]:
    """Cells that differ, in the table's order."""
    old = {(c.layer, c.kv_cache_dtype): c for c in choices(before, gpu, None)}
    new = {(c.layer, c.kv_cache_dtype): c for c in choices(after, gpu, None)}
    out = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if (a and a.chosen) == (b and b.chosen) or not (show_all or (a and b)):
            continue
        was, now = a.chosen if a else None, b.chosen if b else None
        became = "works now" if not was else "refused now" if not now else "another kernel"
        out.append(Change(layer=key[0], kv_cache_dtype=key[1], sm=sm_of(gpu), before=was, after=now, became=became))
    return out


def show_choices(found: list[Choice]) -> None:
    """Dtypes that choose alike stand in one line."""
    from rich.table import Table

    none = f"{glyphs().fail} none"
    grid = Table(box=None, pad_edge=False, header_style="bold", title=f"vLLM {found[0].release} on sm_{found[0].sm}", title_justify="left")
    for name in ("LAYER", "CHOSEN", "KV CACHE DTYPE"):
        grid.add_column(name, overflow="fold")
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in found:
        chosen = row.chosen or (f"{none} (late: {row.late})" if row.late else none)
        grouped.setdefault((row.layer, chosen), []).append(row.kv_cache_dtype)
    for (layer, chosen), dtypes in grouped.items():
        grid.add_row(layer, chosen, " ".join(dtypes))
    console().print(grid)


def show_changes(found: list[Change], before: str, after: str) -> None:
    if not found:
        click.echo(f"{glyphs().ok} {before} and {after} choose alike")
        return
    from rich.table import Table

    marks = glyphs()
    signs = {"works now": marks.ok, "refused now": marks.fail, "another kernel": marks.note}
    grid = Table(
        box=None, pad_edge=False, header_style="bold", title=f"{before} {marks.arrow} {after}, sm_{found[0].sm}", title_justify="left"
    )
    for name in ("", "LAYER", before.upper(), after.upper(), "KV CACHE DTYPE"):
        grid.add_column(name, overflow="fold")
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for row in found:
        key = (f"{signs[row.became]} {row.became}", row.layer, row.before or "none", row.after or "none")
        grouped.setdefault(key, []).append(row.kv_cache_dtype)
    for (sign, layer, was, now), dtypes in grouped.items():
        grid.add_row(sign, layer, was, now, " ".join(dtypes))
    console().print(grid)
