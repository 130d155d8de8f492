"""One OpenAI-compatible endpoint, asked over HTTP: requests in, typed answers out. No judgement here."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from firstlight.verify.answers import Answer, AnswerBuilder, NoAnswer, answer_from_body

STALL_SECONDS = 20.0


class Api:
    """The endpoint's HTTP surface. base_url ends in /v1; the key is sent as a bearer token and kept nowhere else.

    request_seconds: the longest a whole answer may take. stall_seconds: the longest silence inside a stream.
    """

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, request_seconds: float = 120.0, stall_seconds: float | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.stall_seconds = STALL_SECONDS if stall_seconds is None else stall_seconds
        self.request_seconds = request_seconds
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        timeout = httpx2.Timeout(request_seconds, connect=10.0)
        self._http = httpx2.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def root(self) -> str:
        """The server's address without /v1: where /health, /metrics and /tokenize live."""
        return self.base_url.removesuffix("/v1")

    async def get(self, path: str, *, root: bool = False) -> tuple[int, Any]:
        """Status and body of a GET: JSON where it is JSON, else text."""
        return await self._plain("GET", (self.root if root else self.base_url) + path, None)

    async def post(self, path: str, body: Any, *, root: bool = False) -> tuple[int, Any]:
        """Status and body of a POST of JSON (bytes are sent as they are)."""
        return await self._plain("POST", (self.root if root else self.base_url) + path, body)

    async def _plain(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self.request_seconds):
                reply = await self._sent(method, url, content)
        except TimeoutError:
            raise NoAnswer("stall", f"{method} {url}: no answer within {self.request_seconds:.0f} s") from None
        except httpx2.HTTPError as e:
            raise NoAnswer("connection", f"{method} {url}: {type(e).__name__}: {e}") from None
        try:
            return reply.status_code, json.loads(reply.content)
        except ValueError:
            return reply.status_code, reply.text

    async def _sent(self, method: str, url: str, content: bytes | None) -> httpx2.Response:
        """A kept connection that the server closed meanwhile says nothing about the server: once more on a fresh one."""
        headers = {"Content-Type": "application/json"}
        try:
            return await self._http.request(method, url, content=content, headers=headers)
        except httpx2.RemoteProtocolError:
            return await self._http.request(method, url, content=content, headers={**headers, "Connection": "close"})

    async def chat(self, messages: list[dict[str, Any]], **options: Any) -> Answer:
        """POST /chat/completions, whole answer."""
        return await self._ask("/chat/completions", {"messages": messages, **options})

    async def complete(self, prompt: str | list[int], **options: Any) -> Answer:
        """POST /completions, whole answer."""
        return await self._ask("/completions", {"prompt": prompt, **options})

    async def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        started = time.monotonic()
        status, reply = await self.post(path, {"model": self.model, **body})
        return answer_from_body(status, reply, time.monotonic() - started)

    async def stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        """The same request as a stream, put together again. Raises NoAnswer("stall") on silence inside the stream."""
        builder = AnswerBuilder(time.monotonic())
        async with self.open_stream(path, body) as (status, lines):
            if status != 200:
                return answer_from_body(status, "\n".join([line async for line in lines]), builder.elapsed(time.monotonic()))
            async for line in lines:
                builder.feed(line, time.monotonic())
        return builder.finish(time.monotonic())

    @asynccontextmanager
    async def open_stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[tuple[int, AsyncIterator[str]]]:
        """A stream as lines; leaving the context early closes the connection, which is how a client cancels."""
        payload = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **body}
        try:
            fresh = {"Connection": "close"}
            async with self._http.stream("POST", self.base_url + path, json=payload, headers=fresh) as reply:
                yield reply.status_code, self._lines(reply)
        except httpx2.HTTPError as e:
            raise NoAnswer("connection", f"POST {path}: {type(e).__name__}: {e}") from None

    async def _lines(self, reply: httpx2.Response) -> AsyncIterator[str]:
        source = reply.aiter_lines()
        first = True
        while True:
            wait = self.request_seconds if first else self.stall_seconds
            try:
                line = await asyncio.wait_for(anext(source), wait)
            except StopAsyncIteration:
                return
            except TimeoutError:
                when = "before the first token" if first else "inside the stream"
                raise NoAnswer("stall", f"silence of {wait:.0f} s {when}") from None
            first = first and not line.startswith("data:")
            yield line
