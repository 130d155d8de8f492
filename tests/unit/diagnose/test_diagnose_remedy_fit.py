"""A remedy is only given where it helps: its conditions, other engines' flags, other platforms' tools; titles with facts."""

import pytest

from firstlight.catalog.findings import explain
from firstlight.catalog.rules import Rule, read_rules, titled
from firstlight.catalog.signs import flags_of, signs
from firstlight.core.errors import InputError
from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.noise import without_chatter

RULE = """
[[rule]]
code = "own-thing"
title = "the {what|big} thing failed"
meaning = "A thing failed."
match = ['the (?:(?P<what>\\w+) )?thing broke in (?P<count>\\d+)', 'thing broke']
phases = ["loading"]
[[rule.remedy]]
"""
VLLM = b"INFO 11-30 10:00:00 [api_server.py:1896] vLLM API server version 0.32.0\n"
SGLANG = b"[2026-11-30 10:00:00] server_args=ServerArgs(model_path='m', tp_size=2)\n"
LLAMA = b"llama_model_load: error loading model: oh\n"
ASCEND = b'INFO 11-30 10:00:00 [__init__.py:44] - ascend -> vllm_ascend:register\n  File "/opt/vllm_ascend/worker.py", line 3, in f\n'
ROCM = b"INFO 11-30 10:00:00 [__init__.py:220] Automatically detected platform rocm.\n"
CUDA = b"INFO 11-30 10:00:00 [__init__.py:220] Automatically detected platform cuda.\n"
FAILED = b"RuntimeError: the blue thing broke in 7\n"


def given(remedy: str, log: bytes) -> list[str]:
    rules: list[Rule] = read_rules(RULE + remedy, "own.toml")
    return [r.action or " ".join(f"{k}={v}" for k, v in (r.change or {}).items()) for r in diagnose(log, rules=rules).remedies]


@pytest.mark.parametrize(
    ("remedy", "with_it", "without_it"),
    [
        ("action = 'a'\nengines = ['vllm']", VLLM, SGLANG),
        ("action = 'a'\nengines = ['vllm']", b"", LLAMA),
        ("action = 'a'\nengines = ['sglang']", SGLANG, b""),
        ("action = 'a'\nplatforms = ['cuda']", CUDA, ROCM),
        ("action = 'a'\nplatforms = ['cuda']", b"", ASCEND),
        ("action = 'a'\nplatforms = ['rocm', 'npu']", ASCEND, b""),
        ("action = 'a'\nversions = '>=0.30'", VLLM, VLLM.replace(b"0.32", b"0.16")),
        ("action = 'a'\nwith_log = ['ascend']", ASCEND, CUDA),
        ("action = 'a'\nunless_log = ['ascend']", CUDA, ASCEND),
        ("action = 'a'\nphases = ['configuring']", VLLM, b"INFO 11-30 10:00:00 [gpu_worker.py:1] Starting to load model m...\n"),
    ],
)
def test_conditions(remedy: str, with_it: bytes, without_it: bytes) -> None:
    assert given(remedy, with_it + FAILED) == ["a"]
    assert given(remedy, without_it + FAILED) == []


def test_conditions_on_message_and_facts() -> None:
    assert given("action = 'a'\nmatch = ['blue']\nunless = ['green']", FAILED) == ["a"]
    assert given("action = 'a'\nmatch = ['green']", FAILED) == []
    assert given("action = 'a'\nunless = ['blue']", FAILED) == []
    assert given("action = 'a'\nwhen = '= above(count, 6)'", FAILED) == ["a"]
    assert given("action = 'a'\nwhen = '= above(count, 7)'", FAILED) == []
    assert given("action = 'a'\nlacks = ['count']", FAILED) == []
    traceback = b'Traceback (most recent call last):\n  File "/x/blue.py", line 3, in f\n    g()\n' + FAILED
    assert given("action = 'a'\nframes = ['blue\\.py']", traceback) == ["a"]
    assert given("action = 'a'\nunless_frames = ['blue\\.py']", traceback) == []


def test_another_engine_gets_its_own_flags_or_nothing() -> None:
    assert given("change = { max_model_len = 4096 }", SGLANG + FAILED) == ["context_length=4096"]
    assert given("change = { max_model_len = 4096 }", LLAMA + FAILED) == ["max_model_len=4096"], "a plan keeps its names"
    assert given("change = { compilation_config = '{}' }", SGLANG + FAILED) == []
    assert given("change = { attention_backend = 'TRITON_ATTN' }", SGLANG + FAILED) == []
    assert given("change = { VLLM_USE_DEEP_GEMM = 0 }", LLAMA + FAILED) == []
    assert given("action = 'lower --max-num-seqs'", SGLANG + FAILED) == ["lower --max-running-requests"]
    assert given("action = 'set --compilation-config'", SGLANG + FAILED) == []
    assert given("action = 'set --compilation-config'\nengines = ['sglang']", SGLANG + FAILED) == ["set --compilation-config"]
    assert given("action = 'choose another --port (inside: VLLM_PORT)'", LLAMA + FAILED) == ["choose another --port"]
    assert given("action = 'try --attention-backend FLASHINFER'", SGLANG + FAILED) == []
    assert given("action = 'set VLLM_LOGGING_LEVEL and NCCL_DEBUG'", SGLANG + FAILED) == [], "a platform's word does not excuse it"


def test_another_platform_gets_its_own_tool_or_nothing() -> None:
    assert given("action = 'look at nvidia-smi'", ROCM + FAILED) == ["look at rocm-smi"]
    assert given("action = 'look (`nvidia-smi --query-compute-apps=pid --format=csv`)'", ASCEND + FAILED) == ["look (`npu-smi info`)"]
    assert given("action = 'look at nvidia-smi'", b"" + FAILED) == ["look at nvidia-smi"]
    assert given("action = 'start docker with --gpus all'", ASCEND + FAILED) == []
    assert given("change = { NCCL_DEBUG = 'INFO' }", ASCEND + FAILED) == []
    assert given("change = { NCCL_DEBUG = 'INFO' }", ROCM + FAILED) == ["NCCL_DEBUG=INFO"]


def test_a_log_tells_its_platform_and_engine() -> None:
    found = diagnose(ASCEND + SGLANG)
    assert (found.facts["platform"], found.facts["engine"]) == ("npu", "sglang")
    assert diagnose(b"HIP error: invalid argument\n" + CUDA).facts["platform"] == "cuda", "what the program says itself outweighs a word"
    assert "platform" not in diagnose(b"nothing of it\n").facts


def test_titles_hold_facts() -> None:
    rules = read_rules(RULE + "action = 'a'", "own.toml")
    cause = diagnose(FAILED, rules=rules).cause
    assert cause is not None
    assert cause.title == "the blue thing failed"
    other = diagnose(b"RuntimeError: thing broke\n", rules=rules).cause
    assert other is not None
    assert other.title == "the big thing failed"
    assert titled("no {flag} here", {}) == "no flag here"
    assert len(titled("{name}", {"name": "x" * 500})) == 80


def test_a_condition_that_cannot_be_read_is_refused() -> None:
    for wrong in ("platforms = ['nvidia']", "engines = 'vllm'", "matches = ['a']", "match = ['(']"):
        with pytest.raises(InputError, match="cannot be read"):
            read_rules(RULE + "action = 'a'\n" + wrong, "own.toml")


def test_conditions_in_words() -> None:
    rule = read_rules(RULE + "action = 'a'\nengines = ['vllm']\nphases = ['loading']\nwith_log = ['x y']\nlacks = ['count']", "own.toml")[0]
    assert rule.remedies[0].conditions == "vllm; in loading; where the log has `x y`; without count"
    assert explain("process-killed").cure, "a rule's remedies without conditions are told as they are"


def test_the_tables_hold_together() -> None:
    platforms, engines = {p.name for p in signs().platform}, {e.name for e in signs().engine}
    assert all({*row.platforms} <= platforms and {*row.engines} <= engines for row in signs().belongs)
    for engine in ("sglang", "llamacpp"):
        flags = flags_of(engine)
        assert flags is not None
        assert {*flags.values} <= flags.own.keys()
    assert flags_of("vllm") is None


def test_otherwise_stands_in_for_the_remedy_before_it() -> None:
    both = "action = 'count {count}'\n[[rule.remedy]]\naction = 'no count'\notherwise = true"
    assert given(both, FAILED) == ["count 7"]
    assert given(both, b"RuntimeError: thing broke\n") == ["no count"]


def test_a_remedy_that_only_repeats_the_message_is_none() -> None:
    assert given("action = 'thing broke'", FAILED) == []
    far = b"RuntimeError: " + b"word " * 80 + b"the thing broke in 7\n"
    assert given("action = 'thing broke'", far) == ["thing broke"], "what is not shown with the evidence is told"


def test_a_reason_that_only_repeats_the_message_is_none() -> None:
    rules = read_rules(RULE + "action = 'a'\nbecause = 'thing broke'", "own.toml")
    assert diagnose(FAILED, rules=rules).remedies[0].because == ""


def test_the_platform_is_told_by_a_late_failure_too() -> None:
    line = b"INFO 11-30 10:00:00 [core.py:1] all is well and nothing happens here, which takes its time\n"
    assert diagnose(iter([line * 24000, line * 4000, b"RuntimeError: HIP error: invalid argument\n"])).facts["platform"] == "rocm"


def test_a_rule_of_two_engines_speaks_vllms_words() -> None:
    rules = read_rules(RULE.replace("phases", "engines = ['vllm', 'sglang']\nphases") + "action = 'set --compilation-config'", "own.toml")
    assert diagnose(VLLM + FAILED, rules=rules).remedies
    assert not diagnose(SGLANG + FAILED, rules=rules).remedies


def test_everyday_lines_are_left_out_of_the_look_ahead_and_nothing_else() -> None:
    speed = b"(APIServer pid=1) INFO 11-30 10:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 12.3 tokens/s\n"
    well = b'(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    told = b"(EngineCore pid=7) WARNING 11-30 10:00:00 [core.py:1] throughput: the words of some rule\n"
    assert without_chatter(speed * 30 + told + well * 30) == told
    assert without_chatter(speed * 3 + told) == speed * 3 + told
    assert given("action = 'a'\nwith_log = ['the words of some rule']", speed * 200 + told + FAILED) == ["a"]
