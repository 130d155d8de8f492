"""An engine of somebody else's package: what is pinned is passed on, and nothing is guessed."""

from typing import Any

import pytest

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Machine
from firstlight.core.plan import Constraint, EngineRef, PlanSet
from firstlight.plan import plan as planning


class Foreign:
    name, title = "myengine", "My Engine"

    def overlay(self, *_: Any) -> None:
        return None


@pytest.fixture(autouse=True)
def foreign_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "load_adapters", lambda: [Foreign()])


def planned(intent: Intent, *constraints: Constraint) -> PlanSet:
    checkpoint = Checkpoint(ref="/m", format="safetensors", name="m")
    return planning.plan(
        checkpoint, Machine(hostname="h"), intent, engine=EngineRef(name="myengine", version="1.0"), constraints=constraints
    )


def at_most(field: str, value: int) -> Constraint:
    return Constraint(field=field, op="<=", value=value, because="it did not fit", source="oom-profile")


def test_pins_become_flags_and_no_figure_is_known() -> None:
    found = planned(Intent(model="/m", pins=Pins(tensor_parallel_size=2, max_model_len=4096, enforce_eager=True, dtype="float16")))
    assert (found.verdict, [f.code for f in found.findings]) == ("unknown", ["not-computed"])
    assert found.best is not None
    assert found.best.args == ["--tensor-parallel-size", "2", "--max-model-len", "4096", "--dtype", "float16", "--enforce-eager"]
    assert (found.best.tensor_parallel_size, found.best.max_model_len) == (2, 4096)
    assert (found.best.per_gpu, found.best.predicted, found.best.kv_tokens.known) == (None, None, False)


def test_nothing_pinned_is_nothing_passed_on() -> None:
    best = planned(Intent(model="/m")).best
    assert best is not None
    assert (best.args, best.max_model_len, best.max_num_seqs) == ([], None, None)


def test_the_context_that_is_wanted_is_passed_on() -> None:
    best = planned(Intent(model="/m", context=1000)).best
    assert best is not None
    assert best.args == ["--max-model-len", "1000"]


def test_what_healing_found_cuts_what_was_pinned_and_sets_what_was_not() -> None:
    wanted = Intent(model="/m", pins=Pins(max_model_len=100_000))
    best = planned(wanted, at_most("max_model_len", 4096), at_most("max_num_seqs", 8)).best
    assert best is not None
    assert best.args == ["--max-model-len", "4096", "--max-num-seqs", "8"]
