"""Every rule against its own logs: hits give the code, misses do not; every code has both."""

import time
from pathlib import Path

import pytest

from firstlight.app.rule_logs import run_rule_logs
from firstlight.catalog.rules import builtin_rules
from firstlight.diagnose.log import read

FOLDER = Path(__file__).parents[2] / "rules"
CODES = sorted({r.code for r in builtin_rules()})


@pytest.mark.parametrize("code", CODES)
def test_hits_and_misses(code: str) -> None:
    results = run_rule_logs(FOLDER, list(builtin_rules()), code)
    kinds = {Path(r.path).name.split("-")[0] for r in results}
    assert kinds == {"hit", "miss"}, f"{code} needs hit-*.log and miss-*.log"
    assert [f"{r.path}: {r.found}" for r in results if not r.right] == []


def test_every_rule_is_hit_by_a_log() -> None:
    """Several rules share a code: each of them has a log in which it matches."""
    hit: set[int] = set()
    benign: set[str] = set()
    for path in sorted(FOLDER.glob("*/hit-*.log")):
        reader = read(path.read_bytes(), None, None)
        hit |= {id(match.rule) for seen in reader.seen for match in seen.matches}
        benign |= set(reader.benign)
    rules = [r for r in builtin_rules() if r.role != "exit" and r.code not in benign]
    assert [f"{r.code}: {r.match[0].regex.pattern}" for r in rules if id(r) not in hit] == []


HARD = (
    "a" * 8000,
    "'" * 8000,
    "0," * 4000,
    "/a" * 4000,
    "a.b" * 2600,
    "x: " * 2600,
    ("x" * 70 + "\n") * 110,
    "RuntimeError: " + "not supported " * 560,
)


def test_no_pattern_takes_long_on_hard_text() -> None:
    """Messages of 8,000 characters that nearly match: no pattern may need more than linear time, or nearly so."""
    slow = []
    for rule in builtin_rules():
        for p in (*rule.match, *rule.unless, *rule.frames, *rule.unless_frames, *rule.with_log, *rule.unless_log):
            began = time.process_time()
            for text in HARD:
                p.search(text)
            if time.process_time() - began > 0.5:
                slow.append(f"{rule.code}: {p.regex.pattern}")
    assert slow == []


def test_every_rule_says_what_it_means_and_where_it_comes_from() -> None:
    for rule in builtin_rules():
        assert rule.title
        assert rule.meaning.endswith((".", "?")), rule.code
        assert rule.sources, rule.code
        assert 0 < rule.confidence <= 1
        assert rule.match or rule.role == "exit", rule.code
        assert rule.role != "cause" or not rule.fatal or rule.phases, f"{rule.code} names no phase"
        assert all(r.change or r.action for r in rule.remedies), rule.code
        assert all(r.safety in ("safe", "ask", "never") for r in rule.remedies), rule.code
