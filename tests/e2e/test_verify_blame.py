"""`verify --blame` of a run that serves: asked first, its knobs turned on the real engine, and served again as before."""

import json
from pathlib import Path

import pytest
from e2e_runner import Firstlight, run_folder

pytestmark = [pytest.mark.llamacpp, pytest.mark.slow, pytest.mark.timeout(2700)]
PATIENCE = 800.0  # a machine that is busy with twenty other things needs ten times the minute that all of this takes


def test_a_run_is_restarted_after_consent_its_template_named_and_served_as_before(
    firstlight: Firstlight, demo_gguf: Path, tmp_path: Path
) -> None:
    template = tmp_path / "wrong.jinja"
    template.write_text("{% for m in messages %}# # # #{% endfor %}")
    engine = ("--chat-template-file", str(template), "--threads", "1")
    up = firstlight("up", str(demo_gguf), "--name", "demo", "--skip", "verify", "--skip", "bench", "--", *engine, seconds=PATIENCE)
    assert up.returncode == 0, up.stderr
    before = firstlight.runs()[0]["state"]
    asked = firstlight("verify", "demo", "--checks", "known-answers", "--blame", seconds=PATIENCE)
    assert asked.returncode == 8, asked.stderr
    assert "--allow restart" in asked.stderr
    blamed = firstlight("verify", "demo", "--checks", "known-answers", "--blame", "--allow", "restart", "-o", "json", seconds=PATIENCE)
    assert blamed.returncode == 6, blamed.stderr
    culprits = [b for b in json.loads(blamed.stdout)["blame"] if b["culprit"]]
    assert [b["knob"] for b in culprits] == ["chat-template"]
    assert any("facts hold -> " in line for line in culprits[0]["evidence"])
    run = firstlight.runs()[0]
    assert (run["state"], run["attempt"]) == (before, 2), (blamed.stderr, firstlight("logs", "demo").stdout[-2000:])
    assert json.loads((run_folder(run) / "verdict.json").read_text())["blame"]
    assert firstlight("verify", "demo", "--checks", "known-answers").returncode == 6, "served as before: with the wrong template"
    assert firstlight("verify", "demo", "--checks", "completions").returncode == 0
    assert firstlight("down", "demo").returncode == 0
