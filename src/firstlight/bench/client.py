"""A light streaming client: HTTP/1.1 and server-sent events on asyncio's transports, one connection a user.

General clients spend 100 us and more on a chunk; a load generator that is slower than the engine measures itself. This one keeps a
time stamp for each chunk with text and decodes only the fields it needs.
"""

import asyncio
import ssl
import time
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from firstlight.core.errors import FirstlightError

CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0
LARGEST_PART = 4 << 20  # bytes of one head, line or HTTP chunk
CHUNKS_A_TOKEN = 8  # a stream of more chunks than so many a token will not end


class Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Usage(Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class Timings(Struct):
    """What llama.cpp writes into the last chunk: its own clock over the decoded tokens, milliseconds."""

    predicted_n: Count = 0
    predicted_ms: Milliseconds = 0.0
    prompt_ms: Milliseconds = 0.0


class Chunk(Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw | None = None
    timings: Timings | None = None


class Record(Struct, kw_only=True):
    """One request. started, finished and times are seconds of the same monotonic clock; times: one a chunk with text.

    output_tokens: from the server's usage. error: what went wrong, in which case the request counts as failed.
    timings: the engine's own, where it gives them with the answer.
    """

    started: float
    finished: float = 0.0
    times: list[float] = []
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    timings: Timings | None = None


class Target(Struct, frozen=True):
    """Where to send: host, port, TLS, path before the API's own paths, and headers that every request carries."""

    host: str
    port: int
    tls: bool
    prefix: str
    headers: bytes

    @classmethod
    def of(cls, base_url: str, api_key: str | None = None) -> "Target":
        parts = urlsplit(base_url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FirstlightError("bad-url", f"not an http address: {base_url!r}", hint="http://HOST:PORT/v1")
        tls = parts.scheme == "https"
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        head = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n{key}"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path, head.encode())

    def request(self, path: str, body: bytes, method: str = "POST") -> bytes:
        line = f"{method} {self.prefix}{path} HTTP/1.1\r\n".encode()
        return line + self.headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


_decode = msgspec.json.Decoder(Chunk).decode


class _Reader(asyncio.Protocol):
    """Reads one reply at a time. feed path: bytes -> body bytes (chunked or counted) -> lines -> record.

    A reply that is not HTTP, or that goes on past what was asked for, ends the request with an error and the connection with it.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.record: Record | None = None
        self.done: asyncio.Future[None] | None = None
        self.closed = False
        self.heard = 0.0
        self._reset(0)

    def _reset(self, most: int) -> None:
        self._buffer = b""
        self._lines = b""
        self._in_head = True
        self._chunked = False
        self._left = -1
        self._most = most
        self.status = 0

    def begin(self, record: Record, most: int) -> asyncio.Future[None]:
        """most: chunks with text, after which a stream counts as endless."""
        self._reset(most)
        self.record = record
        self.heard = record.started
        self.done = asyncio.get_running_loop().create_future()
        return self.done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.done and not self.done.done():
            counted = self._left < 0 and not self._chunked and not self._in_head
            self._end(None if counted else f"connection lost: {exc or 'closed by the server'}")

    def data_received(self, data: bytes) -> None:
        if self.record is None:
            return
        self.heard = time.perf_counter()
        try:
            self._received(data, self.heard)
        except (ValueError, IndexError) as e:
            self._give_up(f"the reply is not HTTP: {e}")

    def _received(self, data: bytes, now: float) -> None:
        if self._in_head:
            self._buffer += data
            head, found, data = self._buffer.partition(b"\r\n\r\n")
            if not found:
                self._keep(self._buffer)
                return
            self._buffer = b""
            self._read_head(head)
        if self._chunked:
            self._feed_chunked(data, now)
        else:
            self._feed_counted(data, now)

    def _keep(self, rest: bytes) -> bytes:
        """What is not whole yet, unless it is longer than anything that could become whole."""
        if len(rest) > LARGEST_PART:
            raise ValueError(f"a line of more than {LARGEST_PART >> 20} MiB")
        return rest

    def _give_up(self, why: str) -> None:
        self._end(why)
        if self.transport:
            self.transport.abort()
        self.closed = True

    def _read_head(self, head: bytes) -> None:
        lines = head.lower().split(b"\r\n")
        if not lines[0].startswith(b"http/"):
            raise ValueError(lines[0][:40].decode("ascii", "replace"))
        self._in_head = False
        self.status = int(lines[0].split(b" ", 2)[1])
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name == b"transfer-encoding" and b"chunked" in value:
                self._chunked = True
            elif name == b"content-length":
                self._left = int(value)

    def _feed_counted(self, data: bytes, now: float) -> None:
        self._text(data, now)
        if self._left >= 0:
            self._left -= len(data)
            if self._left <= 0:
                self._end(None)

    def _feed_chunked(self, data: bytes, now: float) -> None:
        """HTTP chunks: size in hex, CRLF, bytes, CRLF; a zero ends the body. Chunks need not match events."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while self.record is not None:
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                break
            size = int(buffer[at:line_end].partition(b";")[0], 16)
            if size == 0:
                self._end(None)
                return
            if size < 0:
                raise ValueError(f"a chunk of {size} bytes")
            end = line_end + 2 + size
            if len(buffer) < end + 2:
                break
            self._text(buffer[line_end + 2 : end], now)
            at = end + 2
        self._buffer = self._keep(buffer[at:])

    def _text(self, data: bytes, now: float) -> None:
        block = self._lines + data if self._lines else data
        *lines, rest = block.split(b"\n")
        self._lines = self._keep(rest)
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        record = self.record
        if record is None or data == b"[DONE]":
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as e:
            record.error = f"chunk is not as expected: {e}"
            return
        if chunk.error is not None:
            record.error = bytes(chunk.error).decode(errors="replace")[:200]
        if chunk.usage is not None:
            record.prompt_tokens, record.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        if chunk.timings is not None:
            record.timings = chunk.timings
        for choice in chunk.choices:
            delta = choice.delta
            if choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)):
                record.times.append(now)
            record.finish_reason = choice.finish_reason or record.finish_reason
        if len(record.times) > self._most:
            self._give_up(f"{len(record.times)} chunks, many more than the tokens asked for, and no end")

    def _end(self, error: str | None) -> None:
        if self.record is not None and self.record.times and self._lines.startswith(b"data:"):
            self._event(self._lines[5:].strip(), self.heard)  # the last line, without its end: whole, or cut
        if self.record is not None:
            self.record.finished = time.perf_counter()
            if self.status not in (0, 200):
                error = f"status {self.status}: {self._lines.decode(errors='replace')[:200]}"
            if error is None and not self.record.times and self._lines:
                error = f"no stream of events: {self._lines[:120].decode(errors='replace')}"
            self.record.error = self.record.error or error
        self.record = None
        if self.done and not self.done.done():
            self.done.set_result(None)


class User:
    """One connection that sends one request after the other."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reader: _Reader | None = None

    async def _connected(self) -> _Reader:
        if self._reader is None or self._reader.closed:
            context = ssl.create_default_context() if self._target.tls else None
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS):
                _, self._reader = await loop.create_connection(_Reader, self._target.host, self._target.port, ssl=context)
        return self._reader

    async def send(self, path: str, body: bytes, *, seconds: float, tokens: int = 4096) -> Record:
        """One streamed request of at most `tokens` tokens, start to end. Failures are in the record, never raised."""
        record = Record(started=time.perf_counter())
        try:
            if not await self._exchange(record, path, body, seconds, tokens):
                record = Record(started=time.perf_counter())
                await self._exchange(record, path, body, seconds, tokens)
        except TimeoutError:
            record.error = f"no connection within {CONNECT_SECONDS:.0f} s"
        except (OSError, UnicodeError) as e:
            record.error = f"{type(e).__name__}: {e}"
        if record.error:
            self.close()
        record.finished = record.finished or time.perf_counter()
        return record

    async def _exchange(self, record: Record, path: str, body: bytes, seconds: float, tokens: int) -> bool:
        """Sends and waits. False when a kept connection turned out to be closed before any byte came: HTTP's case for one retry."""
        kept = self._reader
        reader = await self._connected()
        done = reader.begin(record, CHUNKS_A_TOKEN * tokens + 64)
        assert reader.transport is not None
        reader.transport.write(self._target.request(path, body))
        await self._ended(reader, done, seconds)
        return not (reader is kept and reader.closed and reader.status == 0)

    async def _ended(self, reader: _Reader, done: asyncio.Future[None], seconds: float) -> None:
        """Until the reply has ended, is too late as a whole, or has fallen silent after its first text."""
        record = reader.record
        while record is not None and not done.done():
            now = time.perf_counter()
            limit = record.started + seconds if not record.times else min(record.started + seconds, reader.heard + STALL_SECONDS)
            if now >= limit:
                late = now >= record.started + seconds
                record.error = f"no end within {seconds:.0f} s" if late else f"silence of {STALL_SECONDS:.0f} s inside the stream"
                return
            await asyncio.wait({done}, timeout=min(limit - now, STALL_SECONDS))

    def close(self) -> None:
        if self._reader and self._reader.transport:
            self._reader.record = None
            self._reader.transport.abort()
        self._reader = None
