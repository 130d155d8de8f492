"""Which lessons hold for a request, and that consent is not remembered."""

from types import SimpleNamespace
from typing import Any

import pytest

from firstlight.app.heal import consent_name
from firstlight.app.knowledge import Lesson, _allowed, _holds, asked
from firstlight.core.diagnosis import Remedy
from firstlight.core.intent import Intent, Pins
from firstlight.core.plan import Constraint


def constraint(field: str, value: Any) -> Constraint:
    return Constraint(field=field, op="==", value=value, because="it was so", source="test")


@pytest.mark.parametrize(
    ("field", "value", "failed", "wanted", "holds"),
    [
        ("max_model_len", 4096, 8192, None, True),
        ("max_model_len", 4096, 8192, "8192", True),
        ("max_model_len", 4096, 8192, 5000, True),
        ("max_model_len", 4096, 8192, 4096, False),
        ("max_model_len", 4096, 8192, 1024, False),
        ("gpu_memory_utilization", 0.85, 0.92, 0.9, True),
        ("gpu_memory_utilization", 0.85, 0.92, 0.8, False),
        ("--attention-backend", "FLASHMLA", "TRITON_MLA", "TRITON_MLA", True),
        ("--attention-backend", "FLASHMLA", "TRITON_MLA", "CUTLASS_MLA", False),
        ("max_model_len", None, 8192, 4096, False),
    ],
)
def test_a_lesson_gives_way_to_what_is_asked_for_unless_that_failed(field: str, value: Any, failed: Any, wanted: Any, holds: bool) -> None:
    assert _holds(constraint(field, value), failed, wanted) is holds


def test_what_is_asked_for_may_stand_after_the_dashes() -> None:
    intent = Intent(model="m", pins=Pins(max_num_seqs=4), extra_args=["--attention-backend", "TRITON_MLA"])
    assert asked(intent, "max_num_seqs") == 4
    assert asked(intent, "--attention-backend") == "TRITON_MLA"
    assert asked(intent, "max_model_len") is None


@pytest.mark.parametrize("yes", [True, False])
def test_what_needed_a_yes_needs_it_again(yes: bool) -> None:
    remedy = Remedy(change={"kv_cache_dtype": "fp8"})
    names: list[str] = []

    def given(name: str, question: str, *, evidence: tuple[str, ...]) -> bool:
        names.append(name)
        return yes

    consents = {"kv_cache_dtype": consent_name(remedy)}
    lesson = Lesson(id="a", model="m", machine="h", engine="vllm", constraints=[], run="r", learned=0.0, consents=consents)
    session: Any = SimpleNamespace(consent=SimpleNamespace(given=given))
    assert _allowed(session, lesson, constraint("kv_cache_dtype", "fp8")) is yes
    assert names == ["kv-cache-dtype"]
    assert _allowed(session, lesson, constraint("max_model_len", 1024))
