"""Run all, report all, override by name, never hide."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from firstlight.catalog.findings import record
from firstlight.core.findings import Finding, Severity
from firstlight.preflight.check import Check
from firstlight.preflight.checks import attention, engine, environment, gpu, host, kernels, known, model, parallel, quantization, text
from firstlight.preflight.context import Context

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (engine, model, attention, quantization, kernels, parallel, text, known, gpu, host, environment)
    for check in module.CHECKS
)
_ORDER = list(Severity)


def run_checks(context: Context, *, ignore: frozenset[str] = frozenset(), checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Every check that has what it needs; blockers first, in the checks' order. ignore: codes that are marked, and shown all the same."""
    found: list[Finding] = []
    elsewhere = _carried(context)
    for check in checks:
        if check.applies(context):
            found += [f for f in _run(check, context) if f.code not in elsewhere and not _told(f, found)]
    return finish(found, ignore=ignore)


def finish(findings: Iterable[Finding], *, ignore: frozenset[str] = frozenset()) -> list[Finding]:
    """Marks the ignored, adds the catalog's link where a finding has none, sorts by severity."""
    marked = [replace(f, ignored=True) if f.code in ignore else f for f in findings]
    linked = [replace(f, link=r.link) if f.link is None and (r := record(f.code)) and r.link else f for f in marked]
    return sorted(linked, key=lambda f: _ORDER.index(f.severity))


def _carried(context: Context) -> set[str]:
    """Codes that the checkpoint or the machine brings along: they are shown with it."""
    holders = [h for h in (context.checkpoint, context.machine) if h is not None]
    return {f.code for holder in holders for f in holder.findings}


def _told(finding: Finding, before: list[Finding]) -> bool:
    """A dated rule says nothing new about what a check has already found."""
    return any(f.code == finding.code and (f.message == finding.message or "recorded " in "".join(finding.evidence)) for f in before)


def _run(check: Check, context: Context) -> list[Finding]:
    """A check that breaks is a fault of ours: told as a warning, so that the others are still heard."""
    try:
        return list(check.check(context))
    except Exception as e:
        return [
            Finding(
                code="check-broken",
                severity=Severity.WARNING,
                message=f"the check {check.name} broke; what it would have said is not known",
                evidence=[f"{type(e).__name__}: {e}"],
                hint="`firstlight report` makes a folder for a bug report",
            )
        ]
