"""A run: one start of one endpoint, its folder, its processes, its states."""

from enum import StrEnum

from msgspec import Struct


class RunState(StrEnum):
    PLANNED = "planned"
    FETCHING = "fetching"
    REHEARSING = "rehearsing"
    STARTING = "starting"
    LOADING = "loading"
    COMPILING = "compiling"
    CAPTURING = "capturing"
    WARMING = "warming"
    READY = "ready"
    VERIFIED = "verified"
    SERVING = "serving"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


TERMINAL = frozenset({RunState.FAILED, RunState.STOPPED})


class OverlayFile(Struct, frozen=True, kw_only=True):
    """One file of an overlay. kind: link | patched; sha256 of patched copies, target of links."""

    name: str
    kind: str
    target: str | None = None
    sha256: str | None = None
    changes: list[str] = []


class Overlay(Struct, frozen=True, kw_only=True):
    """A laid overlay: the checkpoint as symlinks plus patched JSON, at a path named by its content. Never edits the checkpoint."""

    path: str
    checkpoint: str
    digest: str
    because: str
    files: list[OverlayFile]


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Exactly what is started. argv without a shell; env: variables set over the inherited ones; secrets: names of variables
    whose values come from files (`secret_files`) and are never written down.

    health_path: answers 200 when ready. stop_signal, stop_grace_seconds: the engine's own way to end.
    """

    engine: str
    argv: list[str]
    env: dict[str, str] = {}
    unset_env: list[str] = []
    secret_files: dict[str, str] = {}
    cwd: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    health_path: str = "/health"
    served_model_name: str = ""
    stop_signal: str = "SIGTERM"
    stop_grace_seconds: float = 15.0
    model_path: str | None = None


class Endpoint(Struct, frozen=True, kw_only=True):
    """An OpenAI-compatible endpoint. base_url ends in /v1. api_key_file: where the key is, never the key."""

    base_url: str
    model: str
    engine: str | None = None
    engine_version: str | None = None
    api_key_file: str | None = None
    max_model_len: int | None = None


class ProcessRef(Struct, frozen=True, kw_only=True):
    """A process proven by pid and start time (clock ticks since boot, /proc/PID/stat field 22)."""

    pid: int
    start_ticks: int
    boot_id: str | None = None


class Run(Struct, frozen=True, kw_only=True):
    """The run's own record (`run.json`). plan_digest: the same digest is the same plan. host_folder: the run's folder on its host, where
    that is not `folder`.
    """

    id: str
    name: str
    model: str
    state: RunState
    created: float
    updated: float
    folder: str
    host: str = "local"
    engine: str | None = None
    attempt: int = 1
    plan_digest: str | None = None
    supervisor: ProcessRef | None = None
    engine_process: ProcessRef | None = None
    endpoint: Endpoint | None = None
    verified: float | None = None
    reason: str | None = None
    exit_code: int | None = None
    host_folder: str | None = None
