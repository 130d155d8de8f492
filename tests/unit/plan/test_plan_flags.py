"""Flags in every spelling, wishes, and what the engine's own flags add to them."""

import click
import pytest
from click.testing import CliRunner

from firstlight.app.plan_options import Planning, planning_of, planning_options
from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.plan import Constraint
from firstlight.plan.flags import parse_count, pins_from_args
from firstlight.plan.wish import wish_of


def heard(*args: str) -> Planning:
    """What a command with the planning flags hears."""
    out: list[Planning] = []

    @click.command()
    @click.argument("model", required=False)
    @planning_options
    def command(model: str | None, **options: object) -> None:
        out.append(planning_of(dict(options), model=model))

    result = CliRunner().invoke(command, list(args), standalone_mode=False, catch_exceptions=False)
    if result.exception:
        raise result.exception
    return out[0]


@pytest.mark.parametrize("flag", ["-tp", "--tensor-parallel-size", "--tensor_parallel_size"])
def test_dashes_underscores_and_short_forms(flag: str) -> None:
    assert heard("m", flag, "8").intent.pins.tensor_parallel_size == 8


def test_every_first_class_flag_of_the_contract_is_heard() -> None:
    planning = heard(
        "m", "-tp", "4", "-pp", "2", "-dp", "2", "--decode-context-parallel-size", "4", "--enable-expert-parallel", "--nodes", "2",
        "--max-model-len", "128k", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.95",
        "--kv-cache-memory-bytes", "16GiB", "--kv-cache-dtype", "fp8", "--dtype", "bfloat16", "--enforce-eager",
        "--mm-encoder-tp-mode", "data",
        "--language-model-only", "--speculative-config", '{"method": "mtp"}', "--block-size", "64",
        "--engine", "vllm@0.16.0", "--for", "agents", "--context", "64K", "--concurrency", "4", "--", "--swap-space", "4",
    )  # fmt: skip
    pins = planning.intent.pins
    assert all(getattr(pins, field) is not None for field in Pins.__struct_fields__)
    assert pins.max_model_len == 128_000
    assert pins.kv_cache_memory_bytes == 16 << 30
    assert planning.intent.context == 65536
    assert planning.intent.extra_args == ["--swap-space", "4"]
    assert planning.engine is not None
    assert planning.engine.version == "0.16.0"


def test_two_machines_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="two-machines"):
        heard("m", "--gpu", "8xh100", "--machine", "m.json").machine()


def test_a_stray_word_is_not_an_engine_flag() -> None:
    with pytest.raises(UsageError, match="unexpected-argument"):
        heard("m", "8")


def test_a_plan_needs_a_model() -> None:
    with pytest.raises(UsageError, match="model-missing"):
        heard("-tp", "8")


@pytest.mark.parametrize(("text", "count"), [("131072", 131072), ("128k", 128_000), ("128K", 131072), ("1M", 1 << 20), ("auto", -1)])
def test_counts_are_read_as_vllm_reads_them(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_a_value_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="bad-flag-value"):
        pins_from_args(["--max-model-len", "long"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("-tp", "0"),
        ("-tp", "-1"),
        ("--block-size", "-3"),
        ("--max-num-seqs", "0"),
        ("--max-num-batched-tokens", "-1"),
        ("--max-model-len", "0"),
        ("--max-model-len", "1e400k"),
        ("--gpu-memory-utilization", "7"),
        ("--gpu-memory-utilization", "0"),
        ("--gpu-memory-utilization", "nan"),
        ("--kv-cache-memory-bytes", "0"),
        ("--kv-cache-dtype", ""),
        ("--speculative-config", "3"),
        ("--speculative-config", "[1]"),
        ("--speculative-config", "[" * 100_000),
    ],
)
def test_a_value_that_no_engine_could_take_is_refused(flag: str, value: str) -> None:
    with pytest.raises(UsageError, match="bad-flag-value"):
        pins_from_args([flag, value])


def test_constraints_win_over_what_the_user_named() -> None:
    intent = Intent(model="m", pins=Pins(max_num_seqs=32), extra_args=["--max-num-seqs=32", "-tp", "2"])
    wish = wish_of(intent, [Constraint(field="tensor_parallel_size", op="==", value=4, because="", source="user")])
    assert wish.pins.max_num_seqs == 32
    assert wish.pins.tensor_parallel_size == 4


def test_flags_that_contradict_each_other_are_refused() -> None:
    intent = Intent(model="m", pins=Pins(tensor_parallel_size=8), extra_args=["-tp", "4"])
    with pytest.raises(UsageError, match="flag-given-twice") as e:
        wish_of(intent, [])
    assert "8 here and 4 after" in e.value.message


def test_another_engines_flags_are_not_vllms() -> None:
    """llama-server's `-n` is the length of an answer, not a number of nodes."""
    assert wish_of(Intent(model="m", extra_args=["-n", "128"]), [], "llamacpp").pins == Pins()


@pytest.mark.parametrize("pins", [Pins(tensor_parallel_size=0), Pins(gpu_memory_utilization=float("nan")), Pins(max_model_len=-7)])
def test_numbers_that_come_by_another_way_are_checked_too(pins: Pins) -> None:
    with pytest.raises(UsageError, match="bad-flag-value"):
        wish_of(Intent(model="m", pins=pins), [])


@pytest.mark.parametrize("wish", [{"context": 0}, {"context": -1}, {"concurrency": -5}])
def test_a_context_or_a_concurrency_is_a_positive_number(wish: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="bad-flag-value"):
        wish_of(Intent(model="m", **wish), [])  # type: ignore[arg-type]


def test_a_constraint_may_unpin() -> None:
    intent = Intent(model="m", pins=Pins(kv_cache_dtype="fp8"))
    wish = wish_of(intent, [Constraint(field="kv_cache_dtype", op="==", value=None, because="", source="heal")])
    assert wish.pins.kv_cache_dtype is None


def test_auto_length_is_the_planners_choice() -> None:
    assert wish_of(Intent(model="m", pins=Pins(max_model_len=-1)), []).max_model_len is None
