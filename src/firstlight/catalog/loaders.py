"""Which loader suits which storage and engine release, why, and how long a load takes. Pure."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from firstlight.core.figures import Figure, Rung
from firstlight.core.units import format_bytes

NETWORK = frozenset({"nfs", "lustre"})
SLOW_MAPS = frozenset({"9p", "virtiofs", "fuse", "smb", "ceph", "gpfs", "beegfs"})
MEMORY = frozenset({"tmpfs"})
RAM_SHARE = 0.9
OPTIONAL = ("fastsafetensors", "instanttensor", "runai_streamer", "sharded_state")


class Loader(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """args: flags of vLLM. rate: low and high that were seen, bytes per second. package: must be in the engine's environment."""

    title: str
    args: list[str]
    since: str
    rate: list[float]
    source: str
    package: str | None = None


class Place(Struct, frozen=True, kw_only=True):
    """Where the weights lie. kind: disk | tmpfs | nfs | lustre | 9p | …; read_bytes_per_second: measured, cold; None when unknown."""

    kind: str
    read_bytes_per_second: float | None = None


class LoadAdvice(Struct, frozen=True, kw_only=True):
    """args: engine flags to add (none: its default is right). seconds: cold, from storage. stage: copy to a local disk first.

    others: the loaders that were not chosen, each with the reason.
    """

    loader: str
    args: list[str]
    because: str
    seconds: Figure
    stage: bool = False
    source: str | None = None
    others: dict[str, str] = {}


@cache
def loaders() -> dict[str, Loader]:
    text = files("firstlight.catalog").joinpath("loaders.toml").read_text()
    return msgspec.convert(tomllib.loads(text), dict[str, Loader])


def advise(
    engine: str,
    version: str | None,
    place: Place,
    *,
    weight_bytes: int | None,
    memory_bytes: int | None = None,
    gpus: int = 0,
    packages: Mapping[str, str] | None = None,
    per_rank: bool = False,
) -> LoadAdvice:
    """packages: of the engine's environment; None when unknown. memory_bytes: available RAM. per_rank: files saved as `sharded_state`."""
    if engine != "vllm":
        return _llamacpp(place, weight_bytes)
    if per_rank:
        name, because, stage = "sharded_state", "the files were saved per rank, and no other loader reads them", False
    else:
        name, because, stage = _choose(version, place, weight_bytes, memory_bytes, gpus, packages or {})
    loader = loaders()[name]
    seconds = load_seconds(loader, place, weight_bytes)
    others = {n: _not_chosen(n, version, place, gpus, packages) for n in OPTIONAL if n != name}
    return LoadAdvice(loader=name, args=loader.args, because=because, seconds=seconds, stage=stage, source=loader.source, others=others)


def _not_chosen(name: str, version: str | None, place: Place, gpus: int, packages: Mapping[str, str] | None) -> str:
    """Why another loader is not the advice."""
    loader, disk = loaders()[name], place.read_bytes_per_second
    if version is None:
        return f"from vLLM {loader.since} on; which release will read the files is not known"
    if not _has(version, name):
        return f"from vLLM {loader.since} on"
    if name == "sharded_state":
        return "each rank reads its own part alone, after a save with the same tensor_parallel_size"
    if name == "runai_streamer" and place.kind not in NETWORK | SLOW_MAPS:
        return "streams from object storage and shares; on a local disk not faster than the default"
    if place.kind in MEMORY:
        return "the files are in memory already"
    if name != "runai_streamer" and disk is not None and disk <= loaders()["default"].rate[1]:
        return "the disk is the limit, not the loader"
    if name != "runai_streamer" and not gpus:
        return "for NVIDIA GPUs, and none was found"
    if packages is not None and loader.package not in packages:
        return f"not installed: {loader.package}"
    return "not faster here than what is chosen"


def load_seconds(loader: Loader, place: Place, weight_bytes: int | None) -> Figure:
    """The slower of storage and loader. Unknown storage: only the loader's own rates bound it from below."""
    if weight_bytes is None:
        return Figure(because="the size of the weights is unknown")
    low, high = weight_bytes / loader.rate[1], weight_bytes / loader.rate[0]
    disk = place.read_bytes_per_second
    if place.kind in MEMORY or disk is None:
        mid = (low * high) ** 0.5 if place.kind in MEMORY else None
        because = "the loader's own rates" if place.kind in MEMORY else "the loader's own rates; the storage was not measured"
        return Figure(low=low, mid=mid, high=high if place.kind in MEMORY else None, because=because)
    from_disk = weight_bytes / disk
    mid = max(from_disk, (low * high) ** 0.5)
    because = f"{format_bytes(weight_bytes)} at a measured {format_bytes(disk)}/s, or the loader's own rate"
    return Figure(low=max(low, from_disk * 0.8), mid=mid, high=max(high, from_disk * 1.5), rung=Rung.COMPUTED, because=because)


def _choose(
    version: str | None, place: Place, weight_bytes: int | None, memory_bytes: int | None, gpus: int, packages: Mapping[str, str]
) -> tuple[str, str, bool]:
    """Loader, reason, and whether staging to a local disk is better."""
    fits = weight_bytes is not None and memory_bytes is not None and weight_bytes <= RAM_SHARE * memory_bytes
    if place.kind in MEMORY:
        return "default", "the files are in memory already", False
    if version is None and place.kind in NETWORK | SLOW_MAPS:
        return "default", f"memory-mapped reads are slow on {place.kind}, and which release will read them is not known", not fits
    if place.kind in NETWORK:
        if fits and _has(version, "auto-prefetch"):
            return "auto-prefetch", f"vLLM itself prefetches from {place.kind} when the checkpoint fits into 90 % of the memory", False
        if _has(version, "eager"):
            return "eager", f"memory-mapped reads over {place.kind} are small and random; whole files are not", not fits
        return *_old_release(version, place, packages), True
    if place.kind in SLOW_MAPS:
        if fits and _has(version, "prefetch"):
            return "prefetch", f"memory-mapped reads are slow on {place.kind}, and vLLM does not prefetch there by itself", False
        if _has(version, "eager"):
            return "eager", f"memory-mapped reads are slow on {place.kind}", True
        return *_old_release(version, place, packages), True
    return *_local(version, place, gpus, packages), False


def _old_release(version: str | None, place: Place, packages: Mapping[str, str]) -> tuple[str, str]:
    """Before there was `--safetensors-load-strategy`."""
    if _has(version, "runai_streamer") and loaders()["runai_streamer"].package in packages:
        return "runai_streamer", f"this release has no strategy for {place.kind}, and the streamer reads whole pieces in parallel"
    return "default", f"this release has no strategy for {place.kind}"


def _local(version: str | None, place: Place, gpus: int, packages: Mapping[str, str]) -> tuple[str, str]:
    """On a local disk another loader pays only where the disk is faster than the default one."""
    disk, limit = place.read_bytes_per_second, loaders()["default"].rate[1]
    if disk is None:
        return "default", "the disk was not measured; the default is right for most local disks"
    if disk <= limit:
        return "default", f"the disk ({format_bytes(disk)}/s) is slower than the default loader can be"
    for name in ("instanttensor", "fastsafetensors"):
        if gpus and _has(version, name) and loaders()[name].package in packages:
            note = "; it needs some room on GPU 0" if name == "fastsafetensors" else ""
            return name, f"the disk ({format_bytes(disk)}/s) is faster than the default loader, and {name} is installed{note}"
    return "default", f"the disk ({format_bytes(disk)}/s) is faster than the default loader, but no faster loader is installed"


def _llamacpp(place: Place, weight_bytes: int | None) -> LoadAdvice:
    default = loaders()["default"]
    seconds = load_seconds(default, place, weight_bytes)
    if place.kind in NETWORK | SLOW_MAPS:
        because = f"memory-mapped reads are slow on {place.kind}; read through, once"
        return LoadAdvice(loader="no-mmap", args=["--no-mmap"], because=because, seconds=seconds, stage=True)
    return LoadAdvice(loader="default", args=[], because="memory-mapped reads suit this storage", seconds=seconds)


def _has(version: str | None, loader: str) -> bool:
    """False where the release is unknown: no flag is advised that may not exist."""
    return version is not None and _numbers(version) >= _numbers(loaders()[loader].since)


def _numbers(version: str) -> tuple[int, ...]:
    """`0.20.1.dev0+g1015` -> (0, 20, 1)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(n) for n in match[0].split(".")) if match else (0,)
