"""One OpenAI-compatible endpoint, asked over HTTP: requests in, typed answers out. No judgement here."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from msgspec import Struct

from firstlight.verify.answers import Answer, AnswerBuilder, NoAnswer, answer_from_body
from firstlight.verify.wire import decoded

STALL_SECONDS = 20.0
LARGEST_BYTES = 32 << 20  # of one answer: no chat answer, list of models or batch of embeddings comes near
LARGEST_LINE = 4 << 20
MORE_CHUNKS = 8  # a stream of more chunks than so many a token asked for will not end: a token has a few bytes at least
FAILED = (httpx2.HTTPError, httpx2.InvalidURL)
CLOSED = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
LOOK_SECONDS = 10.0


class Varied(Struct, frozen=True, kw_only=True):
    """How requests differ from the plain ones. fields: added to each body; salt: the field that gets a fresh value in each."""

    fields: dict[str, Any] = {}
    salt: str | None = None

    def body(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        return {**plain, **self.fields, **({self.salt: secrets.token_hex(16)} if self.salt else {})}


class Api:
    """The endpoint's HTTP surface. base_url ends in /v1; the key is sent as a bearer token and kept nowhere else.

    request_seconds: the longest a whole answer may take. stall_seconds: the longest silence inside a stream.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        request_seconds: float = 120.0,
        stall_seconds: float | None = None,
        varied: Varied = Varied(),
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.stall_seconds = STALL_SECONDS if stall_seconds is None else stall_seconds
        self.request_seconds = request_seconds
        self.varied = varied
        # Two clients: a kept connection may be closed by the server at any time; what cannot be asked twice never uses one.
        # No compression: it would hide the chunk borders, and a small answer could unpack to a huge one.
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        timeout = httpx2.Timeout(request_seconds, connect=10.0)
        self._kept, self._fresh = (
            httpx2.AsyncClient(headers=headers, limits=httpx2.Limits(max_keepalive_connections=n), timeout=timeout, trust_env=False)
            for n in (32, 0)
        )

    async def close(self) -> None:
        await self._kept.aclose()
        await self._fresh.aclose()

    @property
    def root(self) -> str:
        """The server's address without /v1: where /health, /metrics and /tokenize live."""
        return self.base_url.removesuffix("/v1")

    async def get(self, path: str, *, root: bool = False) -> tuple[int, Any]:
        """Status and body of a GET: JSON where it is JSON, else text."""
        return await self._plain("GET", (self.root if root else self.base_url) + path, None)

    async def lives(self) -> bool:
        """Whether the server still answers at all: asked after a connection that ended without an answer."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                status, _ = await self._exchanged(self._fresh, "GET", f"{self.base_url}/models", None)
        except (TimeoutError, NoAnswer, *FAILED):
            return False
        return status < 500

    async def post(self, path: str, body: Any, *, root: bool = False) -> tuple[int, Any]:
        """Status and body of a POST of JSON (bytes are sent as they are)."""
        return await self._plain("POST", (self.root if root else self.base_url) + path, body)

    async def _plain(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self.request_seconds):
                status, raw = await self._sent(method, url, content)
        except TimeoutError:
            raise NoAnswer("stall", f"{method} {url}: no answer within {self.request_seconds:.0f} s") from None
        except FAILED as e:
            raise NoAnswer("connection", f"{method} {url}: {type(e).__name__}: {e}") from None
        return status, decoded(raw)

    async def _sent(self, method: str, url: str, content: bytes | None) -> tuple[int, bytes]:
        """A kept connection that the server closed meanwhile says nothing about the server: once more on a fresh one."""
        try:
            return await self._exchanged(self._kept, method, url, content)
        except CLOSED:
            return await self._exchanged(self._fresh, method, url, content)

    async def _exchanged(self, http: httpx2.AsyncClient, method: str, url: str, content: bytes | None) -> tuple[int, bytes]:
        async with http.stream(method, url, content=content, headers={"Content-Type": "application/json"}) as reply:
            kept = bytearray()
            async for block in reply.aiter_bytes():
                kept += block
                if len(kept) > LARGEST_BYTES:
                    raise _too_large(f"{method} {url}")
            return reply.status_code, bytes(kept)

    async def chat(self, messages: list[dict[str, Any]], **options: Any) -> Answer:
        """POST /chat/completions, whole answer."""
        return await self._ask("/chat/completions", {"messages": messages, **options})

    async def complete(self, prompt: str | list[int], **options: Any) -> Answer:
        """POST /completions, whole answer."""
        return await self._ask("/completions", {"prompt": prompt, **options})

    async def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        started = time.monotonic()
        status, reply = await self.post(path, self.varied.body({"model": self.model, **body}))
        return answer_from_body(status, reply, time.monotonic() - started)

    async def stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        """The same request as a stream, put together again. Raises NoAnswer("stall") on silence inside the stream."""
        builder = AnswerBuilder(time.monotonic())
        async with self.open_stream(path, body) as (status, lines):
            if status != 200:
                text = "\n".join([line async for line in lines])
                return answer_from_body(status, decoded(text.encode()), builder.elapsed(time.monotonic()))
            most = MORE_CHUNKS * int(body.get("max_tokens") or 4096) + 64
            async for line in lines:
                builder.feed(line, time.monotonic())
                if builder.chunks > most:
                    raise NoAnswer("endless", f"POST {path}: {most} chunks, asked for {body.get('max_tokens')} tokens, and no end")
        return builder.finish(time.monotonic())

    @asynccontextmanager
    async def open_stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[tuple[int, AsyncIterator[str]]]:
        """A stream as lines; leaving the context early closes the connection, which is how a client cancels."""
        plain = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **body}
        payload = self.varied.body(plain)
        try:
            async with (
                asyncio.timeout(self.request_seconds),
                self._fresh.stream("POST", self.base_url + path, json=payload) as reply,
            ):
                yield reply.status_code, self._lines(reply)
        except TimeoutError:
            raise NoAnswer("stall", f"POST {path}: no end of the stream within {self.request_seconds:.0f} s") from None
        except FAILED as e:
            raise NoAnswer("connection", f"POST {path}: {type(e).__name__}: {e}") from None

    async def _lines(self, reply: httpx2.Response) -> AsyncIterator[str]:
        """Lines as they come, whatever blocks they come in. Raises NoAnswer on silence, and on a stream larger than any answer."""
        source = reply.aiter_bytes()
        rest, total, speaking = b"", 0, False
        while (block := await self._block(source, speaking)) is not None:
            total += len(block)
            if total > LARGEST_BYTES:
                raise _too_large("a stream")
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > LARGEST_LINE:
                raise _too_large("one line of a stream", LARGEST_LINE)
            for line in lines:
                speaking = speaking or line.startswith(b"data:")
                yield line.decode("utf-8", "replace").rstrip("\r")
        if rest:
            yield rest.decode("utf-8", "replace")

    async def _block(self, source: AsyncIterator[bytes], speaking: bool) -> bytes | None:
        """The next bytes, None at the end. speaking: the first event has come, so silence is a stall."""
        wait = self.stall_seconds if speaking else self.request_seconds
        try:
            async with asyncio.timeout(wait):  # not wait_for, which may swallow the cancelling of the whole request (before 3.12)
                return await anext(source)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            when = "inside the stream" if speaking else "before the first token"
            raise NoAnswer("stall", f"silence of {wait:.0f} s {when}") from None


def _too_large(what: str, limit: int = LARGEST_BYTES) -> NoAnswer:
    return NoAnswer("too-large", f"{what}: more than {limit >> 20} MiB, and no end")
