"""What is cached: the Hugging Face cache and firstlight's own folder; sizes, last use, and removal by name."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from firstlight.core.errors import HostError, InputError
from firstlight.core.hub import hub_cache
from firstlight.fetch.disk import disk_error
from firstlight.fetch.lock import is_busy
from firstlight.fetch.manifest import WORK
from firstlight.fetch.prepare import cache_root


class CachedModel(Struct, frozen=True, kw_only=True):
    """One model on the disk. place: hub (the Hugging Face cache) | firstlight. bytes: on the disk, parts included.

    last_used: Unix seconds of the newest access that the file system recorded. complete: no part of it is still to come.
    used_by: runs that serve it or did.
    """

    name: str
    place: str
    path: str
    bytes: int
    revisions: list[str] = []
    last_used: float | None = None
    complete: bool = True
    used_by: list[str] = []


def cached_models(env: Mapping[str, str], *, cache: Path | None = None, used: Mapping[str, list[str]] | None = None) -> list[CachedModel]:
    """Largest first. used: a path (of a model, or inside it) -> names of runs."""
    folders = [(p, "hub") for p in _children(Path(hub_cache(env)).expanduser()) if p.name.startswith("models--")]
    folders += [(p, "firstlight") for p in _children((cache or cache_root(env)) / "models")]
    models = [_describe(path, place, used or {}) for path, place in folders]
    return sorted((m for m in models if m.bytes), key=lambda m: (-m.bytes, m.name))


def remove_model(model: CachedModel) -> int:
    """Frees the model's folder; returns its bytes. Raises HostError: model-in-use (a fetch is at work), disk-failed."""
    folder = Path(model.path)
    if is_busy(folder / WORK):
        raise HostError("model-in-use", f"{model.name} is being fetched now", evidence=(model.path,), hint="wait, or stop that fetch")
    try:
        shutil.rmtree(folder)
    except OSError as e:
        raise disk_error(e, folder) from None
    return model.bytes


def find_model(models: list[CachedModel], name: str) -> CachedModel:
    """Raises InputError: model-not-cached, name-ambiguous."""
    found = [m for m in models if name in (m.name, m.path)]
    if not found:
        close = tuple(m.name for m in models if name.lower() in m.name.lower())[:8]
        raise InputError("model-not-cached", f"no cached model is named {name!r}", evidence=close, hint="`firstlight models` lists them")
    if len(found) > 1:
        raise InputError("name-ambiguous", f"{name} is cached twice", evidence=tuple(m.path for m in found), hint="name it by its path")
    return found[0]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return []


def _describe(folder: Path, place: str, used: Mapping[str, list[str]]) -> CachedModel:
    files = [(p, s) for p in folder.rglob("*") if (s := _state(p))]
    name = folder.name.removeprefix("models--").replace("--", "/") if place == "hub" else folder.name
    runs = sorted({run for path, names in used.items() if _inside(Path(path), folder) for run in names})
    return CachedModel(
        name=name,
        place=place,
        path=str(folder),
        bytes=sum(s.st_blocks * 512 for _, s in files),
        revisions=sorted(p.name for p in _children(folder / "snapshots")),
        last_used=max((max(s.st_atime, s.st_mtime) for p, s in files if WORK not in p.parts), default=None),
        complete=not any(p.name.endswith((".part", ".incomplete")) for p, _ in files),
        used_by=runs,
    )


def _inside(path: Path, folder: Path) -> bool:
    real = Path(os.path.realpath(path))
    return real == folder or folder in real.parents or folder in path.parents


def _state(path: Path) -> os.stat_result | None:
    """Of regular files; links point to what is counted elsewhere."""
    try:
        state = path.lstat()
    except OSError:
        return None
    return state if path.is_file() and not path.is_symlink() else None
