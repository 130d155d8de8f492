"""The pure parts: statistics, answers, references, claims, blame."""

import asyncio
import json
import math
import struct
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.catalog.deviations import deviations, known_deviation
from firstlight.core.checkpoint import ChatTemplate, Checkpoint
from firstlight.core.errors import EngineError
from firstlight.core.reference import Reference, ReferenceRow
from firstlight.core.run import Endpoint
from firstlight.core.verdict import CheckResult, Verdict
from firstlight.verify.answers import Answer, AnswerBuilder, NoAnswer, TokenRow, answer_from_body, token_rows
from firstlight.verify.blame import Knob, Variation, by_request, find_culprit, not_restarted, suspects
from firstlight.verify.claimed import claims_for
from firstlight.verify.claims import call_fault, parser_for, schema_fault
from firstlight.verify.client import Api, Varied
from firstlight.verify.contract import near_tie
from firstlight.verify.kinds import cosine, judge_vectors
from firstlight.verify.long_context import Pace, Probe, expected
from firstlight.verify.long_context import judge as judge_probes
from firstlight.verify.numerics import row_distance
from firstlight.verify.picture import COLOURS, digits_on
from firstlight.verify.probes import continuations, facts
from firstlight.verify.reference import distance, divergence, judge, prompts
from firstlight.verify.session import Claims, Session
from firstlight.verify.statistics import character_entropy, cycle_share, flood, longest_run
from firstlight.verify.verify import CHECKS
from firstlight.verify.wire import WireLogprobs

PROSE = "The old woman walked to the market, bought bread and two apples, and told the baker about her sons and the cold river."


@pytest.mark.parametrize(
    "text",
    [
        "!" * 40,
        "the the the the the the the the the the the the the the the the the the",
        "\ufffd\ufffd\ufffdab" * 8,
        "a b a b " * 12,
        "0" * 200,
    ],
)
def test_floods_are_named(text: str) -> None:
    assert flood(text)


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13",
        "def add(a, b):\n    return a + b",
        "Paris",
        "法国的首都是巴黎。这是一个很大的城市。",
        "| city | country |\n|------------------------------|---------|\n| Paris | France |",
    ],
)
def test_plain_answers_are_no_floods(text: str) -> None:
    assert flood(text) is None


def test_statistics_of_known_texts() -> None:
    assert longest_run("aabbbbc") == (4, "b")
    assert character_entropy("abab") == pytest.approx(1.0)
    assert cycle_share(["a", "b", "a", "b", "a", "b"]) == 1.0
    assert character_entropy("") == 0.0


def test_both_published_logprob_shapes_give_the_same_rows() -> None:
    chat = {
        "content": [{"token": " a", "logprob": -0.1, "top_logprobs": [{"token": " b", "logprob": -3.0}, {"token": " a", "logprob": -0.1}]}]
    }
    legacy = {"tokens": [" a"], "token_logprobs": [-0.1], "top_logprobs": [{" b": -3.0, " a": -0.1}]}
    rows = [token_rows(msgspec.convert(shape, WireLogprobs)) for shape in (chat, legacy)]
    assert rows[0] == rows[1] == [TokenRow(" a", -0.1, ((" a", -0.1), (" b", -3.0)))]
    assert token_rows(None) == []
    assert math.isnan(token_rows(WireLogprobs(tokens=["x"], token_logprobs=[None]))[0].logprob)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40), st.data())
def test_a_stream_cut_anywhere_is_put_together_again(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    builder = AnswerBuilder(0.0)
    for part in parts:
        builder.feed("data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}), 1.0)
    builder.feed(": a comment", 1.0)
    builder.feed("data: [DONE]", 2.0)
    answer = builder.finish(2.0)
    assert answer.text == text
    assert answer.done
    assert len(answer.chunks) == sum(bool(p) for p in parts)


def test_errors_in_bodies_and_streams_keep_the_servers_words() -> None:
    assert answer_from_body(400, {"error": {"message": "too  long"}}, 0.0).error == "too long"
    assert answer_from_body(200, {"nothing": 1}, 0.0).status == 502
    builder = AnswerBuilder(0.0)
    builder.feed('data: {"error": {"message": "engine died"}}', 0.0)
    assert builder.finish(0.0).error == "engine died"
    assert not builder.finish(0.0).done


def test_a_near_tie_excuses_a_parting_and_a_clear_choice_does_not() -> None:
    start = TokenRow("The", -0.1, (("The", -0.1),))
    close = TokenRow(" a", -1.0, ((" a", -1.0), (" b", -1.2)))
    clear = TokenRow(" a", -0.1, ((" a", -0.1), (" b", -4.0)))
    other = TokenRow(" b", -1.1, ((" b", -1.1), (" a", -1.15)))
    assert near_tie([start, close], [start, other])
    assert near_tie([start, clear], [start, other]) is None


def test_row_distance_counts_only_likely_tokens() -> None:
    a = TokenRow("x", -0.1, (("x", -0.1), ("y", -3.0), ("z", -9.0)))
    b = TokenRow("x", -0.2, (("x", -0.2), ("y", -3.1), ("w", -9.0)))
    assert row_distance(a, b) == pytest.approx(0.1)
    assert math.isinf(row_distance(a, TokenRow("w", -0.1, (("w", -0.1),))))


def row(**logprobs: float) -> ReferenceRow:
    return ReferenceRow(prompt_tokens=5, tokens=list(logprobs), logprobs=list(logprobs.values()))


def test_divergence_is_zero_for_equal_rows_and_grows_with_distance() -> None:
    trusted = row(a=-0.1, b=-2.5)
    assert divergence(trusted, trusted) == pytest.approx(0.0, abs=1e-9)
    near, far = divergence(trusted, row(a=-0.15, b=-2.1)), divergence(trusted, row(b=-0.1, a=-2.5))
    assert 0 < near < 0.05 < far
    assert divergence(trusted, row(c=-0.01)) > 1


def test_a_reference_is_judged_by_divergence_top1_and_token_counts() -> None:
    trusted = Reference(model="m", taken=0.0, prompts=["p one", "p two"], rows=[row(a=-0.1, b=-2.5), row(c=-0.2, d=-2.0)])
    same = judge(distance(trusted, trusted.rows), "exact", trusted)
    assert same.passed
    other = judge(distance(trusted, [row(b=-0.1, a=-2.5), trusted.rows[1]]), "same", trusted)
    assert other.passed is False
    assert any("became 'b'" in line for line in other.evidence)
    recount = [ReferenceRow(prompt_tokens=6, tokens=r.tokens, logprobs=r.logprobs) for r in trusted.rows]
    tokens = judge(distance(trusted, recount), "quantized", trusted)
    assert tokens.passed is False
    assert "another tokenizer" in " ".join(tokens.evidence)


def test_a_quantization_sized_distance_names_the_tolerance_that_would_take_it() -> None:
    trusted = Reference(model="m", taken=0.0, prompts=["p"], rows=[row(a=-0.3, b=-1.6)])
    found = judge(distance(trusted, [row(a=-0.5, b=-1.1)]), "same", trusted)
    assert found.passed is False
    assert found.note
    assert "--tolerance quantized" in found.note


def test_more_than_the_same_engine_differs_by_is_told() -> None:
    trusted = Reference(model="m", engine="vllm", taken=0.0, prompts=["p"], rows=[row(a=-0.5, b=-1.2)])
    near = distance(trusted, [row(a=-0.565, b=-1.075)])
    assert 0.0030 < near.kl < 0.0047
    notes = {engine: judge(near, "same", trusted, engine=engine).note or "" for engine in ("vllm", "llamacpp", None)}
    assert "--tolerance exact" in notes["vllm"]
    assert all(notes[other].startswith("judged as") for other in ("llamacpp", None))
    assert judge(near, "exact", trusted, engine="vllm").passed is False


def test_prompts_are_fixed_and_many_enough() -> None:
    assert len(prompts()) == len(set(prompts())) >= 100
    assert len(facts()) >= 5
    assert len(continuations()) >= 10


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Paris"}}', "llama3_json"),
        ('{"name": "Ann", "age": 3}', None),
        ('<tool_call>\n{"name": "f"}', "hermes"),
        ("<tool_call>\n<function=f>", "qwen3_coder"),
        ("[TOOL_CALLS][{", "mistral"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("plain words", None),
    ],
)
def test_markup_names_its_parser(text: str, parser: str | None) -> None:
    found = parser_for(text, "tool")
    assert (found and found.split(" (")[0]) == parser


def test_tool_calls_are_judged_by_name_and_arguments() -> None:
    def call(name: str, arguments: str) -> Answer:
        return Answer(status=200, tool_calls=[{"id": "1", "function": {"name": name, "arguments": arguments}}])

    assert call_fault(call("get_weather", '{"city": "Paris"}'), None) is None
    assert "not JSON" in (call_fault(call("get_weather", "{"), None) or [""])[0]
    assert "without the city" in (call_fault(call("get_weather", "{}"), None) or [""])[0]
    assert "called 'f'" in (call_fault(call("f", "{}"), None) or [""])[0]
    assert "no tool call" in (call_fault(Answer(status=200, text="sunny"), None) or [""])[0]


def test_schema_faults() -> None:
    assert schema_fault('{"name": "Ann", "age": 3}') is None
    assert "other types" in (schema_fault('{"name": "Ann", "age": "3"}') or "")
    assert "other keys" in (schema_fault('{"name": "Ann", "age": 3, "x": 1}') or "")
    assert "not JSON" in (schema_fault("Ann, 3") or "")


def test_a_picture_is_a_png_of_its_colour_with_white_digits() -> None:
    data = digits_on("47", "blue")
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    raw = zlib.decompress(data[data.index(b"IDAT") + 4 : data.rindex(b"IEND") - 8])
    assert len(raw) == height * (1 + 3 * width)
    assert raw[1:4] == bytes(COLOURS["blue"].rgb)
    assert b"\xff\xff\xff" in raw


def test_vectors() -> None:
    near = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]
    assert judge_vectors(near, [[1.0, 0.0]]).passed
    assert judge_vectors(near, [[0.0, 1.0]]).passed is False
    assert judge_vectors([near[0], near[2], near[1]], [[1.0, 0.0]]).passed is False
    assert judge_vectors([[float("nan")], [1.0], [1.0]], []).passed is False
    assert cosine([1.0], [1.0, 2.0]) == 0.0


def test_counting_must_hold_at_every_length_and_a_needle_at_some() -> None:
    def probes(needles: list[bool], counts: list[bool]) -> list[Probe]:
        return [Probe(i / 4, n, c, 1.0, f"{i}") for i, (n, c) in enumerate(zip(needles, counts, strict=True))]

    assert judge_probes(probes([True] * 5, [True] * 5)).passed
    assert judge_probes(probes([True] * 5, [True, True, True, False, True])).passed is False
    faded = judge_probes(probes([True, True, True, False, False], [True] * 5))
    assert faded.passed
    assert faded.note
    assert "lost at" in faded.note
    assert judge_probes(probes([True, False, False, False, False], [True] * 5)).passed is False
    assert judge_probes(probes([False] * 5, [True] * 5)).passed, "a model that finds no needle at all is not judged by needles"


def test_a_length_is_expected_to_take_what_the_steps_before_it_say() -> None:
    def read(*steps: tuple[int, float]) -> list[Probe]:
        return [Probe(0.0, True, True, seconds, "", tokens) for tokens, seconds in steps]

    even, falling = Pace(tokens=10, seconds=0.1), read((100, 5.0), (1100, 10.0), (2100, 5.0))
    assert expected(even, read((100, 5.0)), 1100) == pytest.approx(10), "one short text tells less than the pace"
    assert expected(even, read((100, 5.0), (1100, 10.0)), 2100) == pytest.approx(10)
    assert expected(even, read((100, 5.0), (1100, 10.0), (2100, 20.0)), 3100) == pytest.approx(30), "each step costs more than the last"
    assert expected(even, falling, 3100) == pytest.approx(5), "a line that does not fall"


def test_claims_come_from_flags_and_template() -> None:
    base = Checkpoint(ref="m", format="gguf", chat_template=ChatTemplate(present=False))
    assert claims_for(base, []).kind == "base"
    assert claims_for(base, ["--chat-template", "t.jinja"]).kind is None
    assert claims_for(None, []).kind is None
    args = ["--tool-call-parser=hermes", "--reasoning-parser", "qwen3"]
    claims = claims_for(Checkpoint(ref="m", format="safetensors", modalities=["text", "image"]), args)
    assert (claims.tools, claims.tool_parser, claims.reasoning_parser, claims.vision) == (True, "hermes", "qwen3", True)
    assert claims_for(None, ["--runner", "pooling"]).kind == "embedding"
    assert claims_for(None, ["--embeddings", "--pooling", "mean"]).kind == "embedding"
    assert claims_for(None, ["--reasoning-format", "deepseek"]).reasoning
    assert not claims_for(None, ["--reasoning-format", "none"]).reasoning
    with_tools = Checkpoint(ref="m", format="gguf", chat_template=ChatTemplate(present=True, tools=True))
    assert (claims_for(with_tools, []).template_tools, claims_for(with_tools, []).tools) == (True, False)


def verdict(**passed: bool) -> Verdict:
    group = {c.name: c.group for c in CHECKS}
    names = {k.replace("_", "-"): v for k, v in passed.items()}
    checks = [CheckResult(name=n, group=group[n], passed=ok, evidence=[f"{n} {'fine' if ok else 'broken'}"]) for n, ok in names.items()]
    return Verdict(passed=all(passed.values()), endpoint="e", checks=checks)


HERE = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")


async def test_blame_turns_knobs_until_the_failed_checks_pass() -> None:
    turned: list[str] = []

    async def relaunch(knob: Knob) -> Endpoint | None:
        turned.append(knob.name)
        if knob.name == "speculative-decoding":
            raise EngineError("engine-failed", "did not come up")
        return None if knob.name == "chat-template" else HERE

    async def ask(endpoint: Endpoint, checks: object) -> Verdict:
        assert checks == ["known-answers", "trivial-continuations"]
        ok = turned[-1] == "eager"
        return verdict(known_answers=ok, trivial_continuations=ok)

    found = await find_culprit(verdict(known_answers=False, trivial_continuations=False, usage=True), relaunch, ask, engine="vllm")
    assert [(b.knob, b.culprit) for b in found] == [
        ("kv-cache-dtype", False),
        ("speculative-decoding", False),
        ("prefix-cache", False),
        ("eager", True),
    ]
    assert "did not come up" in found[1].evidence[0]
    assert found[-1].evidence[0] == "with enforce_eager == True: 2 of 2 failed checks pass"
    assert any(line.startswith("remedy (ask)") for line in found[-1].evidence)


async def test_blame_says_what_was_left_out() -> None:
    async def relaunch(knob: Knob) -> Endpoint | None:
        return HERE if knob.name == "chat-template" else None

    async def ask(endpoint: Endpoint, checks: object) -> Verdict:
        return verdict(known_answers=True)

    found = await find_culprit(verdict(known_answers=False), relaunch, ask, engine="vllm")
    assert (found[-1].knob, found[-1].culprit) == ("chat-template", True)
    assert found[-1].evidence[0] == "with --chat-template left out: 1 of 1 failed checks pass"


async def test_blame_stops_when_its_time_is_over() -> None:
    async def never(*_: object) -> Endpoint | None:
        raise AssertionError("nothing may be started")

    found = await find_culprit(verdict(known_answers=False), never, never, engine="vllm", budget_seconds=0)  # type: ignore[arg-type]
    assert len(found) == 1
    assert "budget" in found[0].evidence[0]


async def test_what_could_not_be_asked_again_is_not_cured() -> None:
    async def relaunch(knob: Knob) -> Endpoint | None:
        return HERE

    async def silent(endpoint: Endpoint, checks: object) -> Verdict:
        skipped = CheckResult(name="known-answers", group="coherence", passed=False, skipped=True, note="not asked: models got no answer")
        return Verdict(passed=False, endpoint="e", checks=[skipped])

    found = await find_culprit(verdict(known_answers=False), relaunch, silent, engine="vllm")
    assert found
    assert not any(b.culprit for b in found)


async def test_what_one_request_can_change_is_tried_and_the_rest_is_named() -> None:
    tried: list[str] = []

    async def ask(variation: Variation, checks: object) -> Verdict:
        tried.append(variation.name)
        return verdict(known_answers=variation.varied.salt is not None)

    found = await by_request(verdict(known_answers=False), ask, engine="vllm")
    assert tried == ["batching", "prefix-cache"]
    assert [(b.knob, b.culprit) for b in found] == [("batching", False), ("prefix-cache", True)]
    assert await by_request(verdict(usage=False), ask, engine="vllm") == []
    assert [b.knob for b in await by_request(verdict(parallel=False), ask, engine=None)] == ["batching"]
    assert "each needs a start: eager" in not_restarted(["eager"], "not ours").evidence[1]


def test_a_varied_request_differs_only_by_what_it_says() -> None:
    assert Varied().body({"prompt": "x"}) == {"prompt": "x"}
    assert Varied(fields={"cache_prompt": False}).body({"prompt": "x"}) == {"prompt": "x", "cache_prompt": False}
    salted = [Varied(salt="cache_salt").body({})["cache_salt"] for _ in range(2)]
    assert salted[0] != salted[1]


def test_a_row_that_holds_no_logprobs_is_infinitely_far() -> None:
    good = ReferenceRow(prompt_tokens=1, tokens=["a"], logprobs=[-0.1])
    for bad in (math.nan, math.inf, -math.inf, 5.0):
        wrong = ReferenceRow(prompt_tokens=1, tokens=["a"], logprobs=[bad])
        assert divergence(good, wrong) == divergence(wrong, good) == math.inf


async def test_the_first_of_many_that_fails_ends_them_all() -> None:
    session = Session(Api("http://127.0.0.1:1/v1", "m"), HERE, Claims(), parallel=2)
    ended: list[int] = []

    async def job(i: int) -> int:
        try:
            await asyncio.sleep(0 if i == 1 else 30)
        finally:
            ended.append(i)
        raise NoAnswer("stall", f"job {i}")

    with pytest.raises(NoAnswer, match="job 1"):
        await session.together(job(i) for i in range(5))
    await session.api.close()
    assert ended[0] == 1
    assert not {3, 4} & set(ended)


def test_suspects_depend_on_what_failed() -> None:
    assert suspects(verdict(usage=False), "vllm") == []
    assert suspects(verdict(known_answers=False), "vllm")[0].name == "chat-template"
    assert suspects(verdict(known_answers=False, trivial_continuations=False), "llamacpp")[0].name == "kv-cache-dtype"


def test_deviations_name_real_checks() -> None:
    names = {c.name for c in CHECKS}
    assert all(d.check in names and d.what and d.seen for d in deviations())
    assert known_deviation("vllm", "n", "n-refused-at-temperature-0")
    assert known_deviation("vllm", "errors", "unknown-model-accepted") is None
