"""What the way a process ended says when its text says nothing: signals, exit codes, the kernel's OOM killer."""

import re
from collections.abc import Mapping
from typing import Any

from firstlight.core.diagnosis import Cause, Evidence, Remedy, Safety
from firstlight.diagnose.decide import Decision
from firstlight.diagnose.log import LogReader

_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_FAILED_PROCS = re.compile(r"Failed core proc\(s\): \{(?P<procs>[^}]*)\}")
_CODE = re.compile(r": (-?\d+)")


def signal_of(reader: LogReader, exit_status: int | None) -> tuple[int | None, Evidence | None]:
    """The signal that ended the first process that died of one, and where the log says so."""
    for death in reader.died:
        codes = [int(c) for c in _CODE.findall(m["procs"])] if (m := _FAILED_PROCS.search(death.text)) else []
        code = death.fields.get("exit_code")
        codes += [int(code)] if code is not None else []
        for value in codes:
            if value < 0 or value in (132, 134, 135, 137, 139):
                return abs(value) if value < 0 else value - 128, Evidence(line=death.line, text=death.text, worker=death.worker)
    if exit_status is not None and (exit_status < 0 or 128 < exit_status < 160):
        return (-exit_status if exit_status < 0 else exit_status - 128), None
    return None, None


def by_exit(
    reader: LogReader, decision: Decision, exit_status: int | None, facts: dict[str, Any], context: Mapping[str, Any]
) -> tuple[Cause, list[Remedy]]:
    """The cause by exit codes, or `cause-not-visible` with what to collect. Never a guess above what the code proves."""
    signal, evidence = signal_of(reader, exit_status)
    seen = [evidence] if evidence else [Evidence(line=d.line, text=d.text, worker=d.worker) for d in reader.died[:2]]
    if signal is not None:
        facts["signal"] = _SIGNALS.get(signal, f"signal {signal}")
    if signal == 9 or context.get("cgroup_oom_kills") or context.get("kernel_log"):
        return _killed(seen, context)
    if signal in (4, 6, 7, 8, 11):
        return _crashed(signal, seen)
    return _not_visible(seen or _last(reader))


def _killed(seen: list[Evidence], context: Mapping[str, Any]) -> tuple[Cause, list[Remedy]]:
    if context.get("cgroup_oom_kills") or "ut of memory" in str(context.get("kernel_log", "")):
        cause = Cause(code="host-ram-oom", title="the kernel killed the process: host memory ran out", confidence=0.95, evidence=seen)
        return cause, [
            _do("give the host or the container more memory, or load with fewer processes at once", "the kernel counted an OOM kill")
        ]
    cause = Cause(code="process-killed", title="a process was killed from outside (SIGKILL)", confidence=0.7, evidence=seen)
    return cause, [
        _do(
            "look for an OOM kill: `dmesg -T | grep -iE 'out of memory|oom-kill'` or `journalctl -k`",
            "SIGKILL leaves no text; the kernel's OOM killer and a container's memory limit are the usual senders",
        ),
        _do("check the memory limit of the container or service and free host memory", "loading needs host memory besides the GPU's"),
    ]


def _crashed(signal: int, seen: list[Evidence]) -> tuple[Cause, list[Remedy]]:
    name = _SIGNALS[signal]
    cause = Cause(code="process-crashed", title=f"a process crashed in native code ({name})", confidence=0.7, evidence=seen)
    remedies = [_do("start again with PYTHONFAULTHANDLER=1 to see where", f"{name} leaves no Python traceback")]
    if signal == 7:
        remedies.insert(
            0, _do("enlarge /dev/shm (docker: --ipc=host or --shm-size=16g)", "SIGBUS is what a full shared memory filesystem gives")
        )
    if signal == 4:
        remedies.insert(0, _do("use a build for this CPU", "SIGILL is an instruction that this CPU does not have"))
    return cause, remedies


def _not_visible(seen: list[Evidence]) -> tuple[Cause, list[Remedy]]:
    cause = Cause(code="cause-not-visible", title="the log does not show what went wrong", confidence=0.9, evidence=seen)
    return cause, [
        _do("collect the whole output of all workers, from the start", "the lines shown only say that something failed elsewhere"),
        _do("collect the exit status and `dmesg -T | tail -50`", "a killed process prints nothing"),
        _do("start again with VLLM_LOGGING_LEVEL=DEBUG and, for several GPUs, NCCL_DEBUG=INFO", "the cause may be printed there"),
    ]


def _last(reader: LogReader) -> list[Evidence]:
    return [Evidence(line=n, text=text, worker=worker) for n, text, worker in reader.last_lines[-2:]]


def _do(action: str, because: str) -> Remedy:
    return Remedy(action=action, safety=Safety.NEVER, because=because)
