"""Which lessons hold for a request, and that consent is not remembered."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from firstlight.app.group import run
from firstlight.app.heal import consent_name
from firstlight.app.knowledge import Lesson, _allowed, _holds, _write, asked
from firstlight.app.places import state_folder
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


def test_what_is_no_lesson_is_shown_and_goes_with_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    folder = state_folder() / "knowledge"
    folder.mkdir(parents=True)
    whole = Lesson(id="abc", model="m", machine="h", engine="vllm", constraints=[constraint("max_model_len", 1)], run="r", learned=0.0)
    (folder / "abc.json").write_bytes(msgspec.json.encode(whole))
    (folder / "torn.json").write_bytes(msgspec.json.encode(whole)[:20])
    (folder / "moved.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(whole, id="../run")))
    outside = state_folder() / "run.json"
    outside.write_text("not a lesson")
    assert run(["knowledge", "list"]) == 0
    said = capsys.readouterr()
    assert said.out.count("max_model_len") == 1
    assert all(name in said.err for name in ("torn.json", "moved.json"))
    assert run(["knowledge", "forget", "../"]) == 2
    assert run(["knowledge", "forget", "--all"]) == 0
    assert list(folder.iterdir()) == []
    assert outside.exists()


def test_a_lesson_that_cannot_be_written_leaves_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    lesson = Lesson(id="abc", model="m", machine="h", engine="vllm", constraints=[], run="r", learned=0.0)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert _write(lesson) is False
    assert list((state_folder() / "knowledge").iterdir()) == []
