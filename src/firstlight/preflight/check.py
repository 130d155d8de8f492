"""A check: a name, what it needs to know, a pure function over the context."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from firstlight.core.findings import Finding, Severity
from firstlight.preflight.context import Context


class Check(NamedTuple):
    """needs: fields of Context that must be known, else the check has nothing to say. engines: () for all of them."""

    name: str
    needs: tuple[str, ...]
    check: Callable[[Context], Iterable[Finding]]
    engines: tuple[str, ...] = ()

    def applies(self, context: Context) -> bool:
        known = all(getattr(context, need) not in (None, [], "") for need in self.needs)
        return known and (not self.engines or context.engine in self.engines)


def blocker(code: str, message: str, *, evidence: Iterable[str] = (), hint: str | None = None, note: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.BLOCKER, message=message, evidence=list(evidence), hint=hint, note=note)


def warning(code: str, message: str, *, evidence: Iterable[str] = (), hint: str | None = None, note: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, evidence=list(evidence), hint=hint, note=note)


def remark(code: str, message: str, *, evidence: Iterable[str] = (), hint: str | None = None, note: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.NOTE, message=message, evidence=list(evidence), hint=hint, note=note)
