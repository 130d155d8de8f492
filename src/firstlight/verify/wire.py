"""The API's JSON as typed shapes: what is read of each reply, and in which words a reply is refused that has another shape.

Fields that servers leave out, or give as null, have defaults; nothing else is forgiven. Source: the OpenAI API reference, and what vLLM,
llama.cpp and SGLang add to it.
"""

import json
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""JSON's safe integers: what is beyond counts nothing, and would not fit into the arithmetic that follows."""


class WireFunction(Struct):
    name: str | None = None
    arguments: Any = None


class WireCall(Struct):
    index: Count | None = None
    id: str | None = None
    function: WireFunction | None = None


class WireMessage(Struct):
    """A whole message, or a stream's delta. content: text, or parts of which those with `text` are read."""

    role: str | None = None
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[WireCall] | None = None


class WireAlternative(Struct):
    token: str = ""
    logprob: float | None = None


class WireRow(Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[Count] | None = None
    id: Count | None = None
    top_logprobs: list[WireAlternative] | None = None


class WireLogprobs(Struct):
    """Both published shapes: rows under `content`, or three lists side by side."""

    content: list[WireRow] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class WireChoice(Struct):
    index: Count | None = None
    message: WireMessage | None = None
    delta: WireMessage | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: WireLogprobs | None = None


class WireDetails(Struct):
    cached_tokens: Count | None = None


class WireUsage(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: WireDetails | None = None


class WireAnswer(Struct):
    """A completion, whole or one event of a stream."""

    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None


class WireMeta(Struct):
    n_ctx: Count | None = None


class WireModel(Struct):
    id: str | None = None
    aliases: list[str] | None = None
    owned_by: str | None = None
    max_model_len: Count | None = None
    meta: WireMeta | None = None


class WireModels(Struct):
    data: list[WireModel]


class WireEmbedding(Struct):
    embedding: list[float]
    index: Count | None = None


class WireEmbeddings(Struct):
    data: list[WireEmbedding]


class WireScore(Struct):
    data: float | list[float | list[float]]


class WireScores(Struct):
    data: list[WireScore]


class WireTokens(Struct):
    tokens: list[Count]


class WireTexts(Struct):
    """What vLLM's /tokenize adds: each token as it is spelled in the vocabulary."""

    token_strs: list[str]


class WireSlot(Struct):
    is_processing: bool = False


def decoded(raw: bytes) -> Any:
    """JSON where it is JSON (NaN and Infinity, which engines do write, are taken), else the text."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def read(body: Any, shape: type[T]) -> T | str:
    """The body in its shape, or why it has another one."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as e:
        return f"not as the API says: {e}"
    except RecursionError:
        return "not as the API says: nested without end"
