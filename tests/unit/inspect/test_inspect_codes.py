"""Every code that inspect can say is explained and in its chapter of the docs."""

import ast
import re
from pathlib import Path

import firstlight.inspect
from firstlight.catalog.findings import all_codes

ROOM = Path(next(iter(firstlight.inspect.__path__)))
DOCS = Path(__file__).parents[3] / "docs" / "inspect.md"
SAYS = {"problem", "_bad", "_finding", "_report", "Finding", "InputError", "HostError"}


def spoken() -> set[str]:
    """The first word, or the `code`, of every call that makes a finding or an error; of a choice between two, both."""
    found: set[str] = set()
    for path in ROOM.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) in SAYS:
                values = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "code")]
                found |= {n.value for v in values for n in ast.walk(v) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return {c for c in found if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", c)}


def test_every_code_is_explained():
    assert len(spoken()) > 60
    assert spoken() - set(all_codes()) == set()


def test_every_code_is_in_the_chapter():
    documented = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", DOCS.read_text("utf-8")))
    assert spoken() - documented == set()
