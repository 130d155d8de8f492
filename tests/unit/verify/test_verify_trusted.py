"""The reference that another Python computes: its answer read, its failure named."""

import json
import sys
from pathlib import Path

import pytest

from firstlight.core.errors import FirstlightError
from firstlight.core.reference import Reference, ReferenceRow
from firstlight.verify.reference import digest_of, passages, prompts, whole
from firstlight.verify.trusted import reference_of_folder


def python_that(path: Path, body: str) -> str:
    """An interpreter's stand-in: takes the same arguments and does `body`."""
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_rows_come_back_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    row = '{"prompt_tokens": len(p.split()), "tokens": [" a"], "logprobs": [-0.5]}'
    made = f"asked = json.load(sys.stdin)\nprint(json.dumps({{'rows': [{row} for p in asked], 'ids': [[len(p)] for p in asked]}}))"
    stand_in = python_that(tmp_path / "python", f"print('a warning')\n{made}")
    found = reference_of_folder("/models/m", stand_in)
    assert (found.engine, found.prompts) == ("transformers", prompts())
    assert [r.prompt_tokens for r in found.rows] == [len(p.split()) for p in prompts()]
    assert json.loads(json.dumps(found.rows[0].tokens)) == [" a"]
    assert found.tokens_digest == digest_of([[len(p)] for p in passages(prompts())])


@pytest.mark.parametrize("body", ["sys.exit('ModuleNotFoundError: no transformers')", None])
def test_an_environment_without_transformers_is_named(tmp_path: Path, body: str | None) -> None:
    stand_in = python_that(tmp_path / "python", body) if body else str(tmp_path / "no-such-python")
    with pytest.raises(FirstlightError) as error:
        reference_of_folder("/models/m", stand_in)
    assert error.value.code == "reference-failed"
    assert error.value.evidence
    assert "--engine-python" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("asked", "rows"),
    [([], []), (["a", "b"], [([" x"], [-0.1])]), (["a"], [([], [])]), (["a"], [([" x", " y"], [-0.1])])],
)
def test_a_reference_that_lost_a_part_is_refused(asked: list[str], rows: list[tuple[list[str], list[float]]]) -> None:
    kept = [ReferenceRow(prompt_tokens=1, tokens=t, logprobs=v) for t, v in rows]
    with pytest.raises(FirstlightError) as error:
        whole(Reference(model="m", taken=0.0, prompts=asked, rows=kept), "trusted.json")
    assert (error.value.code, error.value.message) == ("wrong-shape", "trusted.json is no whole reference")
