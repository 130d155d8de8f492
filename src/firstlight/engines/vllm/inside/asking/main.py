"""Reads a request on stdin, answers on stdout. Everything the engine prints goes to stderr.

Request: {"do": "ask" | "sweep", "source": folder of an unpacked wheel or null, "extensions": [files], "gpu": {…} or null, …}.
The answer always is JSON; what went wrong is in `error` with the phase it happened in.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import sys
import time
from typing import Any

from .reach import prepare

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


class OutOfTime(BaseException):
    """Not an Exception, so that no `except Exception` of the engine swallows it."""


def main() -> None:
    began = time.monotonic()
    _end_with_asker()
    stdout = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    answer: dict[str, Any] = {"phase": "start"}
    try:
        _limit(request)
        answer_to(request, answer)
        answer["phase"] = "done"
    except BaseException as e:
        answer["error"] = _error(e)
    answer["seconds"] = round(time.monotonic() - began, 2)
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with os.fdopen(stdout, "w") as out:
        json.dump(answer, out, default=str)
        out.flush()
    os._exit(0)


def _end_with_asker() -> None:
    """Killed with whoever asks (prctl PR_SET_PDEATHSIG): nobody would read the answer."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def answer_to(request: dict[str, Any], answer: dict[str, Any]) -> None:
    os.environ.update(QUIET)
    if request.get("cache_root"):  # releases write notes about models there, and misread each other's
        os.environ["VLLM_CACHE_ROOT"] = request["cache_root"]
    if request.get("device") == "cpu":
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    if request["do"] == "kernels":
        from . import kernels

        answer["phase"] = "kernels"
        answer["cells"], answer["late"], answer["problems"] = kernels.kernel_cells(request)
        return
    answer["phase"] = "import"
    platform = prepare(request)
    answer["version"] = _version()
    if request["do"] == "ask":
        from . import question

        question.ask(request, platform, answer)
    elif request["do"] == "sweep":
        from . import sweep

        answer["phase"] = "sweep"
        answer["cells"], answer["problems"] = sweep.attention_cells(platform)
        answer["kv_cache_dtypes"] = sweep.cache_dtypes()


def _version() -> str | None:
    try:
        from vllm.version import __version__
    except Exception:
        return None
    return str(__version__)


def _limit(request: dict[str, Any]) -> None:
    """A wall-clock limit, and one on memory that the process may write to (address space alone means little with torch)."""

    def late(signum: int, frame: Any) -> None:
        raise OutOfTime(f"no answer within {request['timeout']} s")

    if request.get("timeout"):
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, float(request["timeout"]))
    if request.get("memory_limit_bytes"):
        limit = int(request["memory_limit_bytes"])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _error(error: BaseException) -> dict[str, Any]:
    """The exception as the engine raised it, its first cause, and where in its own code, innermost last."""
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/vllm/" in f.filename or "/asking/" in f.filename][-5:]
    places = [(re.sub(r"^.*/(?=vllm/|asking/)", "", f.filename), f.lineno, f.name) for f in frames]
    return {
        "type": type(error).__name__,
        "message": str(error),
        "frames": [f"{file}:{line} {name}" for file, line, name in places],
    }
