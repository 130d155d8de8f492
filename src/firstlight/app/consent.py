"""One way to ask: a question on a terminal, a flag elsewhere, never an assumption."""

import sys

import click

from firstlight.core.errors import ConsentError


class Consent:
    """yes: the user said `--yes`. allowed: names given with `--allow`."""

    def __init__(self, *, yes: bool = False, allowed: frozenset[str] = frozenset()) -> None:
        self.yes = yes
        self.allowed = allowed
        self.asked: set[str] = set()

    def require(self, name: str, question: str, *, evidence: tuple[str, ...] = ()) -> None:
        """Returns when the answer is yes. Raises ConsentError (exit 8), which names the flag."""
        if not self.given(name, question, evidence=evidence):
            raise ConsentError(
                "consent-missing", question, evidence=evidence, hint=f"say --yes, or --allow {name}, if that is what you want"
            )

    def given(self, name: str, question: str, *, evidence: tuple[str, ...] = ()) -> bool:
        self.asked.add(name)
        if self.yes or name in self.allowed:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        for line in evidence:
            click.echo(f"    {line}", err=True)
        return click.confirm(question, default=False, err=True)
