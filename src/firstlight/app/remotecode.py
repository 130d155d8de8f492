"""Python that comes with a model: every file shown with its hash, run only with a yes, pinned to what was shown."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firstlight.app.session import Session
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.ports import Source
from firstlight.engines.command import has_option

FLAG = "--trust-remote-code"
RECORD = "remote-code.txt"
_NAMING = re.compile(r"(?:^|/)[\w-]*config\.json$")
_HASHED = re.compile(r"(?P<name>.+)  sha256 (?P<sha256>[0-9a-f]{64})$")


def consent_to_remote_code(session: Session) -> None:
    """Returns where the plan runs no such code, or may.

    Raises ConsentError (exit 8), which names `--allow remote-code`; and `--allow unpinned-code`, whatever else was said, for code that a
    config loads from another repository: nothing here can show or pin it.
    """
    if not has_option([*session.best.args, *session.intent.extra_args], FLAG):
        return
    source, where = _source(session)
    others = sorted(_other_repositories(source))
    evidence = _evidence(session, source, where, others)
    if session.folder is not None:
        session.folder.write(RECORD, "\n".join([*evidence, ""]).encode())
    session.emitter.emit("remote-code", files=evidence)
    if others:
        session.consent.require("unpinned-code", f"Run Python of {', '.join(others)}, as it is at that moment?", evidence=tuple(evidence))
    if session.intent.trust_remote_code or has_option(session.intent.extra_args, FLAG):
        return
    session.consent.require("remote-code", f"Run the Python that comes with {session.intent.model}?", evidence=tuple(evidence))
    session.consent.allowed |= {"remote-code"}


def _source(session: Session) -> tuple[Source, str | None]:
    """The model's files, and the folder that they are in (None: a hub's)."""
    from firstlight.app.elsewhere import hub_environ, only_here
    from firstlight.inspect.sources import open_source
    from firstlight.probe.local import LocalHost

    here = None if session.model.path else only_here(session.intent.model, session.host)
    where = here or session.model.path
    host = LocalHost() if here else session.host
    return open_source(where or session.intent.model, host, env=hub_environ(session.host)), where


def _evidence(session: Session, source: Source, where: str | None, others: list[str]) -> list[str]:
    """A line a file with its sha256 (what `auto_map` names may import any other file beside it), and what pins them."""
    pinned = session.model.revision or (f"the files in {where}" if where else "nothing: the code can change")
    names = {*session.model.trust_remote_code.files, *(f.path for f in source.list() if f.path.endswith(".py"))}
    lines = [*(_line(source, n) for n in sorted(names)), f"pinned by {pinned}"]
    return lines + [f"not pinned: Python of the repository {o}" for o in others]


def _other_repositories(source: Source) -> Iterator[str]:
    """`auto_map` may say `org/other--module.Class`: that repository's newest code is run."""
    for name in {f.path for f in source.list() if _NAMING.search(f.path)}:
        try:
            document = json.loads(source.read(name))
        except (FirstlightError, OSError, ValueError):
            continue
        yield from {str(value).partition("--")[0] for value in _auto_map(document) if "--" in str(value)}


def _auto_map(document: Any) -> Iterator[Any]:
    for table in (document, *(document.values() if isinstance(document, dict) else ())):
        mapping = table.get("auto_map") if isinstance(table, dict) else None
        for value in mapping.values() if isinstance(mapping, dict) else ():
            yield from value if isinstance(value, list) else [value]


def _line(source: Source, name: str) -> str:
    try:
        return f"{name}  sha256 {hashlib.sha256(source.read(name)).hexdigest()}"
    except (FirstlightError, OSError) as e:
        return f"{name}  cannot be read ({e})"


def refuse_changed_code(record: Path, model_path: str | None) -> None:
    """What was agreed to is what runs: a service looks at each start. Raises FirstlightError `remote-code-changed` (exit 4)."""
    if model_path is None or not record.exists():
        return
    shown = {m["name"]: m["sha256"] for line in record.read_text().splitlines() if (m := _HASHED.fullmatch(line))}
    there = {n: _sha256(os.path.join(model_path, n)) for n in {*shown, *_python_files(model_path)}}
    if changed := sorted(n for n, found in there.items() if found != shown.get(n)):
        raise FirstlightError(
            "remote-code-changed",
            "Python that comes with the model is not what was agreed to",
            evidence=tuple(f"{n}: {'new' if n not in shown else 'gone' if there[n] is None else 'changed'}" for n in changed),
            hint="look at it; `firstlight up` shows it again and asks",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )


def _python_files(folder: str) -> set[str]:
    return {p.name for p in Path(folder).glob("*.py")} if os.path.isdir(folder) else set()


def _sha256(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
