"""From a log to a Diagnosis: outcome, first cause, what contributed, what cures it, what was harmless."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from firstlight.catalog.rules import Rule, titled, version_within
from firstlight.core.diagnosis import Cause, Diagnosis, Evidence, Remedy, Safety, Unknown
from firstlight.diagnose.decide import Decision, decide
from firstlight.diagnose.exits import by_exit, first_error, last_error, tells_of_worker
from firstlight.diagnose.judging import SURE, Judged, said_with
from firstlight.diagnose.likeness import near_by_words, told
from firstlight.diagnose.log import VAGUE, LogReader, read
from firstlight.diagnose.messages import essence
from firstlight.diagnose.noise import speaks_of_error
from firstlight.diagnose.remedies import remedies_of
from firstlight.diagnose.showing import shown, template
from firstlight.diagnose.units import Unit

_SM = re.compile(r"\b(?:sm_?|SM ?)(\d{2,3})[af]?\b")
_CAPABILITY = re.compile(r"compute capability (\d{1,2})\.(\d)")
_WAS_UP = re.compile(r"EngineCore encountered a fatal error|output_handler failed|EngineDeadError: EngineCore encountered")
_WORD = re.compile(r"[a-z_]{5,}")
_BARE = re.compile(r"(?i)\W*(?:fatal )?errors?\W*")  # a heading, no message
SILENT = frozenset({"cause-not-visible", "process-vanished"})  # said where no error was printed: a warning or a murmur may tell more
HIDDEN = SILENT | {"workerproc-load-failed-unknown"}  # where a warning that explains it tells more
NEAR_KEPT = 3
_UNNAMED = frozenset({"cause-not-visible", "workerproc-load-failed-unknown"})  # verdicts beside which a wrapper is all that is seen
_GONE = frozenset({"process-vanished", "process-killed", "process-crashed"})  # that its peers lost it says nothing more
_EARLIER = "an earlier start in this log ended here"
SAME = 60  # characters by which a message is known to be another's
FAINT = 0.5  # confidence below which a wait is not worth a word beside a cause
_EVIDENCE_KEPT = 6
_CONTRIBUTING_KEPT = 8
_TEXT_KEPT = 600
_ASKED = ("host", "port", "kv_cache_dtype")
_LONG_FIELDS = frozenset({"args", "config", "tasks", "capture_plan", "attention_candidates", "aot_path", "compile_cache"})
_ARGUMENT = re.compile(
    r"(?<!\w)'?(?P<name>host|port|ssl_certfile|ssl_keyfile|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|decode_context_parallel_size|max_model_len|max_num_seqs|max_num_batched_tokens|gpu_memory_utilization|num_gpu_blocks_override"
    r"|kv_cache_dtype|quantization|dtype|load_format|moe_backend|attention_backend)'?"
    r"[=:] ?(?P<value>'[^']*'|[\w.]+)"
)


def diagnose(
    log: bytes | Iterable[bytes],
    *,
    engine: str | None = None,
    version: str | None = None,
    exit_status: int | None = None,
    context: Mapping[str, Any] | None = None,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """Reads a log (bytes, or chunks in order) and says why the engine failed, if it did.

    exit_status: the engine process's, negative for a signal. context: facts from outside the log that help (`cgroup_oom_kills`,
    `kernel_log`, and anything that a remedy's value needs, as `max_model_len_that_fits`). rules: instead of the built-in ones; what they
    do not know stays unknown then, its words are not asked.
    """
    reader = read(log, engine, version, rules)
    decision = decide(reader, exit_status)
    facts = _facts(reader, decision, context or {})
    cause, remedies, unknown = _cause(reader, decision, exit_status, facts, context or {})
    return Diagnosis(
        outcome=decision.outcome,
        phase=_phase(reader, decision),
        cause=cause,
        contributing=_contributing(reader, decision, cause),
        remedies=remedies,
        benign=reader.benign_list(without=[e.line for e in cause.evidence] if cause else []),
        facts=facts,
        unknown=unknown,
    )


def _cause(
    reader: LogReader, decision: Decision, exit_status: int | None, facts: dict[str, Any], context: Mapping[str, Any]
) -> tuple[Cause | None, list[Remedy], Unknown | None]:
    first, phase = decision.first, _phase(reader, decision)
    if first is not None and first.rule is not None:
        cause, remedies, _ = _named(first, first.rule, facts, reader, phase)
        return cause, remedies, _unknown(first.seen.unit, reader.rules) if first.rule.priority <= VAGUE else None
    if first is not None:
        return None, [_report()], _unknown(first.seen.unit, reader.rules, near_by_words(told(decision, reader), reader))
    if decision.outcome not in ("failed", "serving-failed"):
        return None, [], _candidate(reader) if decision.outcome == "incomplete" else None
    cause, remedies = by_exit(reader, exit_status, facts, context)
    hint = decision.hint.rule if decision.hint is not None else None
    error = first_error(reader)
    if decision.hint is not None and hint is not None and cause.code in HIDDEN and (error is None or hint.confidence >= SURE):
        return _named(decision.hint, hint, facts, reader, phase)
    if cause.code not in SILENT:
        return cause, remedies, None
    consequence = decision.consequence if cause.code != "process-vanished" or not tells_of_worker(reader) else None
    if consequence is not None and consequence.rule is not None and (error is None or error.line > consequence.line):
        if consequence.rule.stands:
            return _named(consequence, consequence.rule, facts, reader, phase)
        return _only_consequence(cause, consequence), remedies, None
    units = told(decision, reader)
    if error is not None:
        return None, [_report()], _unknown(error, reader.rules, near_by_words(units, reader))
    if not units and reader.spared:
        return cause, remedies, _unknown(reader.spared[-1], reader.rules)
    if not units:
        return cause, remedies, _last_words(reader)
    return cause, remedies, _unknown(units[0], reader.rules, near_by_words(units, reader))


def _named(judged: Judged, rule: Rule, facts: dict[str, Any], reader: LogReader, phase: str | None) -> tuple[Cause, list[Remedy], None]:
    asked = {f"asked_{name}": facts[name] for name in _ASKED if name in facts}
    facts.update(judged.match.facts if judged.match else {})
    facts.update(_generation(judged.seen.unit.text))
    return _as_cause(judged, asked), remedies_of(rule, facts, structs.replace(reader.scene(judged.seen.unit), phase=phase)), None


def _only_consequence(cause: Cause, consequence: Judged) -> Cause:
    """Said of a consequence that is all there is: what it says, and that its reason is not in the text."""
    seen = _as_cause(consequence)
    others = [e for e in cause.evidence if e.line != consequence.line]
    return structs.replace(cause, title=f"{seen.title}; why is not in the log", evidence=[*seen.evidence[:1], *others])


def _generation(text: str) -> dict[str, int]:
    """The GPU generation that a message names (`sm_120`, `SM100`, `compute capability 8.6`), as 120, 100, 86."""
    if m := _SM.search(text):
        return {"sm": int(m[1])}
    if m := _CAPABILITY.search(text):
        return {"sm": int(m[1]) * 10 + int(m[2])}
    return {}


def _as_cause(judged: Judged, asked: Mapping[str, Any] | None = None) -> Cause:
    """asked: what the command line asked for, by names that only titles know (`asked_port`)."""
    rule = judged.rule
    assert rule is not None
    units = [judged.seen.unit, *judged.seen.others]
    title = titled(rule.title, {**(asked or {}), **(judged.match.facts if judged.match else {})})
    return Cause(code=rule.code, title=title, confidence=said_with(judged), evidence=[_evidence(u) for u in units[:_EVIDENCE_KEPT]])


def _evidence(unit: Unit) -> Evidence:
    return Evidence(line=unit.line, text=shown(unit)[:_TEXT_KEPT], worker=unit.worker)


def _contributing(reader: LogReader, decision: Decision, cause: Cause | None) -> list[Cause]:
    found: dict[str, Cause] = {}
    if decision.outcome == "ready" and (death := reader.earlier) is not None:
        before = [Evidence(line=death.line, text=death.text, worker=death.worker)]
        found["wrapper-only"] = Cause(code="wrapper-only", title=_EARLIER, confidence=SURE, evidence=before)
    for judged in decision.others:
        if _says_nothing(judged, reader, cause):
            continue
        item = _as_cause(judged)
        if (cause is None or item.code != cause.code) and item.code not in found:
            found[item.code] = item
    return list(found.values())[:_CONTRIBUTING_KEPT]


def _says_nothing(judged: Judged, reader: LogReader, cause: Cause | None) -> bool:
    """A wrapper, a cause that is only carried on, or a wait of which little is known, beside a named cause; that a peer is gone, beside
    a process that is; and wrappers of a server that was stopped in an orderly way.
    """
    named = cause is not None and cause.code not in _UNNAMED
    if judged.role == "consequence" and cause is not None and cause.code in _GONE:
        return True
    if judged.role == "symptom":
        return named and said_with(judged) < FAINT
    if cause is not None and named and judged.role == "cause" and (carried := essence(judged.seen.unit.text)):
        return carried.split(": ", 1)[-1][:SAME] in cause.evidence[0].text
    stopped = reader.course.ready_line is not None and reader.course.stop_line is not None and judged.line > reader.course.stop_line
    return judged.role == "wrapper" and (named or stopped or judged.line < reader.began)


def _report() -> Remedy:
    return Remedy(
        action="no rule knows this failure: make a report folder with `firstlight report RUN` and post it",
        safety=Safety.NEVER,
        because="the earliest exception is named under `unknown`",
    )


def near(text: str, rules: Sequence[Rule], most: int = NEAR_KEPT) -> list[str]:
    """Codes whose patterns and titles share at least three words of five letters or more with a message, the nearest first."""
    words = set(_WORD.findall(text.lower()))
    shared: dict[str, int] = {}
    for rule in rules:
        if rule.role == "cause":
            own = set(_WORD.findall(" ".join([rule.title, *(p.regex.pattern for p in rule.match)]).lower()))
            shared[rule.code] = max(shared.get(rule.code, 0), len(words & own))
    close = sorted((code for code, count in shared.items() if count >= 3), key=lambda code: -shared[code])
    return close[:most]


def _unknown(unit: Unit, rules: Sequence[Rule], nearest: Sequence[str] = (), more: str = "") -> Unknown:
    """more: the line behind it, where that says what the unit itself does not."""
    where = f" [{unit.worker}]" if unit.worker else ""
    said = f"{shown(unit)} {more}".rstrip()
    text = f"line {unit.line}{where}: {said[:_TEXT_KEPT]}"
    head = unit.head if said == unit.text else said
    return Unknown(first_exception=text, template=template(head), near=list(dict.fromkeys([*nearest, *near(unit.head, rules)]))[:NEAR_KEPT])


def _candidate(reader: LogReader) -> Unknown | None:
    """Of a log that ends without a verdict: the error that it ends in, which may be why it ends."""
    error = last_error(reader)
    if error is None:
        return None
    more = next((text for number, text, _ in reader.last_lines if number > error.last_line), "") if _BARE.fullmatch(shown(error)) else ""
    return _unknown(error, reader.rules, more=more)


def _last_words(reader: LogReader) -> Unknown | None:
    """Where no error was printed either: the last line that speaks of trouble."""
    last = next((text for _, text, _ in reversed(reader.last_lines) if speaks_of_error(text)), None)
    return Unknown(first_exception=None, template=template(last)) if last is not None else None


def _phase(reader: LogReader, decision: Decision) -> str | None:
    first = decision.first
    phase = first.seen.unit.phase if first is not None else reader.course.phase
    at_work = reader.work_line is not None and first is not None and first.line > reader.work_line
    if decision.outcome == "serving-failed" or (at_work and decision.outcome == "failed"):
        return "serving"
    if phase in (None, "spawned") and decision.outcome == "failed":
        phases = first.rule.phases if first is not None and first.rule is not None else ()
        started = "configuring" if reader.course.starts else None
        return _phase_beside(reader, decision) or (phases[0] if len(phases) == 1 else started)
    return phase if phase != "spawned" or reader.course.starts else None


def _phase_beside(reader: LogReader, decision: Decision) -> str | None:
    """What the other tracebacks and the wrappers tell of the phase; None where that is nothing, as in many a paste."""
    if reader.refused_request or any(_WAS_UP.search(j.seen.unit.text) for j in decision.judged):
        return "serving"
    return next((j.seen.unit.phase for j in decision.judged if j.seen.unit.phase not in (None, "spawned")), None)


def _facts(reader: LogReader, decision: Decision, context: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {k: v for k, v in (("engine", reader.engine), ("platform", reader.platform)) if v}
    for name in ("args", "config"):
        for m in _ARGUMENT.finditer(str(reader.course.fields.get(name, ""))):
            facts.setdefault(m["name"], _value(m["value"]))
    facts.update({k: v for k, v in reader.course.fields.items() if k not in _LONG_FIELDS})
    if reader.course.version:
        facts["engine_version"] = reader.course.version
    if reader.engine == "vllm" and reader.course.version:
        facts.setdefault("gpu_memory_utilization", 0.92 if version_within(reader.course.version, ">=0.20.2") else 0.9)
    if reader.course.starts > 1:
        facts["starts"] = reader.course.starts
    if decision.first is not None:
        named = sorted({u.worker for u in (decision.first.seen.unit, *decision.first.seen.others) if u.worker})
        facts["workers"] = named if named else []
    facts["lines"] = reader.lines
    return {**facts, **context}


def _value(text: str) -> Any:
    if text.startswith("'"):
        return text[1:-1]
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text
