"""What is deployed: a launch that was verified, with what a renderer needs to know besides."""

import posixpath

from msgspec import Struct

from firstlight.core.run import Endpoint, LaunchSpec, Overlay

_CACHES = ("_CACHE_ROOT", "_CACHE_DIR", "_CACHE_PATH", "_WORKSPACE_BASE")


class Deployment(Struct, frozen=True, kw_only=True):
    """The launch of a verified run. Every renderer works from this alone.

    version: the engine's, which chooses the image. gpus: indices or uuids (a MIG device has no index), None for all;
    gpu_count 0: a machine without GPUs.
    ranks: processes that share memory. ready_seconds: how long the verified start took. known_answer: the endpoint knows the capital of
    France, so that a health check may ask for it. uid, gid: of the user whose files these are.
    """

    name: str
    launch: LaunchSpec
    endpoint: Endpoint
    version: str | None = None
    overlay: Overlay | None = None
    gpus: list[str] | None = None
    gpu_count: int = 0
    ranks: int = 1
    nodes: int = 1
    ready_seconds: float | None = None
    known_answer: bool = False
    uid: int = 0
    gid: int = 0

    @property
    def key_file(self) -> str | None:
        """Where the key is, never the key."""
        return next(iter(self.launch.secret_files.values()), None)


def model_places(deployment: Deployment) -> list[str]:
    """Folders and files that the engine reads its model from; the links of an overlay and of a hub cache must lead somewhere."""
    overlay, model = deployment.overlay, deployment.launch.model_path
    places = [overlay.path, overlay.checkpoint] if overlay else [model] if model else []
    return sorted({_whole_cache_entry(p) for p in places})


def _whole_cache_entry(path: str) -> str:
    """A hub cache's snapshot is links into `blobs` beside it: both are needed."""
    head, found, _ = path.partition("/snapshots/")
    return head if found and posixpath.basename(head).startswith("models--") else path


def cache_places(deployment: Deployment) -> list[str]:
    """Compile and kernel caches that the launch names."""
    return sorted({v for k, v in deployment.launch.env.items() if k.endswith(_CACHES)})
