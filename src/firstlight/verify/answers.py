"""Answers as the endpoint gave them: whole or streamed, chat or completion, either logprob shape, into one struct."""

import json
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from firstlight.core.errors import FirstlightError
from firstlight.verify.wire import (
    WireAnswer,
    WireCall,
    WireChoice,
    WireDetails,
    WireFunction,
    WireLogprobs,
    WireMessage,
    WireRow,
    WireUsage,
    decoded,
    read,
)


class NoAnswer(FirstlightError):
    """The endpoint did not answer: code `connection`, `stall`, `endless` or `too-large`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message, hint="look at the engine's log; `firstlight watch` reads it")


class TokenRow(Struct, frozen=True):
    """One generated token with its logprob (natural log) and the best alternatives, most likely first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    raw: tuple[int, ...] | None = None
    id: int | None = None


class Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None


class Answer(Struct, kw_only=True):
    """text: the content. reasoning: what a reasoning parser put apart. chunks: (seconds since the request, text) of a stream.

    error: the server's words when status is not 200. seconds: whole request. body: the reply as it came (not of streams).
    """

    status: int
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage = Usage()
    tokens: list[TokenRow] = []
    tool_calls: list[dict[str, Any]] = []
    chunks: list[tuple[float, str]] = []
    role: str | None = None
    error: str = ""
    seconds: float = 0.0
    done: bool = True
    body: Any = None

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def whole(self) -> str:
        """Reasoning and content together: where a known answer may be."""
        return f"{self.reasoning}\n{self.text}" if self.reasoning else self.text


def answer_from_body(status: int, body: Any, seconds: float) -> Answer:
    """A whole reply; anything that is not a completion becomes an Answer with `error`, status 502 where the server said 200."""
    if status != 200:
        return Answer(status=status, error=error_text(body), seconds=seconds, body=body)
    found = read(body, WireAnswer)
    if isinstance(found, str) or not found.choices:
        shown = error_text(body) or "an empty answer"
        words = f"{found}: {shown}" if isinstance(found, str) else f"no choices: {shown}"
        return Answer(status=502, error=words[:300], seconds=seconds, body=body)
    answer = _choice(found.choices[0], Answer(status=status, seconds=seconds, body=body))
    answer.usage = _usage(found.usage)
    return answer


def error_text(body: Any) -> str:
    """The server's own words in an error body, one line."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(body).split())[:300]


def _choice(choice: WireChoice, answer: Answer) -> Answer:
    message = choice.message or WireMessage()
    answer.text = _text(message) or choice.text or ""
    answer.reasoning = message.reasoning_content or message.reasoning or ""
    answer.role = message.role
    answer.tool_calls = [_call(c) for c in message.tool_calls or []]
    answer.finish_reason = choice.finish_reason
    answer.tokens = token_rows(choice.logprobs)
    return answer


def _text(message: WireMessage) -> str:
    parts = message.content
    if isinstance(parts, list):
        return "".join(p["text"] for p in parts if isinstance(p.get("text"), str))
    return parts or ""


def _call(call: WireCall) -> dict[str, Any]:
    """As the API wants it sent back; arguments that came as an object become its JSON."""
    function = call.function or WireFunction()
    return {"id": call.id, "type": "function", "function": {"name": function.name or "", "arguments": _arguments(function)}}


def _arguments(function: WireFunction) -> str:
    given = function.arguments
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)


def _usage(usage: WireUsage | None) -> Usage:
    u = usage or WireUsage()
    return Usage(u.prompt_tokens, u.completion_tokens, u.total_tokens, (u.prompt_tokens_details or WireDetails()).cached_tokens)


def token_rows(logprobs: WireLogprobs | None) -> list[TokenRow]:
    """Both published shapes: `content: [{token, logprob, top_logprobs}]`, and `tokens / token_logprobs / top_logprobs` lists."""
    if logprobs is None:
        return []
    if logprobs.content is not None:
        return [_row(r) for r in logprobs.content]
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(tokens)
    return [TokenRow(t, _number(v), _sorted((top or {}).items())) for t, v, top in zip(tokens, values, tops, strict=False)]


def _row(row: WireRow) -> TokenRow:
    top = _sorted((t.token, t.logprob) for t in row.top_logprobs or [])
    return TokenRow(row.token, _number(row.logprob), top, tuple(row.bytes) if row.bytes else None, row.id)


def _sorted(pairs: Iterable[tuple[str, float | None]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(((t, _number(v)) for t, v in pairs), key=lambda p: -p[1]))


def _number(value: float | None) -> float:
    """A logprob that is absent or null counts as not a number."""
    return float("nan") if value is None else float(value)


class AnswerBuilder:
    """Puts a server-sent event stream together. started: the clock's seconds when the request was sent."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._answer = Answer(status=200, done=False)
        self._calls: dict[int, dict[str, Any]] = {}

    @property
    def chunks(self) -> int:
        return len(self._answer.chunks)

    def elapsed(self, now: float) -> float:
        return now - self._started

    def feed(self, line: str, now: float) -> None:
        """One line of the stream; comments, blank lines and event names are skipped as the SSE standard says."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self._answer.done = True
            return
        event = decoded(data.encode())
        if isinstance(event, str):
            self._answer.error = f"a chunk is not JSON: {data[:80]!r}"
            return
        found = read(event, WireAnswer)
        if isinstance(found, str):
            self._answer.error = f"a chunk is {found}"
            return
        self._event(found, now)

    def _event(self, event: WireAnswer, now: float) -> None:
        if event.error is not None:
            self._answer.error = error_text({"error": event.error})
        if event.usage:
            self._answer.usage = _usage(event.usage)
        for choice in event.choices or []:
            if not choice.index:
                self._delta(choice, now)

    def _delta(self, choice: WireChoice, now: float) -> None:
        answer, delta = self._answer, choice.delta or WireMessage()
        text = _text(delta) or choice.text or ""
        reasoning = delta.reasoning_content or delta.reasoning or ""
        answer.text += text
        answer.reasoning += reasoning
        answer.role = delta.role or answer.role
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        answer.tokens += token_rows(choice.logprobs)
        if text or reasoning:
            answer.chunks.append((now - self._started, text or reasoning))
        for call in delta.tool_calls or []:
            self._tool_delta(call)

    def _tool_delta(self, call: WireCall) -> None:
        fresh = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        kept = self._calls.setdefault(call.index or 0, fresh)
        kept["id"] = call.id or kept["id"]
        function = call.function or WireFunction()
        kept["function"]["name"] += function.name or ""
        kept["function"]["arguments"] += _arguments(function)

    def finish(self, now: float) -> Answer:
        self._answer.seconds = now - self._started
        self._answer.tool_calls = [self._calls[i] for i in sorted(self._calls)]
        return self._answer
