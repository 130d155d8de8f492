"""Numbers of lines that no milestone knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.watch.numbers import numbers_of
from firstlight.watch.state import EngineLog


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("local_world_size=1, reserve_cpu_num=2", {"local_world_size": 1, "reserve_cpu_num": 2}),
        ("TokenSpeed MLA decode workspace: 1.50 GiB", {"quantities": [{"value": 1.5, "unit": "GiB"}]}),
        ("budget of 8,192 tokens and 3 layers", {"quantities": [{"value": 8192, "unit": "tokens"}, {"value": 3, "unit": "layers"}]}),
        ("scale = 0.5 in 12 ms", {"scale": 0.5, "quantities": [{"value": 12, "unit": "ms"}]}),
        ("address=10.0.0.2:80 version=1.2.3 /a/b=4/c stamp=12:30 float32 v0.25.1 E8M0", {}),
        ("text=5 line=6", {}),
        ("no numbers here", {}),
    ],
)
def test_named_numbers_and_quantities(text: str, found: dict[str, object]) -> None:
    assert numbers_of(text) == found


@given(st.text(max_size=300))
def test_any_text_gives_numbers_or_nothing(text: str) -> None:
    for name, value in numbers_of(text).items():
        assert name == "quantities" or isinstance(value, int | float)


def test_they_are_figures_until_ready_and_of_logging_lines_alone() -> None:
    log = EngineLog("vllm")
    line = b"(EngineCore pid=2) INFO 10-12 08:00:05 [a.py:1] pool of 3 blocks, size=7\n"
    (figure,) = log.feed(line, 1.0)
    assert (figure.kind, figure.data["size"], figure.data["quantities"]) == ("figure", 7, [{"value": 3, "unit": "blocks"}])
    assert log.feed(b"free text with size=7\n", 1.0) == []
    log.feed(b"INFO:     Application startup complete.\n", 2.0)
    assert log.feed(line, 3.0) == []
