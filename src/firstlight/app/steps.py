"""One step of healing."""

from msgspec import Struct


class Step(Struct, frozen=True, kw_only=True):
    """tried, saw, changed, because: one line each. attempt 0: arithmetic refuted the plan before anything was started."""

    attempt: int
    tried: str
    saw: str
    changed: str | None = None
    because: str | None = None
