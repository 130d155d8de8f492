"""The door for ways to keep an endpoint up: one function from a Deployment to files, and one table.

What comes later (Kubernetes with LeaderWorkerSet, Slurm, Ray) is another line here: `Deployment.nodes`, `ranks`, `gpus` and the
launch's own flags are what it renders from. A third party's renderer is an entry point `firstlight.deploy` with the same signature.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Protocol

from firstlight.core.errors import UsageError
from firstlight.deploy import compose, docker, quadlet
from firstlight.deploy.deployment import Deployment


class Renderer(Protocol):
    """Pure: file names and their text. Raises UsageError for a deployment that it cannot express."""

    def __call__(self, deployment: Deployment, /) -> Mapping[str, str]: ...


BUILT_IN: dict[str, Renderer] = {"compose": compose.render, "docker": docker.render, "quadlet": quadlet.render}


def renderers() -> dict[str, Renderer]:
    """Our own and those that are installed; ours win."""
    return {**{e.name: e.load() for e in entry_points(group="firstlight.deploy")}, **BUILT_IN}


def render(kind: str, deployment: Deployment) -> Mapping[str, str]:
    """Raises UsageError `unknown-renderer`."""
    known = renderers()
    if kind not in known:
        raise UsageError("unknown-renderer", f"nothing renders {kind!r}", evidence=(f"known: {', '.join(sorted(known))}",))
    return known[kind](deployment)
