"""Asks llama.cpp where a GGUF's memory will go, without allocating it.

Its own fitting step loads the model's shape with no data, reserves the graphs, prints the breakdown, and only then loads. A child
process is let run to that line and no further. Reads {"model", "args", "timeout"} on stdin, writes JSON on stdout.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from inside.ask import child; child(sys.argv[2:])"
_END = re.compile(r"common_fit_params: |common_init_from_params: failed|error loading model|failed to load model|GGML_ASSERT")
_GPU_ROW = re.compile(r"\|\s+- (.+?)\s+\|\s*(\d+) =\s*(\d+) \+ \(\s*(\d+) =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\)")
_HOST_ROW = re.compile(r"\|\s+- (.+?)\s+\|\s*(\d+) =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\s*\|")
_KV = re.compile(r"size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers,.*?K \((\w+)\).*?V \((\w+)\)")
_COMPUTE = re.compile(r"(\S+) compute buffer size =\s*([\d.]+) MiB")
_NUMBER = re.compile(r"llama_context: (n_ctx|n_ctx_seq|n_seq_max|n_batch|n_ubatch)\s+= (\d+)")
MIB = 1 << 20


def main() -> None:
    began = time.monotonic()
    _end_with_asker()
    stdout = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    answer = read(log_of(request))
    answer["seconds"] = round(time.monotonic() - began, 2)
    with os.fdopen(stdout, "w") as out:
        json.dump(answer, out)


def _end_with_asker() -> None:
    """Killed with whoever asks (prctl PR_SET_PDEATHSIG): nobody would read the answer."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def log_of(request: dict[str, Any]) -> list[str]:
    """The child's lines up to the one that ends the fitting step; the child is ended there, or when the time is over."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    argv = [sys.executable, "-I", "-c", _CHILD, folder, "--model", request["model"], "--alias", "asked", "--port", "0", *request["args"]]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    timer = threading.Timer(request["timeout"], process.kill)
    timer.start()
    lines: list[str] = []
    try:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if _END.search(line):
                break
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    return lines


def child(argv: list[str]) -> None:
    """In the child: llama.cpp with the flags of the plan, fitting on, nothing warmed up."""
    import xllamacpp

    from .serve import arguments, parameters

    params = parameters(arguments().parse_args(argv))
    params.fit_params, params.warmup, params.verbosity = True, False, 5  # it says KV and compute sizes at this level only
    xllamacpp.Server(params)


def read(lines: list[str]) -> dict[str, Any]:
    """{devices: [{name, total, free, model, context, compute}], kv, compute, settings, error}: bytes; the first breakdown is the plan's."""
    devices: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"devices": devices, "kv": [], "compute": {}, "settings": {}, "error": None}
    for line in lines:
        if row := _row(line):
            if all(row["name"] != known["name"] for known in devices):
                devices.append(row)
        elif kv := _KV.search(line):
            size, cells, layers, k, v = kv.groups()
            found = {"bytes": round(float(size) * MIB), "cells": int(cells), "layers": int(layers), "k": k, "v": v}
            answer["kv"] += [found] if not devices else []
        elif compute := _COMPUTE.search(line):
            answer["compute"].setdefault(compute[1], round(float(compute[2]) * MIB))
        elif number := _NUMBER.search(line):
            answer["settings"].setdefault(number[1], int(number[2]))
        elif re.search(r"error loading model|failed to load model|GGML_ASSERT|^error: |: error: ", line) and not answer["error"]:
            answer["error"] = line
    _refine(answer)
    return answer


def _refine(answer: dict[str, Any]) -> None:
    """The table has whole MiB; other lines have two decimals: compute buffers by device, and the KV cache where one device has it all."""
    devices, compute = answer["devices"], answer["compute"]
    names = [device["name"].split(" ")[0] for device in devices]
    for name, device in zip(names, devices):  # noqa: B905 - Python 3.9
        own = [size for buffer, size in compute.items() if (buffer if buffer in names else "Host") == name]
        device["compute"] = _finer(device["compute"], sum(own))
    if len(devices) == 1:
        devices[0]["context"] = _finer(devices[0]["context"], sum(group["bytes"] for group in answer["kv"]))


def _finer(whole: int, exact: int) -> int:
    return exact if 0 <= exact - whole < MIB else whole


def _row(line: str) -> dict[str, Any] | None:
    if gpu := _GPU_ROW.search(line):
        total, free, _, model, context, compute = (int(n) * MIB for n in gpu.groups()[1:])
        return {"name": gpu[1], "total": total, "free": free, "model": model, "context": context, "compute": compute}
    if host := _HOST_ROW.search(line):
        _, model, context, compute = (int(n) * MIB for n in host.groups()[1:])
        return {"name": host[1], "total": None, "free": None, "model": model, "context": context, "compute": compute}
    return None
