"""A verdict counted for people: what passed, what did not, and what was left out for want of time."""

from firstlight.core.verdict import Verdict


def counts(verdict: Verdict) -> str:
    """`24 passed, 1 failed, 2 skipped for time`; what does not apply to this endpoint is not counted."""
    checks = verdict.checks
    found = {
        "passed": sum(c.passed for c in checks if not c.skipped),
        "failed": sum(not (c.passed or c.accepted) for c in checks if not c.skipped),
        "accepted": sum(c.accepted for c in checks),
        "skipped for time": sum(c.for_time for c in checks if c.skipped),
    }
    return ", ".join(f"{count} {word}" for word, count in found.items() if count or word == "passed")


def left_out(verdict: Verdict) -> str | None:
    """What the time budget cut, and the budget that would not; None: nothing was cut."""
    names = [c.name if c.skipped else f"{c.name} in part" for c in verdict.checks if c.for_time]
    enough = f"; --budget {verdict.budget_needed:.0f} asks all of it" if verdict.budget_needed else ""
    return f"{', '.join(names)}{enough}" if names else None
