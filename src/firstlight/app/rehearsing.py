"""The hands of the rehearsal: starts a launch under a supervisor, watches it, asks one completion, stops it, and tells what was seen."""

import json
import posixpath
import queue
import threading
import time
from typing import Any

import msgspec

from firstlight.app.session import Session
from firstlight.app.stages import start as starting
from firstlight.app.stages.failing import EngineFailed
from firstlight.app.stages.hearing import through_cuts
from firstlight.app.stages.ports import rehearsal_port
from firstlight.app.whole import whole
from firstlight.core.answer import RehearsalReport
from firstlight.core.diagnosis import Cause, Diagnosis, Remedy, Safety
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.findings import Severity
from firstlight.core.plan import Candidate
from firstlight.core.ports import Host
from firstlight.core.run import LaunchSpec, RunState
from firstlight.core.units import format_seconds, gib
from firstlight.diagnose.diagnose import diagnose
from firstlight.engines.vllm.rehearsal import on_port
from firstlight.launch.client import Options, SupervisorClient, SupervisorEvent, python_of, start
from firstlight.rehearse.decide import decide
from firstlight.rehearse.rehearse import Observation, Observe, rehearse
from firstlight.watch.eta import phase_seconds
from firstlight.watch.state import EngineLog

LOOK_SECONDS = 0.2
ANSWER_SECONDS = 120.0
DEATH_SECONDS = 10.0
GRACE_ELSEWHERE_SECONDS = 30.0  # for a connection that was cut to come back; a killed rehearsal ends there after it
PORT_TAKEN = "port-in-use"
PORT_TRIES = 4
INCONCLUSIVE = frozenset({"supervisor-killed", "rehearsal-too-slow", "rehearsal-unsupported"})
ASK = """
import json, sys, urllib.request
base, body, limit = sys.argv[1], sys.argv[2].encode(), float(sys.argv[3])
def read(path, data=None):
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=limit) as answer: return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as e: return e.code, e.read().decode("utf-8", "replace")[:500]
    except Exception as e: return None, f"{type(e).__name__}: {e}"
metrics = read("/metrics")
print(json.dumps(dict(metrics=metrics[1] if metrics[0] == 200 else "", completion=read("/v1/completions", body))))
"""


async def rehearse_stage(session: Session, *, beside_download: bool = False) -> str:
    """The stage of `up`: decides, rehearses, and leaves the report in the session.

    Raises EngineFailed where the plan is refuted and the cause is known, so that healing plans around it before weights are read.
    """
    if session.rehearsal is not None and session.attempt == 1:
        return "done while the weights downloaded"
    missing = beside_download or session.model.path is None
    decision = decide(session.options.rehearse, candidate=session.best, weights_missing=missing, engine=session.best.engine.name)
    if not decision.rehearse:
        return f"not needed: {decision.because}"
    session.emitter.emit("say", text=f"rehearsing: {decision.because}")
    if session.folder:
        session.folder.update(state=RunState.REHEARSING)
    diagnoses: list[Diagnosis] = []
    report = await rehearse_plan(session, depth="auto", diagnoses=diagnoses)
    refuted = diagnoses[-1] if diagnoses else too_long(session.best, report)
    if not report.passed and refuted is not None and refuted.cause is not None:
        raise EngineFailed(refuted, evidence=tuple(e.text for e in refuted.cause.evidence[:4]), hint=None)
    session.add([msgspec.structs.replace(f, severity=Severity.WARNING) for f in report.findings])  # the real start decides
    return summary(report)


def too_long(candidate: Candidate, report: RehearsalReport) -> Diagnosis | None:
    """An extrapolated KV cache that holds no request of the planned length, as a diagnosis with its remedy; None for anything else."""
    if not report.extrapolated or report.kv_tokens is None or (candidate.max_model_len or 0) <= report.kv_tokens:
        return None
    fits = report.kv_tokens // 1024 * 1024
    because = f"the rehearsal's line gives {report.kv_tokens:,} tokens of KV cache"
    remedy = Remedy(change={"max_model_len": fits}, safety=Safety.SAFE, because=because, source="rehearsal")
    cause = Cause(code="context-does-not-fit", title=report.refusal or "the context does not fit", confidence=0.9)
    return Diagnosis(outcome="failed", cause=cause, remedies=[remedy] if fits > 0 else [])


async def rehearse_plan(
    session: Session, *, depth: str, patience: float = 900.0, diagnoses: list[Diagnosis] | None = None
) -> RehearsalReport:
    """Rehearses the session's plan with its final flags and the overlay's path, so that the launch meets the same compile cache."""
    if session.folder is None or session.machine is None or session.install is None:
        raise FirstlightError("no-run-folder", "a rehearsal needs a run folder, a machine and an engine")
    spec, found = starting.make_launch(session), [] if diagnoses is None else diagnoses
    folder, stop = session.folder.run.host_folder or str(session.folder.path), threading.Event()
    observe = observer(session.host, folder, version=session.install.version, diagnoses=found, stop=stop)
    report = await whole(
        rehearse,
        spec,
        checkpoint=session.model,
        candidate=session.best,
        machine=session.machine,
        install=session.install,
        config=_config(session.host, spec.model_path),
        observe=on_free_ports(session, observe, found),
        port=rehearsal_port(session),
        depth=depth,
        patience=patience,
        on_cancel=stop.set,
    )
    session.rehearsal = report
    session.save(report, "rehearsal.json")
    return report


def on_free_ports(session: Session, observe: Observe, diagnoses: list[Diagnosis]) -> Observe:
    """A port that somebody else took between the look and the start says nothing of the plan: the start is made again on another."""

    def again(spec: LaunchSpec, patience: float) -> Observation:
        tried, known = [spec.port], len(diagnoses)
        seen = observe(spec, patience)
        while seen.code == PORT_TAKEN and len(tried) < PORT_TRIES:
            del diagnoses[known:]
            tried.append(rehearsal_port(session, tried=tried))
            session.emitter.emit("say", text=f"the rehearsal's port {spec.port} is taken ({seen.refusal}): another, {tried[-1]}")
            spec = on_port(spec, tried[-1])
            seen = observe(spec, patience)
        return seen

    return again


def _config(host: Host, model_path: str | None) -> dict[str, Any]:
    """config.json as it stands in the folder that the engine is given; {} where there is none."""
    try:
        found = json.loads(host.read(posixpath.join(model_path or "", "config.json")))
    except (HostError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def observer(host: Host, folder: str, *, version: str | None, diagnoses: list[Diagnosis], stop: threading.Event | None = None) -> Observe:
    """Each observed start has a folder of its own under `FOLDER/rehearsal/` and ends with this process. Failures add to `diagnoses`.

    stop: once set, the start that is observed ends, and no other begins.
    """
    count, stop = 0, stop or threading.Event()

    def observe(spec: LaunchSpec, patience: float) -> Observation:
        nonlocal count
        if stop.is_set():
            return Observation(ready=False, seconds=0.0, log=b"", refusal="interrupted")
        count += 1
        path = posixpath.join(folder, "rehearsal", str(count))
        options = Options(held=True, hold_grace_seconds=0.0 if host.is_local else GRACE_ELSEWHERE_SECONDS)
        client = start(host, folder=path, spec=spec, options=options, run=f"{posixpath.basename(folder)}-rehearsal-{count}")
        try:
            return _watch(client, spec, patience, version, diagnoses, stop)
        finally:
            client.stop()

    return observe


def _watch(
    client: SupervisorClient, spec: LaunchSpec, patience: float, version: str | None, diagnoses: list[Diagnosis], stop: threading.Event
) -> Observation:
    begun, log, data = time.monotonic(), EngineLog(spec.engine, version), b""
    events = _events(client)
    ending: SupervisorEvent | None = None
    gone = False
    while ending is None and not gone and time.monotonic() - begun < patience and not stop.is_set():
        try:
            event = events.get(timeout=LOOK_SECONDS)
            gone = event is None
            ending = event if event is not None and event.kind in ("ready", "died", "failed", "port-stolen") else None
        except queue.Empty:
            pass
        piece = _read(client, len(data))
        data += piece
        log.feed(piece, time.time())
    seconds = time.monotonic() - begun
    if stop.is_set():
        return Observation(ready=False, seconds=seconds, log=data, refusal="interrupted")
    if ending is not None and ending.kind == "ready":
        return _ready(client, spec, data, log, seconds, diagnoses)
    data += _read(client, len(data))
    if ending is not None and ending.kind == "port-stolen":
        return Observation(ready=False, seconds=seconds, log=data, refusal=f"held by {ending.data.get('holder')}", code=PORT_TAKEN)
    if gone:
        return Observation(ready=False, seconds=seconds, log=data, refusal="somebody ended its supervisor", code="supervisor-killed")
    if ending is None:
        return Observation(ready=False, timed_out=True, seconds=seconds, log=data)
    return _failed(client, spec, data, seconds, version, diagnoses, phases=phase_seconds(log))


def _events(client: SupervisorClient) -> "queue.Queue[SupervisorEvent | None]":
    """The supervisor's events as they come; None when it is gone."""
    found: queue.Queue[SupervisorEvent | None] = queue.Queue()

    def follow() -> None:
        for event in through_cuts(client, hold=True):
            found.put(event)
        found.put(None)

    threading.Thread(target=follow, name="rehearsal-events", daemon=True).start()
    return found


def _read(client: SupervisorClient, position: int) -> bytes:
    try:
        return client.host.read(posixpath.join(client.folder, "engine.log"), position)
    except HostError:
        return b""


def _ready(
    client: SupervisorClient, spec: LaunchSpec, data: bytes, log: EngineLog, seconds: float, diagnoses: list[Diagnosis]
) -> Observation:
    """Asks one completion: some engines are ready and die of their first request."""
    body = {"model": spec.served_model_name, "prompt": "1 2 3", "max_tokens": 4, "temperature": 0}
    address = f"http://127.0.0.1:{spec.port}"
    argv = [python_of(client.host), "-c", ASK, address, json.dumps(body), str(ANSWER_SECONDS)]
    try:
        answer = json.loads(client.host.run(argv, timeout=ANSWER_SECONDS * 2).stdout)
    except (FirstlightError, ValueError) as e:
        answer = {"metrics": "", "completion": [None, str(e)]}
    status, text = answer["completion"]
    if status != 200:
        _wait_for_death(client)
    more = _read(client, len(data))
    log.feed(more, time.time())
    seen = Observation(ready=True, answered=status == 200, seconds=seconds, log=data + more, metrics=answer["metrics"])
    seen = msgspec.structs.replace(seen, phase_seconds=phase_seconds(log))
    if seen.answered:
        return seen
    failed = _failed(client, spec, data + more, seconds, log.version, diagnoses, phases=seen.phase_seconds)
    return msgspec.structs.replace(seen, refusal=failed.refusal or f"its first completion: {status} {text[:200]}", code=failed.code)


def _wait_for_death(client: SupervisorClient) -> None:
    """An engine that dies of a request needs a moment to say why and to be gone; one that only answers wrongly stays."""
    until = time.monotonic() + DEATH_SECONDS
    while time.monotonic() < until and client.exit() is None:
        time.sleep(LOOK_SECONDS)


def _failed(
    client: SupervisorClient,
    spec: LaunchSpec,
    data: bytes,
    seconds: float,
    version: str | None,
    diagnoses: list[Diagnosis],
    *,
    phases: dict[str, float],
) -> Observation:
    exit_record = client.exit() or {}
    oom = {"cgroup_oom_kills": 1} if exit_record.get("oom_killed") else {}
    found = diagnose(data, engine=spec.engine, version=version, exit_status=exit_record.get("returncode"), context=oom)
    diagnoses.append(found)
    cause = found.cause
    text = exit_record.get("message") or (f"{cause.title}" if cause else None)
    return Observation(
        ready=False, seconds=seconds, log=data, phase_seconds=phases, refusal=text, code=cause.code if cause else exit_record.get("reason")
    )


def summary(report: RehearsalReport) -> str:
    """One line: passed or not, at which depth, and the two figures that matter."""
    took = format_seconds(report.seconds)
    if any(f.code in INCONCLUSIVE for f in report.findings):
        return f"nothing learned in {took}: {report.refusal}"
    if not report.passed:
        return f"refuted in {took}: {report.refusal}"
    depth = f"{report.depth} layers and the line through them" if report.extrapolated else "full depth"
    weights = report.per_gpu.weights.mid if report.per_gpu else None
    tokens = f", {report.kv_tokens:,} KV tokens" if report.kv_tokens is not None else ""
    return f"passed in {took} ({depth}): weights {gib(weights)}{tokens}"
