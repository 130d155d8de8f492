"""Compile, autotune and kernel caches in one place per engine build and GPU, so that the second start finds what the first one made.

Engines key these by flags, environment and model path; the overlay's path is content-addressed and rehearsals use the launch's own flags,
so both meet the same entries.
"""

import posixpath
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from firstlight.core.errors import HostError, UsageError
from firstlight.core.ids import digest, slug
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.ports import Host
from firstlight.core.run import LaunchSpec

NOTE = "cache.json"
DAY = 86400.0
VARIABLES: dict[str, str] = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "CUDA_CACHE_PATH": "cuda",
}


class Cache(Struct, frozen=True, kw_only=True):
    """One engine build on one kind of GPU. bytes: what it takes on disk. used: Unix seconds of the last start that was given it."""

    path: str
    engine: str
    build: str
    gpu: str
    bytes: int | None = None
    used: float | None = None
    parts: dict[str, int] = {}


def cache_folder_for(install: EngineInstall, machine: Machine, *, root: str) -> str:
    """`ROOT/vllm-0.32.0-1a2b3c4d/nvidia-h200`: the build by its exact string, the GPU by its name, `cpu` without one."""
    build = f"{install.engine}-{install.version or 'unknown'}-{digest(install.build or install.version or '', length=8)}"
    return posixpath.join(root, slug(build), slug(_gpu(machine)))


def _gpu(machine: Machine) -> str:
    names = sorted({a.name for a in machine.accelerators})
    return "+".join(names) or f"cpu-{machine.architecture or 'unknown'}"


def with_caches(spec: LaunchSpec, install: EngineInstall, machine: Machine, *, host: Host, root: str, make: bool = True) -> LaunchSpec:
    """The launch with its caches under `root`. A place that the user or the environment has chosen is respected.

    make: whether the folders are made; a dry run only names them. A folder that cannot be made is no reason not to start: the engine
    then uses its own default.
    """
    if install.engine == "llamacpp":
        return spec
    folder = cache_folder_for(install, machine, root=root)
    chosen = {**host.environ(), **spec.env}
    settings = {name: posixpath.join(folder, part) for name, part in VARIABLES.items() if not chosen.get(name)}
    if not make:
        return msgspec.structs.replace(spec, env={**settings, **spec.env})
    try:
        for path in settings.values():
            host.mkdir(path)
        note = {"engine": install.engine, "build": install.build or install.version or "", "gpu": _gpu(machine), "used": time.time()}
        host.write(posixpath.join(folder, NOTE), msgspec.json.encode(note))
    except HostError:
        return spec
    return msgspec.structs.replace(spec, env={**settings, **spec.env})


def list_caches(host: Host, *, root: str) -> list[Cache]:
    """Every cache under `root`, largest first."""
    found = [_describe(host, path) for path in _folders(host, root)]
    return sorted(found, key=lambda c: -(c.bytes or 0))


def _folders(host: Host, root: str) -> list[str]:
    if host.stat(root) is None:
        return []
    builds = [i.path for i in host.list(root) if i.kind == "directory"]
    return [i.path for build in builds for i in host.list(build) if i.kind == "directory"]


def _describe(host: Host, path: str) -> Cache:
    note = _note(host, path)
    parts = _sizes(host, [i.path for i in host.list(path) if i.kind == "directory"])
    return Cache(
        path=path,
        engine=str(note.get("engine") or posixpath.basename(posixpath.dirname(path)).partition("-")[0]),
        build=str(note.get("build") or posixpath.basename(posixpath.dirname(path))),
        gpu=str(note.get("gpu") or posixpath.basename(path)),
        bytes=sum(parts.values()) if parts is not None else None,
        used=_number(note.get("used")),
        parts={posixpath.basename(p): size for p, size in (parts or {}).items()},
    )


def _note(host: Host, path: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(host.read(posixpath.join(path, NOTE)), type=dict[str, object])
    except (HostError, msgspec.DecodeError, msgspec.ValidationError):
        return {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _sizes(host: Host, paths: list[str]) -> dict[str, int] | None:
    """Bytes on disk of each folder, by `du`; None where it cannot be told."""
    if not paths:
        return {}
    try:
        rows = host.run(["du", "-sk", "--", *paths], timeout=120).text.splitlines()
    except HostError:
        return None
    return {path: int(size) * 1024 for size, _, path in (row.partition("\t") for row in rows) if size.isdigit()}


def stale(cache: Cache, days: float) -> bool:
    """Whether no start was given the cache for that many days."""
    return (cache.used or 0.0) < time.time() - days * DAY


def refuse_strange(paths: frozenset[str], caches: Sequence[Cache]) -> None:
    """Raises UsageError `not-a-cache` where a path is none of the caches."""
    if strange := sorted(paths - {c.path for c in caches}):
        raise UsageError("not-a-cache", "there is no such cache", evidence=tuple(strange), hint="firstlight cache list")


def prune(host: Host, *, root: str, paths: frozenset[str]) -> list[Cache]:
    """Removes the named caches; returns what was removed.

    Raises UsageError `not-a-cache` for a path that is not one of `list_caches`: nothing is removed then.
    """
    caches = list_caches(host, root=root)
    refuse_strange(paths, caches)
    known = {c.path: c for c in caches}
    removed = [known[p] for p in sorted(paths)]
    for cache in removed:
        host.remove(cache.path)
        if not host.list(posixpath.dirname(cache.path)):
            host.remove(posixpath.dirname(cache.path))
    return removed
