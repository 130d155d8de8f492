"""Whose words a unit is: the process by its frames, and how deep in the engine that stands."""

from collections.abc import Iterable

_PROCESS_MARKS = (
    ("Worker", ("multiproc_executor.py", "worker_main", "RayWorkerWrapper", "WorkerProc(", "gpu_worker.py", "scheduler.py")),
    ("EngineCore", ("run_engine_core", "EngineCoreProc", "run_engine_loop", "run_mp_engine", "in engine_step", "_log_task_completion")),
    ("APIServer", ("run_server", "api_server.py", "cli/serve.py", "launch_core_engines")),
)


def process_of(frames: Iterable[str]) -> str | None:
    """The process whose traceback this is, by its frames, where the lines carry no name: what the innermost known frames belong to."""
    text = "\n".join(frames)
    if "launch_core_engines" in text or "run_api_server" in text:
        return "APIServer"
    if "run_engine_core" in text:
        return "EngineCore"
    if "worker_main" in text:
        return "Worker"
    return next((name for name, marks in _PROCESS_MARKS if any(m in text for m in marks)), None)


def level_of(worker: str | None) -> int:
    """Where a process stands: 0 worker, 1 engine core, 2 API server, 3 unknown; a cause is in the lowest."""
    if worker is None:
        return 3
    if "Worker" in worker or worker.startswith(("TP", "PP", "EP", "rank")):
        return 0
    if "EngineCore" in worker or worker.startswith("DP"):
        return 1
    return 2 if "APIServer" in worker or "ApiServer" in worker else 3
