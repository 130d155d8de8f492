"""`plan --ask`: the engine's answer goes into the plan, its refusal is the verdict, and an engine that cannot be asked costs nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstlight.app import asking
from firstlight.app.group import run
from firstlight.core.answer import EngineAnswer
from firstlight.core.errors import UsageError
from firstlight.core.figures import Figure, Rung
from firstlight.core.findings import Finding, Severity
from firstlight.core.plan import MemoryBudget
from firstlight.core.units import GIB

LLAMA = json.loads((Path(__file__).parents[2] / "data/ask/llama-3.1-8b.json").read_text())


def refusing(code: str) -> EngineAnswer:
    finding = Finding(code=code, severity=Severity.BLOCKER, message="no", evidence=["its words"])
    return EngineAnswer(engine="vllm", version="0.24.0", refusal="its words", findings=[finding])


def answering() -> EngineAnswer:
    weights = Figure.exact(int(14.99 * GIB), Rung.ASKED, "asked")
    nothing = Figure(rung=Rung.ASKED)
    parts = dict.fromkeys(("total", "usable", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom"), nothing)
    budget = MemoryBudget(weights=weights, **parts)
    return EngineAnswer(engine="vllm", version="0.24.0", per_gpu=budget, parameter_bytes=int(14.99 * GIB))


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """plan(what ask_with does, more flags) -> (exit code, document)."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def planned(answer: Any, *more: str) -> tuple[int, dict[str, Any]]:
        def ask_with(*args: Any, **kwargs: Any) -> EngineAnswer:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(asking, "ask_with", ask_with)
        code = run(["plan", str(tmp_path), "--engine", "vllm@0.24.0", "--gpu", "1xh200", "--ask", "-o", "json", *more])
        return int(code), json.loads(capsys.readouterr().out)

    return planned


def test_the_plan_takes_the_engines_bytes(plan: Any) -> None:
    code, found = plan(answering())
    assert (code, found["verdict"]) == (0, "fits")
    weights = found["best"]["per_gpu"]["weights"]
    assert (weights["rung"], weights["mid"]) == ("asked", int(14.99 * GIB))


def test_a_refusal_is_the_verdict(plan: Any) -> None:
    code, found = plan(refusing("engine-refuses-backend"))
    assert (code, found["verdict"]) == (4, "blocked")
    assert "engine-refuses-backend" in [f["code"] for f in found["findings"]]
    assert plan(refusing("engine-refuses-length"))[0] == 3


def test_an_engine_that_cannot_be_asked_costs_nothing(plan: Any) -> None:
    code, found = plan(UsageError("no-asking-environment", "there is no environment to ask in", hint="make one"))
    assert (code, found["verdict"]) == (0, "fits")
    (note,) = [f for f in found["findings"] if f["code"] == "no-asking-environment"]
    assert (note["severity"], note["hint"]) == ("warning", "make one")
