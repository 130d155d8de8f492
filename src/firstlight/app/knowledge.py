"""What healing has learned about a model on a machine: the constraints that made it ready are the next plan's own. Shown, and removable.

A lesson holds for the very files, GPUs and engine build that taught it, and gives way to what the user asks for now, unless that is
what failed then or lies beyond the limit that was found.
"""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.app.places import state_folder
from firstlight.app.session import Session
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.ids import digest
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Constraint
from firstlight.engines.command import option_value

LIMITS = frozenset({"max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"})
LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class Lesson(Struct, frozen=True, kw_only=True):
    """tried: the values of the constraints' fields in the plan that failed first; layout: of the plan that became ready.

    consents: field -> name of the consent that it needed, and needs again. machine, engine: for people. run: the run that learned it.
    """

    id: str
    model: str
    machine: str
    engine: str
    constraints: list[Constraint]
    tried: dict[str, Any] = {}
    layout: dict[str, int] = {}
    consents: dict[str, str] = {}
    run: str
    learned: float


def learn(session: Session, healed: Sequence[Constraint], tried: dict[str, Any], consents: dict[str, str]) -> Lesson | None:
    """Writes what made the run ready after a failure; None where nothing but the port was changed, or where it cannot be written."""
    kept = [c for c in healed if c.field != "port"]
    if not kept or session.machine is None or session.install is None or session.folder is None:
        return None
    key = _key(session, session.machine, session.install)
    before = _read(_path(key))
    earlier = [c for c in before.constraints if c.field not in {k.field for k in kept}] if before else []
    lesson = Lesson(
        id=key,
        model=session.model.ref,
        machine=f"{session.host.name}: {_gpus(session.machine)}",
        engine=f"{session.install.engine} {session.install.version or ''}".strip(),
        constraints=[*earlier, *kept],
        tried={**(before.tried if before else {}), **tried},
        layout={name: getattr(session.best, name) for name in LAYOUT},
        consents={**(before.consents if before else {}), **consents},
        run=session.folder.path.name,
        learned=time.time(),
    )
    return lesson if _write(lesson) else None


def recall(session: Session) -> list[Constraint]:
    """The constraints of an earlier run of this model, machine and engine build that this request does not speak against."""
    if session.machine is None or session.install is None:
        return []
    lesson = _read(_path(_key(session, session.machine, session.install)))
    if lesson is None or any(lesson.layout.get(n) != v for n in LAYOUT if (v := asked(session.intent, n)) is not None):
        return []
    known = [c for c in lesson.constraints if _holds(c, lesson.tried.get(c.field), asked(session.intent, c.field))]
    return [_told(c, lesson) for c in known if _allowed(session, lesson, c)]


def _allowed(session: Session, lesson: Lesson, constraint: Constraint) -> bool:
    """What needed a yes needs it again: nothing about quality or security changes by memory alone."""
    name = lesson.consents.get(constraint.field)
    if name is None:
        return True
    question = f"Change {constraint.field} to {constraint.value}, as run {lesson.run} did?"
    return session.consent.given(name, question, evidence=(constraint.because,))


def _told(constraint: Constraint, lesson: Lesson) -> Constraint:
    return msgspec.structs.replace(constraint, because=f"{constraint.because} (learned by run {lesson.run})")


def _holds(constraint: Constraint, failed: Any, wanted: Any) -> bool:
    """Nothing was asked for, or what failed then, or more than the limit that was found."""
    if wanted is None or str(wanted) == str(failed):
        return True
    if constraint.field not in LIMITS or constraint.value is None:
        return False
    with suppress(TypeError, ValueError):
        return float(wanted) > float(constraint.value)
    return False


def asked(intent: Intent, field: str) -> Any:
    """What the user names for a field: its own flag, or the engine's flag after `--`."""
    own = getattr(intent.pins, field, None)
    return own if own is not None else option_value(intent.extra_args, "--" + field.lstrip("-").replace("_", "-"))


def lessons() -> list[Lesson]:
    """All of them, newest first."""
    found = [lesson for path in _root().glob("*.json") if (lesson := _read(path)) is not None]
    return sorted(found, key=lambda lesson: -lesson.learned)


def unreadable() -> list[Path]:
    """Files that are no lessons (any more): nothing is known by them, and their models are learned anew."""
    return sorted(path for path in _root().glob("*.json") if _read(path) is None)


def forget(ids: Sequence[str]) -> list[Lesson]:
    """Removes lessons by id or its beginning; returns them. Raises UsageError `no-such-lesson`, and nothing is removed then;
    FirstlightError `knowledge-unwritable`.
    """
    known = lessons()
    chosen = {i: [lesson for lesson in known if lesson.id.startswith(i)] for i in ids}
    if missing := sorted(i for i, found in chosen.items() if len(found) != 1):
        raise UsageError("no-such-lesson", "no lesson has this id", evidence=tuple(missing), hint="firstlight knowledge list")
    removed = list({lesson.id: lesson for found in chosen.values() for lesson in found}.values())
    remove([_path(lesson.id) for lesson in removed])
    return removed


def remove(paths: Sequence[Path]) -> None:
    """Raises FirstlightError `knowledge-unwritable`."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise FirstlightError("knowledge-unwritable", "a lesson cannot be removed", evidence=(f"{path}: {e.strerror}",)) from None


def _key(session: Session, machine: Machine, install: EngineInstall) -> str:
    """The same files, GPUs and engine build give the same id."""
    model, wanted = session.model, session.intent.gpus
    gpus = [[a.name, a.cuda_total_bytes, a.mig] for a in machine.accelerators if wanted is None or a.index in wanted]
    build = [install.engine, install.version, install.build]
    return digest([sorted(model.files.items()), model.config, gpus, machine.hostname, build])


def _gpus(machine: Machine) -> str:
    names = [a.name for a in machine.accelerators]
    return " + ".join(f"{names.count(n)}x {n}" for n in sorted(set(names))) or "no GPU"


def _root() -> Path:
    return state_folder() / "knowledge"


def _path(key: str) -> Path:
    return _root() / f"{key}.json"


def _read(path: Path) -> Lesson | None:
    """None where there is none, or where it cannot be read or belongs elsewhere: then it is learned again."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Lesson)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if found.id == path.stem else None


def _write(lesson: Lesson) -> bool:
    path = _path(lesson.id)
    temporary = path.with_suffix(f".{hashlib.sha256(lesson.run.encode()).hexdigest()[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(lesson)))
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True


def recall_into(session: Session) -> list[Constraint]:
    """Recalls before the first plan of a run; says what it knows, and by which run."""
    known = recall(session)
    for constraint in known:
        value = "unset" if constraint.value is None else constraint.value
        session.emitter.emit("say", text=f"known here: {constraint.field} {constraint.op} {value}, because {constraint.because}")
    return known
