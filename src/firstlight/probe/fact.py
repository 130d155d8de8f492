"""A fact is a command and a pure parser. The raw text is kept next to what was read from it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from firstlight.core.errors import HostError
from firstlight.core.ports import Host
from firstlight.probe.running import results, workers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
PARALLEL = 8


@dataclass(frozen=True)
class Fact(Generic[T_co]):
    """name: also the raw text's and the fixtures' name. argv: tools that every Linux has, run without a shell of the user's.

    parse: raw text -> value, pure and total: text it does not understand gives the value that says "unknown".
    """

    name: str
    argv: tuple[str, ...]
    parse: Callable[[str], T_co]
    timeout: float = 15.0


def shell(name: str, script: str, parse: Callable[[str], T], *, arguments: Sequence[str] = (), timeout: float = 15.0) -> Fact[T]:
    """A fact that needs POSIX sh. arguments: `$1`, `$2`, … of the script."""
    return Fact(name, ("sh", "-c", script, "sh", *arguments), parse, timeout)


class Gathered:
    """Values by fact name, with the raw texts; a fact that was not asked has the value of empty text."""

    def __init__(self, raw: dict[str, str]) -> None:
        self.raw = raw
        self._values: dict[str, Any] = {}

    def keep(self, name: str, text: str, value: Any) -> None:
        self.raw[name] = text
        self._values[name] = value

    def value(self, fact: Fact[T]) -> T:
        value: T = self._values[fact.name] if fact.name in self._values else fact.parse("")
        return value


def gather(host: Host, facts: Sequence[Fact[Any]], into: Gathered) -> None:
    """Asks all facts, a few at a time. Raises HostError only when the host itself cannot be reached."""
    if not facts:
        return
    lock = threading.Lock()

    def one(fact: Fact[Any]) -> None:
        text = ask(host, fact)
        value = fact.parse(text)
        with lock:
            into.keep(fact.name, text, value)

    with workers(host, min(PARALLEL, len(facts))) as pool:
        results([pool.submit(one, fact) for fact in facts])


def ask(host: Host, fact: Fact[Any]) -> str:
    """One fact's text: stdout, or stderr when stdout is empty; empty when the command is absent or does not end in time."""
    try:
        done = host.run(fact.argv, timeout=fact.timeout, env={"LC_ALL": "C"})
    except HostError as e:
        if e.code in ("command-not-found", "permission-denied"):
            return ""
        if e.code == "command-timeout":
            return f"firstlight: no answer within {fact.timeout:g} s\n"
        raise
    return done.text if done.text.strip() else done.stderr.decode("utf-8", "replace")
