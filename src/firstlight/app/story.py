"""What healing tried, saw, changed and why: told as it happens, kept as one readable page, `story.md` in the run folder."""

import msgspec

from firstlight.app.session import Session
from firstlight.app.steps import Step


def tell(session: Session, step: Step) -> None:
    """Adds a step to the session's story, announces it, and writes the page."""
    session.story.append(step)
    session.emitter.emit("healing", **msgspec.to_builtins(step))
    if step.changed:
        tried = f"attempt {step.attempt}" if step.attempt else "before the start"
        session.emitter.emit("say", text=f"{tried}: saw {step.saw}; changed {step.changed}, because {step.because}")
    if session.folder is not None:
        session.folder.write("story.md", "\n\n".join([f"# {session.name}", *map(_paragraph, session.story), ""]).encode())


def _paragraph(step: Step) -> str:
    title = f"## Attempt {step.attempt}" if step.attempt else "## Before the first start"
    lines = [f"- tried: {step.tried}", f"- saw: {step.saw}", f"- changed: {step.changed or 'nothing'}", f"- because: {step.because or '-'}"]
    return "\n".join([title, "", *lines])
