"""What is cached: the Hugging Face cache and firstlight's own folder; sizes, last use, and removal by name."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from firstlight.core.errors import HostError, InputError
from firstlight.core.hub import hub_cache
from firstlight.fetch.disk import disk_error
from firstlight.fetch.inside.cached import children, describe, holders
from firstlight.fetch.lock import claim
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
    hub, own = str(Path(hub_cache(env)).expanduser()), str((cache or cache_root(env)) / "models")
    return sorted_models([describe(child, WORK) for folder in (hub, own) for child in children(folder)], hub, own, used or {})


def sorted_models(rows: Sequence[Mapping[str, Any]], hub: str, own: str, used: Mapping[str, list[str]]) -> list[CachedModel]:
    """Rows of inside/cached.py as models, those without a byte left out. hub, own: the two folders that they lie in."""
    of_hub = [r for r in rows if r["path"].startswith(f"{hub}/models--")]
    of_own = [r for r in rows if r["path"].startswith(f"{own}/") and r not in of_hub]
    models = [*(_model(r, "hub", used) for r in of_hub), *(_model(r, "firstlight", used) for r in of_own)]
    return sorted((m for m in models if m.bytes), key=lambda m: (-m.bytes, m.name))


def remove_model(model: CachedModel) -> int:
    """Frees the model's folder; returns its bytes. Nobody sees half of it: it is renamed first, and a fetch that waits begins anew.

    Raises HostError: model-in-use (a fetch, or a process that has a file of it open), disk-failed.
    """
    folder, lock = Path(model.path), None
    try:
        lock = claim(folder / WORK)
        if lock is None:
            raise HostError("model-in-use", f"{model.name} is being fetched now", evidence=(model.path,), hint="wait, or stop that fetch")
        _refuse_while_open(model)
        gone = folder.with_name(f"{folder.name}.removed")  # what a kill leaves is listed under that name, and can be removed, too
        if gone.exists():
            shutil.rmtree(gone)
        folder.rename(gone)
        shutil.rmtree(gone)
    except OSError as e:
        raise disk_error(e, folder) from None
    finally:
        if lock is not None:
            os.close(lock)
    return model.bytes


def _refuse_while_open(model: CachedModel) -> None:
    """An engine that somebody started by hand, for one."""
    who = [f"pid {pid}" for pid in holders(model.path) if pid != os.getpid()]
    if who:
        raise HostError("model-in-use", f"{model.name} is in use", evidence=(model.path, *who[:8]), hint="end these processes first")


def find_model(models: list[CachedModel], name: str) -> CachedModel:
    """Raises InputError: model-not-cached, name-ambiguous."""
    found = [m for m in models if name in (m.name, m.path)]
    if not found:
        close = tuple(m.name for m in models if name.lower() in m.name.lower())[:8]
        raise InputError("model-not-cached", f"no cached model is named {name!r}", evidence=close, hint="`firstlight models` lists them")
    if len(found) > 1:
        raise InputError("name-ambiguous", f"{name} is cached twice", evidence=tuple(m.path for m in found), hint="name it by its path")
    return found[0]


def _model(row: Mapping[str, Any], place: str, used: Mapping[str, list[str]]) -> CachedModel:
    folder = PurePosixPath(row["path"])
    name = folder.name.removeprefix("models--").replace("--", "/") if place == "hub" else folder.name
    return CachedModel(
        name=name,
        place=place,
        path=str(folder),
        bytes=row["bytes"],
        revisions=row["revisions"],
        last_used=row["last_used"],
        complete=row["complete"],
        used_by=sorted({run for path, names in used.items() if _inside(path, str(folder)) for run in names}),
    )


def _inside(path: str, folder: str) -> bool:
    return any(p == folder or p.startswith(f"{folder}/") for p in (path, os.path.realpath(path)))
