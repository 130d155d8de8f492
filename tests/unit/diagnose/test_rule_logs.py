"""Every rule against its own logs: hits give the code, misses do not; every code has both."""

from pathlib import Path

import pytest

from firstlight.app.rule_logs import run_rule_logs
from firstlight.catalog.rules import builtin_rules

FOLDER = Path(__file__).parents[2] / "rules"
CODES = sorted({r.code for r in builtin_rules()})


@pytest.mark.parametrize("code", CODES)
def test_hits_and_misses(code: str) -> None:
    results = run_rule_logs(FOLDER, list(builtin_rules()), code)
    kinds = {Path(r.path).name.split("-")[0] for r in results}
    assert kinds == {"hit", "miss"}, f"{code} needs hit-*.log and miss-*.log"
    assert [f"{r.path}: {r.found}" for r in results if not r.right] == []


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
