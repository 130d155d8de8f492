"""Exceptions that a user can meet. This module imports nothing of ours.

Each carries a kebab code, what was looked at and found (`evidence`), and what to do (`hint`); the message never says how to fix.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOTHING_FEASIBLE = 3
    PREFLIGHT_BLOCKED = 4
    ENGINE_FAILED = 5
    VERIFICATION_FAILED = 6
    SLO_MISSED = 7
    CONSENT_MISSING = 8
    INTERRUPTED = 130
    TERMINATED = 143


class FirstlightError(Exception):
    """An expected failure: shown as code, message, evidence and hint, never as a traceback."""

    exit_code: Exit = Exit.UNEXPECTED

    def __init__(
        self, code: str, message: str, *, evidence: tuple[str, ...] = (), hint: str | None = None, exit_code: Exit | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.evidence = evidence
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class UsageError(FirstlightError):
    """The user asked for something that cannot be meant."""

    exit_code = Exit.USAGE


class InputError(FirstlightError):
    """A model, file or answer that cannot be read as what it should be."""

    exit_code = Exit.USAGE


class HostError(FirstlightError):
    """A host did not do what it was asked: unreachable, command not found, timed out."""


class EngineError(FirstlightError):
    """The engine failed after every allowed remedy."""

    exit_code = Exit.ENGINE_FAILED


class ConsentError(FirstlightError):
    """A step needs a yes that nobody gave; the hint names the flag."""

    exit_code = Exit.CONSENT_MISSING
