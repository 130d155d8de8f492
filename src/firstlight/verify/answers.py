"""Answers as the endpoint gave them: whole or streamed, chat or completion, either logprob shape, into one struct."""

import json
from typing import Any

from msgspec import Struct

from firstlight.core.errors import FirstlightError


class NoAnswer(FirstlightError):
    """The endpoint did not answer: code `connection` or `stall`."""

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
    """A whole reply; anything that is not a completion becomes an Answer with `error`."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if status != 200 or not isinstance(choices, list) or not choices:
        return Answer(status=status if status != 200 else 502, error=error_text(body), seconds=seconds, body=body)
    answer = _choice(choices[0], Answer(status=status, seconds=seconds, body=body))
    answer.usage = _usage(body.get("usage"))
    return answer


def error_text(body: Any) -> str:
    """The server's own words in an error body, one line."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(body).split())[:300]


def _choice(choice: dict[str, Any], answer: Answer) -> Answer:
    message = choice.get("message") or {}
    answer.text = message.get("content") or choice.get("text") or ""
    answer.reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    answer.role = message.get("role")
    answer.tool_calls = message.get("tool_calls") or []
    answer.finish_reason = choice.get("finish_reason")
    answer.tokens = token_rows(choice.get("logprobs"))
    return answer


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), usage.get("total_tokens"), cached)


def token_rows(logprobs: Any) -> list[TokenRow]:
    """Both published shapes: `content: [{token, logprob, top_logprobs}]`, and `tokens / token_logprobs / top_logprobs` lists."""
    if not isinstance(logprobs, dict):
        return []
    if isinstance(logprobs.get("content"), list):
        return [_row(r) for r in logprobs["content"]]
    tokens, values = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return [TokenRow(t, _number(v), _sorted((top or {}).items())) for t, v, top in zip(tokens, values, tops, strict=False)]


def _row(row: dict[str, Any]) -> TokenRow:
    top = _sorted((t.get("token", ""), t.get("logprob")) for t in row.get("top_logprobs") or [])
    raw = row.get("bytes")
    return TokenRow(row.get("token", ""), _number(row.get("logprob")), top, tuple(raw) if raw else None, row.get("id"))


def _sorted(pairs: Any) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(((t, _number(v)) for t, v in pairs), key=lambda p: -p[1]))


def _number(value: Any) -> float:
    """A logprob that is absent or null counts as not a number."""
    return float(value) if isinstance(value, int | float) else float("nan")


class AnswerBuilder:
    """Puts a server-sent event stream together. started: the clock's seconds when the request was sent."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._answer = Answer(status=200, done=False)
        self._calls: dict[int, dict[str, Any]] = {}

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
        try:
            event = json.loads(data)
        except ValueError:
            self._answer.error = f"a chunk is not JSON: {data[:80]!r}"
            return
        self._event(event, now)

    def _event(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            self._answer.error = error_text(event)
        if event.get("usage"):
            self._answer.usage = _usage(event["usage"])
        for choice in event.get("choices") or []:
            if choice.get("index", 0) == 0:
                self._delta(choice, now)

    def _delta(self, choice: dict[str, Any], now: float) -> None:
        answer, delta = self._answer, choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        answer.text += text
        answer.reasoning += reasoning
        answer.role = delta.get("role") or answer.role
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        answer.tokens += token_rows(choice.get("logprobs"))
        if text or reasoning:
            answer.chunks.append((now - self._started, text or reasoning))
        for call in delta.get("tool_calls") or []:
            self._tool_delta(call)

    def _tool_delta(self, call: dict[str, Any]) -> None:
        kept = self._calls.setdefault(call.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        kept["id"] = call.get("id") or kept["id"]
        function = call.get("function") or {}
        kept["function"]["name"] += function.get("name") or ""
        kept["function"]["arguments"] += function.get("arguments") or ""

    def finish(self, now: float) -> Answer:
        self._answer.seconds = now - self._started
        self._answer.tool_calls = [self._calls[i] for i in sorted(self._calls)]
        return self._answer
