"""Diagnosis rules as data: symptom -> cause -> remedy. Data: rules/*.toml, one family a file; the user's own folder is added to them."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

from firstlight.catalog.signs import signs
from firstlight.core.errors import InputError

ROLES = ("cause", "consequence", "wrapper", "symptom", "hint", "benign", "exit")


class Block:
    """A piece of a log, and which texts were found in it already: several gates ask for the same ones."""

    __slots__ = ("_found", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._found: dict[bytes, bool] = {}

    def has(self, text: bytes) -> bool:
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = text in self.data
        return found


class Pattern(Struct, frozen=True, kw_only=True):
    """regex with texts of which every match contains one (none: there are no such texts); encoded: the same as bytes."""

    regex: re.Pattern[str]
    literals: tuple[str, ...]
    encoded: tuple[bytes, ...]

    def search(self, text: str) -> "re.Match[str] | None":
        for literal in self.literals:
            if literal in text:
                break
        else:
            if self.literals:
                return None
        return self.regex.search(text)

    def may_match_in(self, block: Block) -> bool:
        return not self.encoded or any(map(block.has, self.encoded))


class RemedyTemplate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """change: fields of Pins, engine flags (`--x`) or environment variables (UPPER CASE) -> value; a text with `{fact}` or `= f(fact, 3)`
    is computed. action: what a person or host does, with `{fact}`. A remedy whose facts the log does not give is left out.

    The others say where it helps, and elsewhere it is left out: engines, platforms (names of signs.toml), phases: one of these; versions:
    of the engine; match: any of, unless: none of, in the message; frames, unless_frames: in its traceback; with_log: all of, unless_log:
    none of, anywhere in the log; when: a condition on the facts; lacks: none of these facts is known. An engine that the log does not
    tell counts as the rule's own, else as vLLM; a platform that it does not tell as CUDA. otherwise: only where the remedy before it in the
    rule is left out.
    """

    change: dict[str, Any] | None = None
    action: str | None = None
    safety: str = "ask"
    because: str = ""
    source: str | None = None
    engines: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    versions: str | None = None
    phases: tuple[str, ...] = ()
    match: tuple[Pattern, ...] = ()
    unless: tuple[Pattern, ...] = ()
    frames: tuple[Pattern, ...] = ()
    unless_frames: tuple[Pattern, ...] = ()
    with_log: tuple[Pattern, ...] = ()
    unless_log: tuple[Pattern, ...] = ()
    when: str | None = None
    lacks: tuple[str, ...] = ()
    otherwise: bool = False

    @property
    def conditions(self) -> str:
        """Where it helps, in words; empty where it has no condition."""
        found = ["otherwise"] if self.otherwise else []
        found += [*self.engines, *self.platforms, *(f"in {phase}" for phase in self.phases)]
        found += [f"version {self.versions}"] if self.versions else []
        texts = [(self.match, "where it says"), (self.frames, "raised in"), (self.with_log, "where the log has")]
        texts += [(self.unless, "unless it says"), (self.unless_frames, "unless raised in"), (self.unless_log, "unless the log has")]
        found += [f"{words} {' or '.join(f'`{p.regex.pattern}`' for p in patterns)}" for patterns, words in texts if patterns]
        found += [f"where {self.when.removeprefix('= ')}"] if self.when else []
        return "; ".join(found + ([f"without {', '.join(self.lacks)}"] if self.lacks else []))


class Rule(Struct, frozen=True, kw_only=True):
    """One way in which a known condition shows in a log. Several rules may share a code.

    role: cause; consequence (of a cause elsewhere); wrapper (hides a cause); symptom (of a wait); hint (a warning that
    explains a failure only where nothing else does); benign; exit (by exit status).
    match: any of; unless: none of, in the same message;
    frames: any of, unless_frames: none of, in its traceback; places: any of, in `path:function` of the innermost frame that is no tool
    (or of the file that is known to print this message); with_log: all of, and unless_log: none of,
    anywhere in the log; when: a condition on the facts, as `= within(a, b, 0.05)`. phases: where it happens; only_phases: it counts
    nowhere else. info: lines below ERROR count as well.
    fatal: the condition ends the start or the server. yields: often only where another process's failure shows, so that a cause which
    does not yield is preferred even when it was printed later. unready: it shows that an earlier `ready` was not true.
    stands: of a consequence: where nothing before it is in the text, it is what can be said.
    priority: the higher wins where several match one message. title may hold facts: `{name}`, or `{name|text where it is not known}`.
    """

    code: str
    title: str
    meaning: str
    role: str = "cause"
    engines: tuple[str, ...] = ()
    versions: str | None = None
    phases: tuple[str, ...] = ()
    only_phases: tuple[str, ...] = ()
    match: tuple[Pattern, ...] = ()
    unless: tuple[Pattern, ...] = ()
    frames: tuple[Pattern, ...] = ()
    unless_frames: tuple[Pattern, ...] = ()
    places: tuple[Pattern, ...] = ()
    with_log: tuple[Pattern, ...] = ()
    unless_log: tuple[Pattern, ...] = ()
    when: str | None = None
    info: bool = False
    fatal: bool = True
    yields: bool = False
    unready: bool = False
    stands: bool = False
    confidence: float = 0.9
    priority: int = 0
    facts: dict[str, Any] = {}
    remedies: tuple[RemedyTemplate, ...] = ()
    sources: tuple[str, ...] = ()


TITLE_FACT = 80  # characters of a fact in a title
_IN_TITLE = re.compile(r"\{(?P<name>\w+)(?:\|(?P<otherwise>[^}]*))?\}")
_IN_REMEDY = ("match", "unless", "frames", "unless_frames", "with_log", "unless_log")
_PATTERNS = ("match", "unless", "frames", "unless_frames", "places", "with_log", "unless_log")
_KEYS = {*Rule.__struct_fields__, "remedy"} - {"remedies"}


MOST_LITERALS = 12
_TIMES = re.compile(r"\{\d*,?\d*\}")


def literals_of(pattern: str) -> tuple[str, ...]:
    """Texts of which every match of a regular expression contains one: the longest of each branch. Empty where a branch has none."""
    if "(?i" in pattern:
        return ()
    found = [_of_branch(branch) for branch in _branches(pattern)]
    every = tuple(dict.fromkeys(text for texts in found for text in texts))
    return every if all(found) and len(every) <= MOST_LITERALS else ()


def _branches(pattern: str) -> list[str]:
    """The alternatives at the top of a regular expression."""
    cuts, i = [-1], 0
    while i < len(pattern):
        if pattern[i] == "|":
            cuts.append(i)
        i = _behind(pattern, i)
    return [pattern[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(pattern)], strict=True)]


def _behind(pattern: str, i: int) -> int:
    """Where the next element begins: behind a group, a set, an escape or one character."""
    if pattern[i] == "(":
        return _closing(pattern, i)
    if pattern[i] == "[":
        return _bracket(pattern, i)
    return i + (2 if pattern[i] == "\\" else 1)


def _of_branch(pattern: str) -> tuple[str, ...]:
    runs: list[tuple[str, ...]] = [()]
    run, i = "", 0
    while i < len(pattern):
        c, end = pattern[i], _behind(pattern, i)
        if c == "\\" and not pattern[i + 1].isalnum():
            run, i = run + pattern[i + 1], end
            continue
        if c not in "\\([*?{+.^$" or (c == "{" and not _TIMES.match(pattern, i)):
            run, i = run + c, end
            continue
        runs.append((run[:-1] if c in "*?{" else run,))
        if c == "(" and pattern[end : end + 1] not in ("*", "?", "{"):
            runs.append(_of_group(pattern[i + 1 : end - 1]))
        run, i = "", pattern.index("}", i) + 1 if c == "{" else end
    runs.append((run,))
    return max((r for r in runs if r and all(r)), key=lambda r: min(map(len, r)), default=())


def _of_group(inner: str) -> tuple[str, ...]:
    """Of a group's text without its parentheses; what only looks ahead or behind contains nothing."""
    if inner.startswith(("?!", "?<!", "?=", "?<=")):
        return ()
    return literals_of(re.sub(r"^\?(?:P<\w+>|:)", "", inner))


def _bracket(pattern: str, start: int) -> int:
    i = start + 2 if pattern[start + 1] != "^" else start + 3
    while pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1


def _closing(pattern: str, start: int) -> int:
    depth, i = 0, start
    while True:
        c = pattern[i]
        if c == "\\":
            i += 1
        elif c == "[":
            i = _bracket(pattern, i) - 1
        elif c in "()":
            depth += 1 if c == "(" else -1
            if depth == 0:
                return i + 1
        i += 1


def pattern(text: str) -> Pattern:
    literals = literals_of(text)
    return Pattern(regex=re.compile(text, re.DOTALL), literals=literals, encoded=tuple(literal.encode() for literal in literals))


def read_rules(text: str, origin: str) -> list[Rule]:
    """Rules of one TOML text. Raises InputError `rule-invalid`, naming the file, the code and what is wrong."""
    try:
        rows = tomllib.loads(text).get("rule", [])
    except tomllib.TOMLDecodeError as e:
        raise InputError("rule-invalid", f"{origin} is not TOML", evidence=(str(e),)) from None
    return [_rule(row, origin) for row in rows]


def _rule(row: dict[str, Any], origin: str) -> Rule:
    code = row.get("code", "?")
    if unknown := sorted(row.keys() - _KEYS):
        raise InputError("rule-invalid", f"{origin}: rule {code} has unknown keys", evidence=tuple(unknown))
    needed = ("code", "title", "meaning") if row.get("role") == "exit" else ("code", "title", "meaning", "match")
    if missing := [k for k in needed if not row.get(k)]:
        raise InputError("rule-invalid", f"{origin}: rule {code} lacks keys", evidence=tuple(missing))
    if row.get("role", "cause") not in ROLES:
        raise InputError("rule-invalid", f"{origin}: rule {code} has role {row['role']!r}", evidence=(f"one of {', '.join(ROLES)}",))
    try:
        patterns: dict[str, Any] = {k: tuple(pattern(p) for p in row.get(k, ())) for k in _PATTERNS}
        remedies = tuple(_remedy(r) for r in row.get("remedy", ()))
    except (re.error, TypeError, IndexError) as e:
        raise InputError("rule-invalid", f"{origin}: rule {code} cannot be read", evidence=(str(e),)) from None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k not in _PATTERNS and k != "remedy"}
    return Rule(**values, **patterns, remedies=remedies)


def _remedy(row: dict[str, Any]) -> RemedyTemplate:
    """Raises TypeError for a key that there is not, a platform that is none, and a list that is not given as one."""
    for key in ("engines", "platforms", "phases", "lacks", *_IN_REMEDY):
        if not isinstance(row.get(key, []), list):
            raise TypeError(f"a remedy's {key} is a list")
    if strange := set(row.get("platforms", ())) - {p.name for p in signs().platform}:
        raise TypeError(f"no platform is called {', '.join(sorted(strange))}")
    patterns = {k: tuple(pattern(p) for p in row[k]) for k in _IN_REMEDY if k in row}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return RemedyTemplate(**{**values, **patterns})


def titled(title: str, facts: Mapping[str, Any]) -> str:
    """A title with its facts: `{name}`, or `{name|text where it is not known}`; of one that is not known and has no text, its name. Of
    `(…)` that is left empty by an empty text nothing stays.
    """
    filled = _IN_TITLE.sub(lambda m: str(facts.get(m["name"], m["name"] if m["otherwise"] is None else m["otherwise"]))[:TITLE_FACT], title)
    return filled.replace(" ()", "")


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """Every rule that comes with firstlight, in file and then in file order."""
    folder = resources.files("firstlight.catalog") / "rules"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(rule for f in files for rule in read_rules(f.read_text("utf-8"), f.name))


def rule_of(code: str) -> Rule:
    """The rule of a code that an exit is put down to, else the first. Raises InputError `code-unknown`, naming near ones."""
    found = min((r for r in builtin_rules() if r.code == code), key=lambda r: r.role != "exit", default=None)
    if found is None:
        near = difflib.get_close_matches(code, sorted({r.code for r in builtin_rules()}), 4)
        raise InputError(
            "code-unknown", f"no rule has the code {code}", evidence=tuple(near), hint="`firstlight rules list` shows all codes"
        )
    return found


def version_within(version: str | None, wanted: str | None) -> bool:
    """Whether a version satisfies `>=0.16,<0.24`. An unknown version satisfies everything."""
    found = _numbers(version or "")
    if not found or not wanted:
        return True
    return all(_holds(found, part.strip()) for part in wanted.split(","))


def _numbers(version: str) -> tuple[int, ...]:
    m = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(n) for n in m[1].split(".")) if m else ()


def _holds(found: tuple[int, ...], part: str) -> bool:
    operator, bound = part.rstrip("0123456789."), _numbers(part.lstrip("<>= "))
    if operator.strip() == "<":
        return found < bound
    if operator.strip() == "<=":
        return found[: len(bound)] <= bound
    return found >= bound


class Gate:
    """Finds the rule of a line among many patterns: a look at a whole block first tells which of them can match in it at all."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._all = [(p, r) for r in rules for p in r.match]
        self._open = self._all
        self._block: Block | None = None

    def look(self, block: Block | bytes) -> None:
        """What the next lines are of; it is looked through when the first of them asks."""
        self._block = block if isinstance(block, Block) else Block(block)

    def _looked(self, block: Block) -> None:
        """Keeps the patterns of which a literal is in the block; escapes and JSON may hide one, so that there all are kept."""
        self._block = None
        if block.has(b"\x1b") or block.data[:1] == b"{" or block.has(b"\n{"):
            self._open = self._all
        else:
            self._open = [(p, r) for p, r in self._all if p.may_match_in(block)]

    def find(self, text: str) -> Rule | None:
        """The first rule that matches a line of the block that was looked at."""
        if self._block is not None:
            self._looked(self._block)
        for p, rule in self._open:
            if p.search(text) and not any(u.search(text) for u in rule.unless):
                return rule
        return None


@cache
def benign_rules() -> tuple[Rule, ...]:
    return tuple(r for r in builtin_rules() if r.role == "benign")
