"""What a check found: one struct for inspect, preflight, plan and verify."""

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    BLOCKER = "blocker"
    WARNING = "warning"
    NOTE = "note"


class Finding(Struct, frozen=True, kw_only=True):
    """`message` says what is wrong and never how to fix it; `hint` is the command, flag or file that does.

    evidence: what was looked at and found, one fact a line. ignored: overridden by name (`--ignore CODE`), shown all the same.
    """

    code: str
    severity: Severity
    message: str
    evidence: list[str] = []
    note: str | None = None
    hint: str | None = None
    link: str | None = None
    ignored: bool = False


def blockers(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity is Severity.BLOCKER and not f.ignored]
