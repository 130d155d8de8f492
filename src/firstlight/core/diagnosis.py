"""Why a start or a server failed, and what may be done about it."""

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Safety(StrEnum):
    """safe: done without asking. ask: needs a yes or `--allow NAME`. never: printed only."""

    SAFE = "safe"
    ASK = "ask"
    NEVER = "never"


class Evidence(Struct, frozen=True, kw_only=True):
    """line: 1-based in the log as given."""

    line: int
    text: str
    worker: str | None = None


class Cause(Struct, frozen=True, kw_only=True):
    """confidence: 0 to 1."""

    code: str
    title: str
    confidence: float
    evidence: list[Evidence] = []


class Remedy(Struct, frozen=True, kw_only=True):
    """change: fields of Pins or engine flags and their new values; action: something a person or host does; one of both is set."""

    change: dict[str, Any] | None = None
    action: str | None = None
    safety: Safety = Safety.ASK
    because: str = ""
    source: str | None = None


class Benign(Struct, frozen=True, kw_only=True):
    code: str
    count: int
    lines: list[int] = []


class Unknown(Struct, frozen=True, kw_only=True):
    """For a failure no rule knows: the earliest exception, its masked template, and codes whose messages share words with it."""

    first_exception: str | None = None
    template: str | None = None
    near: list[str] = []


class Diagnosis(Struct, frozen=True, kw_only=True):
    """outcome: ready | failed | incomplete | serving-failed."""

    outcome: str
    phase: str | None = None
    cause: Cause | None = None
    contributing: list[Cause] = []
    remedies: list[Remedy] = []
    benign: list[Benign] = []
    facts: dict[str, Any] = {}
    unknown: Unknown | None = None

    @property
    def headline(self) -> tuple[str, str]:
        """(code, title) of the cause; where no rule knows it, the exception that was printed; else that the log does not show it."""
        if self.cause is not None:
            return self.cause.code, self.cause.title
        if self.unknown is not None and self.unknown.first_exception:
            return "cause-unknown", "no rule knows what the engine printed before it ended"
        return "cause-not-visible", "the engine ended, and its log does not show why"
