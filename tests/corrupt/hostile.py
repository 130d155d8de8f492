"""Endpoints that break HTTP, JSON or the API's shape, one way each: what a client must survive with a message. Standard library only.

python hostile.py PORT                 http://127.0.0.1:PORT/KIND/v1 breaks in the way of KIND
python hostile.py PORT UPSTREAM_PORT   a relay that passes the upstream's bytes on one by one
"""

import asyncio
import gzip
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

PORT = int(sys.argv[1])
UPSTREAM = int(sys.argv[2]) if len(sys.argv) > 2 else 0
LIST = {"data": [{"id": "demo", "object": "model"}]}
EVENT = {"choices": [{"index": 0, "delta": {"content": " word"}, "text": " word", "finish_reason": None}]}
WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "text": "Paris", "finish_reason": "stop"}]}
BOMB = gzip.compress(bytes(200 << 20))
USED = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}

# Answers that are JSON and have a shape of their own.
SHAPES: dict[str, Any] = {
    "shape-list": [],
    "shape-null": None,
    "shape-choices": {"choices": "none"},
    "shape-choice": {"choices": [None]},
    "shape-content": {"choices": [{"message": {"content": {"a": 1}}, "delta": 7}]},
    "shape-logprobs": {"choices": [{"text": "x", "logprobs": {"content": [{"token": 3, "logprob": "high"}]}}]},
    "shape-usage": {"choices": [{"text": "x", "message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}},
    "negative-usage": {**WHOLE, "usage": {"prompt_tokens": -5, "completion_tokens": -2, "total_tokens": -7}},
    "shape-nan": {"choices": [{"text": "x", "logprobs": {"content": [{"token": "x", "logprob": float("nan"), "top_logprobs": []}]}}]},
    "shape-huge-number": {"choices": [{"text": "x", "index": 10**400, "message": {"content": "x"}}], "usage": dict.fromkeys(USED, 10**400)},
    "error-200": {"error": {"message": "out of memory", "code": 500}},
}


def head(length: int | None, mime: str = "application/json", status: str = "200 OK", more: str = "") -> bytes:
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"HTTP/1.1 {status}\r\nContent-Type: {mime}\r\n{size}{more}\r\n".encode()


def counted(body: bytes, **options: Any) -> bytes:
    return head(len(body), **options) + body


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def forever(writer: asyncio.StreamWriter, block: bytes, apart: float = 0.0) -> None:
    while True:
        writer.write(block)
        await writer.drain()
        await asyncio.sleep(apart)


async def dripped(writer: asyncio.StreamWriter, body: bytes) -> None:
    for i in range(len(body)):
        writer.write(body[i : i + 1])
        await writer.drain()
        await asyncio.sleep(0.02)


async def stream(writer: asyncio.StreamWriter, kind: str) -> None:
    """Answers a request for a stream."""
    writer.write(head(None, "text/event-stream", more="Connection: close\r\n"))
    if kind == "endless":
        await forever(writer, event(EVENT), 0.001)
    elif kind == "endless-line":
        await forever(writer, b"x" * 65536)
    elif kind == "comments":
        await forever(writer, b": ping\n\n", 0.05)
    elif kind == "no-done":
        writer.write(event(EVENT) * 3)
    elif kind == "huge":
        await forever(writer, event(EVENT) * 1000)
    elif kind == "one-chunk":
        writer.write(event({"choices": [{"index": 0, "delta": {"content": " word" * 100_000}, "text": " word" * 100_000}]}))
    elif kind == "drip":
        await dripped(writer, event(EVENT) * 1000)
    elif kind == "cut":
        writer.write(event(EVENT) + event(EVENT)[:20])
    elif kind in SHAPES:
        writer.write(event(SHAPES[kind]) + b"data: [DONE]\n\n")
    else:
        writer.write(event(EVENT) + event({**WHOLE, "usage": USED}) + b"data: [DONE]\n\n")
    writer.close()


async def whole(writer: asyncio.StreamWriter, kind: str) -> None:
    """Answers any other request."""
    body = json.dumps({**WHOLE, "usage": USED}).encode()
    if kind == "short-length":
        writer.write(head(len(body) - 20) + body)
    elif kind == "long-length":
        writer.write(head(len(body) + 20) + body)
        writer.close()
    elif kind == "huge":
        writer.write(head(1 << 40))
        await forever(writer, b"[" * 65536)
    elif kind == "drip":
        writer.write(head(len(body)))
        await dripped(writer, body[:-1])
        await asyncio.sleep(3600)
    elif kind == "nested":
        writer.write(counted(b'{"choices": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"))
    elif kind in SHAPES:
        writer.write(counted(json.dumps(SHAPES[kind]).encode()))
    else:
        writer.write(counted(body))


async def anything(writer: asyncio.StreamWriter, kind: str) -> bool:
    """Kinds that answer every request, the list of models as well, in one way. False: not one of them."""
    page = b"<!doctype html><title>Welcome</title><p>Sign in to go on."
    packed = gzip.compress(json.dumps(LIST).encode())
    answers = {
        "html": counted(page, mime="text/html"),
        "redirect": counted(b"", status="307 Temporary Redirect", more="Location: https://example.invalid/login\r\n"),
        "empty-list": counted(b'{"object": "list", "data": []}'),
        "list-shape": counted(b'{"data": [1, "two", null]}'),
        "gzip-lie": counted(b"plain all the same", more="Content-Encoding: gzip\r\n"),
        "gzip": counted(packed, more="Content-Encoding: gzip\r\n"),
        "not-http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "bad-status": b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}",
        "bad-length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        "negative-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
        "negative-length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        "binary": counted(bytes(range(256)) * 4),
        "rate-limited": counted(b'{"error": "slow down"}', status="429 Too Many Requests", more="Retry-After: 3600\r\n"),
    }
    if kind == "gzip-bomb":
        writer.write(counted(BOMB, more="Content-Encoding: gzip\r\n"))
        return True
    if kind == "hang":
        await asyncio.sleep(3600)
    if kind == "slow-head":
        await forever(writer, b"X", 0.2)
    if kind == "endless-head":
        await forever(writer, b"X-More: " + b"y" * 8000 + b"\r\n")
    if kind in answers:
        writer.write(answers[kind])
        if not answers[kind].startswith(b"HTTP/1.1 200 OK\r\nContent-Type"):
            await writer.drain()
            writer.close()
    return kind in answers


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        asked = await reader.readuntil(b"\r\n\r\n")
        kind = asked.split(b"/", 2)[1].decode()
        length = asked.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        body = await reader.readexactly(int(length or 0))
        if asked.startswith(b"GET /health"):
            writer.write(counted(b"ok"))
        elif await anything(writer, kind):
            pass
        elif kind == "busy" and asked.startswith(b"POST"):
            writer.write(counted(b'{"error": "slow down"}', status="429 Too Many Requests", more="Retry-After: 3600\r\n"))
        elif kind == "moved" and asked.startswith(b"POST"):
            writer.write(counted(b"", status="308 Permanent Redirect", more="Location: http://127.0.0.1:1/v1/\r\n"))
        elif asked.startswith(b"GET"):
            writer.write(counted(json.dumps(LIST).encode() if b"/models" in asked else b"", status="200 OK"))
        elif b'"stream": true' in body or b'"stream":true' in body:
            await stream(writer, kind)
        else:
            await whole(writer, kind)
        await writer.drain()


async def fragment(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A relay to UPSTREAM that passes answers on byte by byte, so that every border is cut: lines, characters, chunk sizes."""
    theirs, ours = await asyncio.open_connection("127.0.0.1", UPSTREAM)

    async def up() -> None:
        while block := await reader.read(65536):
            ours.write(block)
        ours.close()

    sending = asyncio.create_task(up())
    while block := await theirs.read(65536):
        for i in range(len(block)):
            writer.write(block[i : i + 1])
            if i % 16 == 0:
                await writer.drain()
                await asyncio.sleep(0)
    sending.cancel()
    writer.close()


def guarded(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return handle


async def main() -> None:
    server = await asyncio.start_server(guarded(fragment if UPSTREAM else serve), "127.0.0.1", PORT)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
