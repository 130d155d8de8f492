"""Every code that the sources can say has a record, so that `firstlight explain CODE` always answers."""

import ast
import re
from pathlib import Path

import pytest

import firstlight
from firstlight.app.group import run
from firstlight.catalog.findings import all_codes, explain, records
from firstlight.catalog.quirks import quirks
from firstlight.core.errors import InputError

SOURCES = Path(firstlight.__file__).parent
SAYS = {"blocker", "warning", "remark", "_problem"}


def spoken() -> dict[str, str]:
    """Codes of findings, errors and checks in the sources: code -> file."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                found |= dict.fromkeys(codes_of(node), str(path.relative_to(SOURCES)))
    return found


def codes_of(call: ast.Call) -> list[str]:
    """What a call says: `code=`, also one of several (`a if x else b`), and the first word of those who take it first."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    by_name = [n for k in call.keywords if k.arg == "code" and not isinstance(k.value, ast.Call) for n in ast.walk(k.value)]
    first = call.args[:1] if name in SAYS or (name.endswith("Error") and name != "OSError") else []
    last = call.args[3:4] if name == "_checked" else []
    values = [n.value for n in [*by_name, *first, *last] if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [v for v in values if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", v)]


def test_every_code_is_explained() -> None:
    known = set(all_codes())
    missing = {code: path for code, path in spoken().items() if code not in known}
    assert missing == {}, "add a [[finding]] to catalog/findings.toml for each"


def test_every_quirk_is_explained() -> None:
    assert {q.code for q in quirks()} <= set(all_codes())


def test_records_are_sentences_for_people() -> None:
    for record in records().values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", record.code)
        assert record.meaning.endswith("."), record.code
        assert not record.title.endswith("."), record.code
        assert record.cure, record.code
        assert record.rooms, record.code


def test_diagnosis_codes_come_from_the_rules() -> None:
    found = explain("oom-kv-allocation")
    assert found.rooms == ["diagnose"]
    assert found.cure
    assert not any("= less_by" in line for line in found.cure)


def test_an_unknown_code_names_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        explain("port-is-in-use")
    assert "port-in-use" in (error.value.hint or "")


def test_the_command_prints_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "shm-too-small"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("shm-too-small: /dev/shm is too small for several workers\n")
    assert "  What cures it\n    - --ipc=host or --shm-size=16g on the container\n" in text
    assert run(["explain", "no-such-code-at-all"]) == 2
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split() == ["CODE", "MEANS"]
    assert len(listed) == len(all_codes()) + 1
