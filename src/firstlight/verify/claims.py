"""What the model or its flags claim: reasoning apart, tool calls, JSON schema, vision. Tested only when claimed."""

import json
import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from firstlight.catalog.deviations import Deviation, known_deviation
from firstlight.verify.answers import Answer
from firstlight.verify.picture import COLOURS, data_url, digits_on
from firstlight.verify.session import THINKING, Outcome, Session
from firstlight.verify.wire import WireTexts, read


@cache
def _markup(kind: str) -> list[tuple[re.Pattern[str], str]]:
    data = tomllib.loads(files("firstlight.verify").joinpath("markup.toml").read_text("utf-8"))
    return [(re.compile(m["pattern"]), m["parser"]) for m in data[kind]]


def parser_for(text: str, kind: str) -> str | None:
    """The parser that would have read the markup left in `text`. kind: tool | reasoning."""
    return next((parser for pattern, parser in _markup(kind) if pattern.search(text)), None)


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris right now? Use the tool."}


async def tools(session: Session) -> Outcome:
    """A question that needs the tool is answered by a parsed call, whole and streamed, and its result is taken up."""
    if not session.claims.tools:
        return await _tools_of_template(session)
    return await _tools(session)


async def _tools_of_template(session: Session) -> Outcome:
    """Tools that only the template knows: what is missing to use them is said, and is no fault of an endpoint nobody set up for it."""
    if not session.claims.template_tools or not session.thorough:
        return Outcome(passed=None, note="not claimed")
    found = await _tools(session)
    return found if found.passed else Outcome(passed=None, note=found.note or f"claimed by the template alone: {found.evidence[0]}")


async def _tools(session: Session) -> Outcome:
    body: dict[str, Any] = {
        "messages": [QUESTION],
        "tools": [WEATHER],
        "max_tokens": THINKING if session.thinking else 256,
        "temperature": 0,
    }
    answer = await session.api.chat(**body, tool_choice="auto")
    if answer.ok and not answer.tool_calls and parser_for(answer.whole, "tool") is None:
        return await _forced(session, body, answer)
    if (fault := call_fault(answer, session.claims.tool_parser)) is not None:
        return Outcome(passed=False, evidence=fault)
    streamed = await session.api.stream("/chat/completions", {**body, "tool_choice": "auto"})
    if (fault := call_fault(streamed, session.claims.tool_parser)) is not None:
        return Outcome(passed=False, evidence=["streamed:", *fault])
    return await _round_trip(session, answer)


async def _forced(session: Session, body: dict[str, Any], free: Answer) -> Outcome:
    """A model that answers in words leaves nothing to parse: whether a call that it must make comes parsed, is all that can be seen."""
    said = f"left to itself it calls no tool: {free.whole.strip()[:80]!r}"
    answer = await session.api.chat(**body, tool_choice="required")
    if (fault := call_fault(answer, session.claims.tool_parser)) is not None:
        return Outcome(passed=False, evidence=[said, "told that it must (tool_choice: required):", *fault])
    return Outcome(passed=None, note=f"{said}; told that it must, its call is parsed. The parser itself was not seen at work")


def call_fault(answer: Answer, parser: str | None) -> list[str] | None:
    """What is wrong with a tool call, None when it is as asked. Names `tool-parser-missing` and `tool-parser-model-mismatch`."""
    if not answer.ok:
        missing = "parser" in answer.error or "--jinja" in answer.error or "tool choice" in answer.error
        code = "tool-parser-missing: " if missing else ""
        return [f"{code}status {answer.status}: {answer.error}"]
    if not answer.tool_calls:
        wanted = parser_for(answer.whole, "tool")
        if wanted and parser:
            return [f"tool-parser-model-mismatch: {parser} did not read what {wanted} would", repr(answer.whole.strip()[:120])]
        if wanted:
            return [f"tool-parser-missing: the call is in the text, in the way of {wanted}", repr(answer.whole.strip()[:120])]
        return [f"no tool call: {answer.whole.strip()[:120]!r}"]
    function = answer.tool_calls[0].get("function") or {}
    return _argument_fault(function)


def _argument_fault(function: dict[str, Any]) -> list[str] | None:
    if function.get("name") != "get_weather":
        return [f"called {function.get('name')!r}, the tool is 'get_weather'"]
    try:
        arguments = json.loads(function.get("arguments") or "")
    except ValueError:
        return [f"arguments are not JSON: {function.get('arguments')!r}"]
    city = arguments.get("city") if isinstance(arguments, dict) else None
    return None if isinstance(city, str) and city else [f"arguments without the city: {arguments!r}"]


async def _round_trip(session: Session, answer: Answer) -> Outcome:
    """The tool's result goes back; the answer must use it."""
    call = {"id": answer.tool_calls[0].get("id") or "call_1", "type": "function", "function": answer.tool_calls[0]["function"]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"temperature_celsius": 31, "sky": "clear"}'}
    messages: list[dict[str, Any]] = [QUESTION, {"role": "assistant", "content": answer.text or None, "tool_calls": [call]}, result]
    final = await session.api.chat(messages, tools=[WEATHER], max_tokens=THINKING if session.thinking else 128, temperature=0)
    called = f"called get_weather({call['function']['arguments']})"
    if not final.ok:
        return Outcome(passed=False, evidence=[called, f"with its result: status {final.status}: {final.error}"])
    used = "31" in final.whole
    note = None if used else "the call is parsed and its result accepted; the model did not repeat it"
    return Outcome(passed=bool(final.whole.strip() or final.tool_calls), evidence=[called, repr(final.whole.strip()[:80])], note=note)


async def reasoning(session: Session) -> Outcome:
    """Reasoning comes apart from the answer, neither is empty, and no marks are left in it; the full profile asks for a stream too."""
    if not session.claims.reasoning:
        return Outcome(passed=None, note="not claimed")
    body: dict[str, Any] = {"messages": [THINK_FIRST], "max_tokens": THINKING, "temperature": 0}
    answer = await session.api.chat(**body)
    if (fault := _reasoning_fault(answer, session.claims.reasoning_parser)) is not None:
        return Outcome(passed=False, evidence=fault)
    fine = f"{len(answer.reasoning)} characters of reasoning, answer {answer.text.strip()[:40]!r}"
    if not session.thorough:
        return Outcome(passed=True, evidence=[fine])
    streamed = await session.api.stream("/chat/completions", body)
    if (fault := _reasoning_fault(streamed, session.claims.reasoning_parser)) is None:
        return Outcome(passed=True, evidence=[f"{fine}; streamed as well"])
    if (known := await _known_of_streams(session, streamed)) is not None:
        return Outcome(passed=True, evidence=[fine, "streamed:", *fault], note=f"known deviation: {known.what}")
    return Outcome(passed=False, evidence=["streamed:", *fault])


async def _known_of_streams(session: Session, streamed: Answer) -> Deviation | None:
    """vLLM's olmo3, when it streams, takes any end mark in the prompt for the end of the answer's reasoning; the prompt shows it."""
    parser, mark = session.claims.reasoning_parser, "</think>"
    known = known_deviation(session.engine, "reasoning", f"{parser}-ends-by-the-prompt")
    if known is None or not streamed.ok or mark not in streamed.text or streamed.reasoning:
        return None
    asked = {"model": session.api.model, "messages": [THINK_FIRST], "return_token_strs": True}
    status, body = await session.api.post("/tokenize", asked, root=True)
    prompt = read(body, WireTexts)
    return known if status == 200 and not isinstance(prompt, str) and mark in "".join(prompt.token_strs) else None


THINK_FIRST = {"role": "user", "content": "Is 17 a prime number? Think first, then answer in one word."}


def _reasoning_fault(answer: Answer, parser: str | None) -> list[str] | None:
    """What is wrong with how reasoning and answer come apart, None when nothing is."""
    if not answer.ok:
        return [f"status {answer.status}: {answer.error}"]
    if left := parser_for(answer.text, "reasoning"):
        code = f"reasoning-parser-model-mismatch: {parser} left marks" if parser else "reasoning-parser-missing: marks"
        return [f"{code} in the answer that {left} would read", repr(answer.text.strip()[:80])]
    faults = [] if answer.reasoning.strip() else ["the reasoning is empty"]
    faults += [] if answer.text.strip() or answer.finish_reason == "length" else ["the answer after the reasoning is empty"]
    return [*faults, repr(answer.text.strip()[:80])] if faults else None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def json_schema(session: Session) -> Outcome:
    """A schema asked for is honoured exactly: keys, types and nothing else."""
    if not session.claims.json_schema or not session.has_chat:
        return Outcome(passed=None, note="not claimed")
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    messages = [{"role": "user", "content": "Invent a person. Answer as JSON with name and age."}]
    limit = THINKING if session.thinking else 96
    answer = await session.api.chat(messages, max_tokens=limit, temperature=0, response_format=wanted)
    if not answer.ok:
        return Outcome(passed=False, evidence=[f"status {answer.status}: {answer.error}"])
    fault = schema_fault(answer.text)
    return Outcome(passed=fault is None, evidence=[fault or answer.text.strip()[:80].replace("\n", " ")])


def schema_fault(text: str) -> str | None:
    """Why a text is not the person that SCHEMA describes."""
    try:
        value = json.loads(text)
    except ValueError:
        return f"not JSON: {text.strip()[:80]!r}"
    if not isinstance(value, dict) or value.keys() != {"name", "age"}:
        return f"other keys than name and age: {text.strip()[:80]!r}"
    right = isinstance(value["name"], str) and isinstance(value["age"], int) and not isinstance(value["age"], bool)
    return None if right else f"other types: {text.strip()[:80]!r}"


async def vision(session: Session) -> Outcome:
    """Pictures made here, each a number on a colour: most numbers and most colours must be what was drawn."""
    if not session.claims.vision:
        return Outcome(passed=None, note="not claimed")
    asked = [("47", "red"), ("82", "blue"), ("36", "green")]
    answers = await session.together(_look(session, number, colour) for number, colour in asked)
    pairs = list(zip(asked, answers, strict=True))
    numbers = sum(n in a.whole for (n, _), a in pairs)
    colours = sum(bool(re.search(COLOURS[c].words, a.whole, re.I)) for (_, c), a in pairs)
    shown = [f"{n} on {c}: {a.whole.strip()[:60]!r}" if a.ok else f"status {a.status}: {a.error}" for (n, c), a in pairs]
    evidence = [f"{numbers} of {len(asked)} numbers and {colours} of {len(asked)} colours seen rightly", *shown]
    return Outcome(passed=min(numbers, colours) * 2 > len(asked), evidence=evidence)


async def _look(session: Session, number: str, colour: str) -> Answer:
    picture = {"type": "image_url", "image_url": {"url": data_url(digits_on(number, colour))}}
    text = {"type": "text", "text": "Which number is written in this picture, and which colour is its background?"}
    limit = THINKING if session.thinking else 64
    return await session.api.chat([{"role": "user", "content": [picture, text]}], max_tokens=limit, temperature=0)
