"""What the way a process ended says when its text says nothing: signals, exit codes, the kernel's OOM killer."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from firstlight.catalog.rules import Rule, rule_of, titled
from firstlight.core.diagnosis import Cause, Evidence, Remedy
from firstlight.diagnose.log import LogReader
from firstlight.diagnose.noise import is_frame_of_file, speaks_of_error
from firstlight.diagnose.processes import level_of
from firstlight.diagnose.remedies import remedies_of
from firstlight.diagnose.units import Unit

_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_CRASHES = frozenset({4, 6, 7, 8, 11})
_PROVEN = 0.95
_FAILED_PROCS = re.compile(r"Failed core proc\(s\): \{(?P<procs>[^}]*)\}")
_CODE = re.compile(r": (-?\d+)")
_OF_WORKER = re.compile(r"WorkerProc initialization failed|[Ww]orker ?[Pp]roc \S+ died unexpectedly")
_INTERRUPTS = frozenset({"KeyboardInterrupt", "KeyboardInterrupt: terminated"})
LAST_LINES = 5
CUT = "a traceback breaks off in the log: what was raised is not in it"
_KERNEL = re.compile(r"ut of memory|oom-kill", re.IGNORECASE)


def signal_of(reader: LogReader, exit_status: int | None) -> tuple[int | None, Evidence | None]:
    """The signal that ended the first process that died of one, and where the log says so; SIGTERM came from the parent."""
    for death in reader.course.died:
        codes = [int(c) for c in _CODE.findall(m["procs"])] if (m := _FAILED_PROCS.search(death.text)) else []
        code = death.fields.get("exit_code")
        codes += [int(code)] if code is not None else []
        for value in codes:
            if (number := _signal(value)) is not None and number != 15:
                return number, Evidence(line=death.line, text=death.text, worker=death.worker)
    return (_signal(exit_status) if exit_status is not None else None), None


def _signal(status: int) -> int | None:
    """-9 and 137 are signal 9; other statuses are none."""
    if status < 0:
        return -status
    return status - 128 if 128 < status < 160 else None


def by_exit(reader: LogReader, exit_status: int | None, facts: dict[str, Any], context: Mapping[str, Any]) -> tuple[Cause, list[Remedy]]:
    """The cause by exit codes, or `cause-not-visible` with what to collect. Never more than what the code proves."""
    signal, evidence = signal_of(reader, exit_status)
    seen = [evidence] if evidence else [Evidence(line=d.line, text=d.text, worker=d.worker) for d in reader.course.died[:2]]
    if signal is not None:
        facts["signal"] = _SIGNALS.get(signal, f"signal {signal}")
    if context.get("cgroup_oom_kills") or _KERNEL.search(str(context.get("kernel_log", ""))):
        return _made(reader, rule_of("host-ram-oom"), seen, facts, confidence=_PROVEN)
    if signal == 9:
        return _made(reader, rule_of("process-killed"), seen, facts)
    if _told_to_stop(reader, signal):
        told = reader.course.signal
        pressed = _interrupt(reader) if told is None else None
        stop = [Evidence(line=told.line, text=told.text, worker=told.worker)] if told else []
        stop += [Evidence(line=pressed.line, text=pressed.head, worker=pressed.worker)] if pressed else []
        return _made(reader, rule_of("stopped-while-starting"), [*stop, *seen], facts)
    if signal in _CRASHES:
        return _made(reader, rule_of("process-crashed"), seen, facts)
    torn = _cut_at(reader)
    if torn is not None and any("load_model" in text for text in reader.frame_texts):
        return _made(reader, rule_of("workerproc-load-failed-unknown"), [torn], facts)
    if _vanished(reader):
        return _made(reader, rule_of("process-vanished"), seen, facts)
    cause, remedies = _made(reader, rule_of("cause-not-visible"), seen or _last(reader), facts)
    if torn is None or not is_frame_of_file(torn.text):
        return cause, remedies
    return structs.replace(cause, title=CUT, evidence=[torn, *[e for e in cause.evidence if e.line < torn.line]]), remedies


def _cut_at(reader: LogReader) -> Evidence | None:
    """The last frame of a traceback that has no exception in the log."""
    if reader.frame_line is None:
        return None
    frames = [text.strip() for text in reader.frame_texts]
    where = next((text for text in reversed(frames) if is_frame_of_file(text)), frames[-1])
    return Evidence(line=reader.frame_line, text=where, worker=None)


def first_error(reader: LogReader) -> Unit | None:
    """The first line that was printed as an error, or by native code as one, and that no rule knows."""
    return next((s.unit for s in reader.seen if not s.matches and s.unit.kind == "line"), None)


def last_error(reader: LogReader) -> Unit | None:
    """The first error of those that stand among the last lines of the log, logged as one or in words that only errors have."""
    units = [s.unit for s in reader.seen if not s.matches] + [u for u in reader.murmurs if speaks_of_error(u.text)]
    ending = [u for u in units if reader.last_lines and u.last_line >= reader.last_lines[-LAST_LINES:][0][0]]
    return min(ending, key=lambda u: u.line, default=None)


def tells_of_worker(reader: LogReader) -> bool:
    """Whether the engine core itself says that a worker is gone: what it failed of then is only what came of that."""
    return any(_OF_WORKER.search(seen.unit.text) for seen in reader.seen)


def _vanished(reader: LogReader) -> bool:
    """Whether a worker or the engine core was there, printed no error of its own, and was found dead: it was killed or it crashed.

    Only where the log holds the start; a status that a process chose itself (1, 2) means that it said something somewhere, except of an
    engine core that says that a worker is gone.
    """
    below = [worker for worker in reader.course.phases if level_of(worker) < 2]
    lower = [seen for seen in reader.seen if level_of(seen.unit.worker) < 2]
    told = tells_of_worker(reader)
    passing = {"wrapper", "consequence"} if told else {"wrapper"}
    status = [int(c) for d in reader.course.died if (m := _FAILED_PROCS.search(d.text)) for c in _CODE.findall(m["procs"])]
    chose = not told and any(0 < code < 128 for code in status)
    spoke = any(not any(m.rule.role in passing for m in seen.matches) for seen in lower)
    return bool(reader.course.starts and below and reader.course.died) and not chose and not spoke and first_error(reader) is None


def _told_to_stop(reader: LogReader, signal: int | None) -> bool:
    """A stop before ready with no error before it."""
    if reader.course.ready_line is not None:
        return False
    told = _interrupt(reader)
    errors = [s.unit for s in reader.seen if s.unit.logged in ("ERROR", "CRITICAL") or s.unit.kind == "exception"]
    first_error = min((unit.line for unit in errors if unit is not told), default=None)
    line = reader.course.signal.line if reader.course.signal is not None else told.line if told is not None else None
    if line is not None:
        return first_error is None or line < first_error
    return signal in (2, 15) and first_error is None


def _interrupt(reader: LogReader) -> Unit | None:
    """The first `KeyboardInterrupt` of a person (Ctrl-C, without words) or of the front end's handler of SIGTERM; one with other words was
    raised by the engine's own code.
    """
    units = (s.unit for s in reader.seen if s.unit.type == "KeyboardInterrupt")
    return next((unit for unit in units if unit.head.strip(" :") in _INTERRUPTS), None)


def _made(
    reader: LogReader, rule: Rule, seen: list[Evidence], facts: Mapping[str, Any], *, confidence: float | None = None
) -> tuple[Cause, list[Remedy]]:
    cause = Cause(code=rule.code, title=titled(rule.title, facts), confidence=confidence or rule.confidence, evidence=seen)
    return cause, remedies_of(rule, facts, reader.scene())


def _last(reader: LogReader) -> list[Evidence]:
    return [Evidence(line=n, text=text, worker=worker) for n, text, worker in reader.last_lines[-2:]]
