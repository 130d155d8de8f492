"""Models in another host's caches: listed and removed there, by that host's own Python."""

import posixpath
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from firstlight.core.errors import HostError
from firstlight.core.hub import hub_cache
from firstlight.core.ports import Host
from firstlight.fetch.manifest import WORK
from firstlight.fetch.models import CachedModel, sorted_models

LIST_SECONDS = 300.0


def models_there(host: Host, *, cache: str, used: Mapping[str, list[str]]) -> list[CachedModel]:
    """Largest first. cache: firstlight's cache folder there. Raises HostError `python-missing`."""
    return _listed(host, cache, used)[0]


def remove_there(host: Host, model: CachedModel, *, cache: str) -> int:
    """Frees the model's folder there; returns its bytes. Raises HostError `model-in-use`: a fetch, or a process that has it open."""
    rows = {r["path"]: r for r in _listed(host, cache, {})[1]}
    row = rows.get(model.path, {})
    if row.get("fetched") or row.get("holders"):
        who = [f"pid {pid}" for pid in row.get("holders", [])] or ["a fetch is at work"]
        raise HostError("model-in-use", f"{model.name} is in use on {host.name}", evidence=(model.path, *who[:8]))
    host.remove(model.path)
    return model.bytes


def _listed(host: Host, cache: str, used: Mapping[str, list[str]]) -> tuple[list[CachedModel], list[dict[str, Any]]]:
    hub, own = hub_cache(host.environ()), posixpath.join(cache, "models")
    script = resources.files("firstlight.fetch.inside").joinpath("cached.py").read_text("utf-8")
    try:
        done = host.run(["python3", "-X", "utf8", "-c", script, WORK, hub, own], timeout=LIST_SECONDS)
    except HostError as e:
        if e.code != "command-not-found":
            raise
        raise HostError("python-missing", f"{host.name} has no python3", hint="install Python 3 there") from None
    if not done.ok:
        raise HostError(
            "host-io-failed", f"the caches of {host.name} cannot be listed", evidence=(done.stderr.decode("utf-8", "replace")[-300:],)
        )
    rows = msgspec.json.decode(done.stdout)
    return sorted_models(rows, hub, own, used), rows
