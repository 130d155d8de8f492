"""What `doctor` looks at: whether this installation of firstlight can do its work here."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from msgspec import Struct

from firstlight.app.places import cache_folder, config_folder, data_folder, state_folder
from firstlight.core.errors import FirstlightError
from firstlight.core.units import GIB, gib

OLDEST = (3, 11)


class Item(Struct, frozen=True, kw_only=True):
    """One thing that was looked at. verdict: ok | warning | failed."""

    name: str
    verdict: str
    text: str
    hint: str | None = None


def examine() -> list[Item]:
    """Every item, in the order of how much depends on it."""
    looks: tuple[Callable[[], Iterator[Item]], ...] = (_python, _packages, _folders, _catalog, _adapters, _engines, _tools, _variables)
    return [item for look in looks for item in look()]


def _python() -> Iterator[Item]:
    have = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= OLDEST
    hint = None if good else f"use Python {OLDEST[0]}.{OLDEST[1]} or newer"
    yield Item(name="python", verdict="ok" if good else "failed", text=f"{have} at {sys.executable}", hint=hint)


def _packages() -> Iterator[Item]:
    """Our own requirements, as the installed metadata says them."""
    missing = []
    for line in requires("firstlight") or []:
        name = line.split(";")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        if "extra ==" not in line and not _installed(name):
            missing.append(name)
    text = f"missing: {', '.join(missing)}" if missing else f"firstlight {version('firstlight')} with all it requires"
    yield Item(name="packages", verdict="failed" if missing else "ok", text=text, hint="pip install firstlight" if missing else None)


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _folders() -> Iterator[Item]:
    for name, folder in (("state", state_folder()), ("cache", cache_folder()), ("data", data_folder()), ("config", config_folder())):
        place = _nearest_existing(folder)
        if not os.access(place, os.W_OK):
            variable = f"XDG_{name.upper()}_HOME"
            yield Item(name=f"{name} folder", verdict="failed", text=f"{folder}: {place} cannot be written", hint=f"set {variable}")
            continue
        free = shutil.disk_usage(place).free
        low = name in ("cache", "data") and free < 2 * GIB
        hint = f"free space, or set XDG_{name.upper()}_HOME" if low else None
        yield Item(name=f"{name} folder", verdict="warning" if low else "ok", text=f"{folder}, {gib(free)} free", hint=hint)


def _nearest_existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.parents) if os.path.exists(p))


def _catalog() -> Iterator[Item]:
    from firstlight.catalog.backends import table
    from firstlight.catalog.findings import records
    from firstlight.catalog.gpus import all_gpus
    from firstlight.catalog.rules import builtin_rules

    try:
        releases, rules = table().releases, builtin_rules()
        text = f"{len(all_gpus())} GPUs, {len(releases)} vLLM releases up to {releases[-1].version}"
        yield Item(name="catalog", verdict="ok", text=f"{text}, {len(rules)} rules, {len(records())} codes")
    except Exception as e:
        yield Item(name="catalog", verdict="failed", text=f"{type(e).__name__}: {e}", hint="install firstlight again")


def _adapters() -> Iterator[Item]:
    from firstlight.engines.registry import load_adapters

    try:
        yield Item(name="adapters", verdict="ok", text=", ".join(a.name for a in load_adapters()))
    except FirstlightError as e:
        yield Item(name="adapters", verdict="failed", text=f"{e.code}: {e.message}", hint=e.hint)


def _engines() -> Iterator[Item]:
    from firstlight.app.looking import engine_hints, find_here
    from firstlight.probe.local import LocalHost

    found = find_here(LocalHost(), engine_hints(LocalHost(), None))
    for install in found:
        problem = next(iter(install.findings), None)
        where = install.python or install.binary or "?"
        text = problem.message if problem else f"{install.version} in {where}"
        yield Item(name=install.engine, verdict="failed" if problem else "ok", text=text, hint=problem.hint if problem else None)
    if not found:
        hint = "`firstlight engines install vllm`, or `pip install 'firstlight[embedded]'`"
        yield Item(name="engines", verdict="warning", text="none found", hint=hint)


def _tools() -> Iterator[Item]:
    for name, why in (("ssh", "for --host ssh://"), ("git", "to make demo models"), ("systemctl", "for `firstlight service`")):
        path = shutil.which(name)
        yield Item(name=name, verdict="ok" if path else "warning", text=path or f"not found; needed {why}")


def _variables() -> Iterator[Item]:
    """Variables of ours that are set, and those that point nowhere."""
    for name in sorted(k for k in os.environ if k.startswith("FIRSTLIGHT_")):
        value = os.environ[name]
        lost = name.endswith(("_PYTHON", "_CONFIG")) and not os.path.exists(value)
        hint = f"unset {name}, or name a file that is there" if lost else None
        yield Item(name=name, verdict="failed" if lost else "ok", text=value + (": there is no such file" if lost else ""), hint=hint)
