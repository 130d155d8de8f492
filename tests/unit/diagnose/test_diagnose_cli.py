"""`diagnose`, `rules` and `watch` from the command line: contracts of stdout, exit codes, own rules without Python."""

import io
import json
from pathlib import Path

import pytest

from firstlight.app.group import run
from firstlight.catalog.rules import Gate, literals_of, read_rules, rule_of, version_within
from firstlight.core.diagnosis import Diagnosis
from firstlight.core.errors import Exit, InputError
from firstlight.core.schema import decode
from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.remedies import value_of

LOGS = Path(__file__).parents[2] / "rules"
KV = LOGS / "kv-too-small-for-max-len" / "hit-1.log"
READY = LOGS / "benign-ulimit" / "hit-1.log"


def test_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(KV), "-o", "json"]) == Exit.OK
    out = capsys.readouterr().out
    document = json.loads(out)
    assert (document["schema"], document["kind"], document["outcome"]) == ("firstlight/1", "Diagnosis", "failed")
    assert document["cause"]["code"] == "kv-too-small-for-max-len"
    assert set(document["cause"]["evidence"][0]) == {"line", "text", "worker"}
    assert document["remedies"][0]["change"] == {"max_model_len": 37552}
    assert document["remedies"][0]["safety"] == "safe"
    line = KV.read_text().splitlines()[document["cause"]["evidence"][0]["line"] - 1]
    assert document["cause"]["evidence"][0]["text"].split("\n")[0] in line
    assert decode(out, Diagnosis).outcome == "failed"


def test_people_see_cause_evidence_and_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(KV)]) == Exit.OK
    out = capsys.readouterr().out
    assert "kv-too-small-for-max-len" in out
    assert "--max-model-len 37552" in out
    assert "(safe)" in out


def test_a_healthy_log_and_one_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(READY)]) == Exit.OK
    assert "ready" in capsys.readouterr().out
    assert run(["diagnose", "/nowhere/engine.log"]) == Exit.USAGE
    assert "log-not-found" in capsys.readouterr().err


def test_watch_replays_a_log_as_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", str(READY), "--replay", "-o", "jsonl"]) == Exit.OK
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {e["kind"] for e in events} >= {"phase", "figure", "ready", "benign"}
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert all(e["schema"] == "firstlight/1" for e in events)


def test_watch_of_a_failed_log_is_readable_and_exits_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", str(KV), "--replay"]) == Exit.OK
    err = capsys.readouterr().err
    assert "kv-allocation" in err
    assert "failed" in err


def test_watch_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open(READY, "rb") as f:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(f))
        assert run(["watch", "-", "-o", "jsonl"]) == Exit.OK
    assert '"ready"' in capsys.readouterr().out


OWN = """
[[rule]]
code = "own-gremlin"
title = "a gremlin sits in the rack"
meaning = "Our rack has a gremlin."
match = ['gremlin level (?P<level>\\d+)']
sources = ["us"]
phases = ["loading"]
[[rule.remedy]]
change = { max_num_seqs = "= half(level)" }
safety = "ask"
because = "level {level} is too much"
"""


def test_a_rule_is_added_and_tested_without_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "logs" / "own-gremlin").mkdir(parents=True)
    (tmp_path / "logs" / "own-gremlin" / "hit-1.log").write_text("RuntimeError: gremlin level 12\n")
    (tmp_path / "logs" / "own-gremlin" / "miss-1.log").write_text("RuntimeError: no gremlin\n")
    arguments = ["rules", "test", str(tmp_path / "logs"), "--file", str(tmp_path / "own.toml"), "--code", "own-gremlin"]
    assert run(arguments) == Exit.OK
    assert "2 of 2 logs right" in capsys.readouterr().out
    (tmp_path / "logs" / "own-gremlin" / "hit-1.log").write_text("RuntimeError: nothing\n")
    assert run(arguments) == 1
    assert "expected own-gremlin" in capsys.readouterr().out
    found = diagnose(b"RuntimeError: gremlin level 12\n", rules=read_rules(OWN, "own"))
    assert found.remedies[0].change == {"max_num_seqs": 6}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[rule]]\ncode='x'\n", "lacks keys"),
        ("[[rule]]\ncode='x'\ntitle='t'\nmeaning='m'\nmatch=['(']\n", "cannot be read"),
        ("[[rule]]\ncode='x'\ntitle='t'\nmeaning='m'\nmatch=['a']\nrole='boss'\n", "has role"),
        ("[[rule]]\ncode='x'\ntitle='t'\nmeaning='m'\nmatch=['a']\ncolour='red'\n", "unknown keys"),
        ("[[rule", "is not TOML"),
    ],
)
def test_a_wrong_rule_is_named(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_rules(text, "own.toml")


def test_rules_list_names_every_code_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "list"]) == Exit.OK
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(codes) == len(set(codes)) > 150


def test_an_unknown_code_names_near_ones() -> None:
    with pytest.raises(InputError) as caught:
        rule_of("oom-weigth-load")
    assert "oom-weight-load" in caught.value.evidence


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"max seq len \((?P<n>\d+)\), GiB is needed", ("), GiB is needed",)),
        (r"abc|bcd", ("abc", "bcd")),
        (r"abc|\d+", ()),
        (r"(?i)abc", ()),
        (r"x?abcd+e", ("abcd",)),
        (r"\d+ blocks", (" blocks",)),
        (r"[^a]bc{2}d", ("b",)),
        (r"(?P<reason>the kestrel (?:fell|sang)[^\n]*)", ("the kestrel ",)),
        (r"(?:kestrel|merlin) \d", ("kestrel", "merlin")),
        (r"(?:kestrel)?\d(?!merlin)", ()),
    ],
)
def test_literals_one_of_which_is_in_every_match(pattern: str, literals: tuple[str, ...]) -> None:
    assert literals_of(pattern) == literals


def test_the_gate_finds_what_a_plain_search_finds() -> None:
    rules = read_rules(OWN, "own")
    gate = Gate(rules)
    gate.look(b"nothing here\n")
    assert gate.find("gremlin level 3") is None
    gate.look(b"some gremlin level 3\n")
    assert gate.find("gremlin level 3") is rules[0]
    gate.look(b"\x1b[31mgremlin\x1b[0m level 3\n")
    assert gate.find("gremlin level 3") is rules[0]


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("0.25.1", ">=0.20,<0.26", True),
        ("0.26.0", "<0.26", False),
        ("0.16.0rc2.dev3", ">=0.16", True),
        (None, ">=9", True),
        ("0.26.3", "<=0.26", True),
    ],
)
def test_versions(version: str | None, wanted: str, holds: bool) -> None:
    assert version_within(version, wanted) is holds


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{n}", 37561),
        ("= rounded_down(n, 16)", 37552),
        ("= len_that_fits(100000, 10, 5)", 48496),
        ("= utilization_of(71.6, 79.11)", 0.89),
        ("= divisor_below(28, 8)", 7),
        ("= power_of_two_above(2496)", 4096),
        ("= less_by(0.92, 0.03)", 0.89),
        ("= more_by(0.96, 0.04, 0.97)", 0.97),
        ("= utilization_with(0.7, -3.31, 24)", 0.88),
        ("= utilization_by_graphs(0.22, -14.28, 0.53, 0.2133)", 0.42),
        ("= utilization_raised(0.9, nothing_of_it|0)", 0.94),
        ("at {n} tokens", "at 37561 tokens"),
        ("", None),
        (True, True),
    ],
)
def test_values_of_remedies(template: object, value: object) -> None:
    assert value_of(template, {"n": 37561}) == value


@pytest.mark.parametrize(
    "template",
    [
        "{unknown}",
        "= half(1)",
        "= divisor_below(7, 1)",
        "= more_by(0.97, 0.04, 0.97)",
        "= utilization_of(1, 79)",
        "= utilization_with(0.9, -9, 24)",
        "= utilization_by_graphs(0.9, -1, 0.5, 0.9)",
        "= utilization_raised(0.22, -14.28)",
    ],
)
def test_a_value_that_does_not_exist_raises(template: str) -> None:
    with pytest.raises((KeyError, ValueError, ArithmeticError)):
        value_of(template, {})


def test_the_supervisors_record_beside_a_log_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "engine.log"
    log.write_text("INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n")
    (tmp_path / "exit.json").write_text('{"returncode": -9, "oom_killed": true}')
    assert run(["diagnose", str(log), "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["cause"]["code"] == "host-ram-oom"
    (tmp_path / "exit.json").write_text('{"returncode": -9, "oom_killed": false}')
    assert run(["diagnose", str(log), "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["cause"]["code"] == "process-killed"
