"""Numbers of lines that no milestone knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.watch.numbers import numbers_of, settings_of
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


def test_settings_of_arguments_and_configurations() -> None:
    args = "{'model': '/m', 'api_key': 'k=5', 'tensor_parallel_size': 8, 'gpu_memory_utilization': 0.9, 'enforce_eager': True}"
    assert settings_of(args) == {"tensor_parallel_size": 8, "gpu_memory_utilization": 0.9, "enforce_eager": True}
    config = (
        "model='/m', dtype=torch.bfloat16, max_seq_len=1024, tensor_parallel_size=2, enforce_eager=False, seed=0, "
        "compilation_config={'mode': 3, 'cudagraph_capture_sizes': [1, 2, 4, 8], 'max_cudagraph_capture_size': 8}"
    )
    found = settings_of(config)
    assert found["cudagraph_capture_sizes"] == [1, 2, 4, 8]
    assert (found["max_seq_len"], found["enforce_eager"], found["max_cudagraph_capture_size"]) == (1024, False, 8)
    assert "model" not in found


def test_the_settings_are_in_the_event_of_the_line() -> None:
    (_, _, figure) = EngineLog("vllm").feed(b"(APIServer pid=9) INFO 10-12 08:00:00 [a.py:1] non-default args: {'max_num_seqs': 4}\n", 1.0)
    assert figure.data["settings"] == {"max_num_seqs": 4}


def test_a_number_with_thousands_of_digits_stays_text() -> None:
    log = EngineLog("vllm")
    events = log.feed(f"INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache size: {'9' * 5000} tokens\n".encode(), 0.0)
    assert "9" * 5000 in str(events)
