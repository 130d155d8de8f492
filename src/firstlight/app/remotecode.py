"""Python that comes with a model: shown with its hashes and its revision, run only with a yes, kept on record."""

import hashlib

from firstlight.app.session import Session
from firstlight.core.errors import FirstlightError
from firstlight.core.ports import Source

FLAG = "--trust-remote-code"


def consent_to_remote_code(session: Session) -> None:
    """Returns where the plan runs no such code, or may. Raises ConsentError (exit 8), which names `--allow remote-code`."""
    if FLAG not in [*session.best.args, *session.intent.extra_args]:
        return
    evidence = _evidence(session)
    if session.folder is not None:
        session.folder.write("remote-code.txt", "\n".join([*evidence, ""]).encode())
    session.emitter.emit("remote-code", files=evidence)
    if session.intent.trust_remote_code or FLAG in session.intent.extra_args:
        return
    session.consent.require("remote-code", f"Run the Python that comes with {session.intent.model}?", evidence=tuple(evidence))
    session.consent.allowed |= {"remote-code"}


def _evidence(session: Session) -> list[str]:
    """A line a file with its sha256, and what pins them."""
    from firstlight.app.elsewhere import hub_environ, only_here
    from firstlight.inspect.sources import open_source
    from firstlight.probe.local import LocalHost

    model = session.model
    here = None if model.path else only_here(session.intent.model, session.host)
    host = LocalHost() if here else session.host
    source = open_source(here or model.path or session.intent.model, host, env=hub_environ(session.host))
    pinned = model.revision or (f"the files in {here or model.path}" if here or model.path else "nothing: the code can change")
    return [*(_line(source, name) for name in model.trust_remote_code.files), f"pinned by {pinned}"]


def _line(source: Source, name: str) -> str:
    try:
        return f"{name}  sha256 {hashlib.sha256(source.read(name)).hexdigest()}"
    except (FirstlightError, OSError) as e:
        return f"{name}  cannot be read ({e})"
