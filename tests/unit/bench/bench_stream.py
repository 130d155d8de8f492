"""A server that streams chunks on a plan: so many a request, so far apart. Standard library only.

python bench_stream.py PORT CHUNKS SECONDS_APART [plain|split|counted|dying|refusing|strict|closing|tiring]
"""

import asyncio
import itertools
import json
import sys

PORT, CHUNKS, APART = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
ASKED = itertools.count(1)
KIND = sys.argv[4] if len(sys.argv) > 4 else "plain"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(i: int) -> bytes:
    reason = "null" if i < CHUNKS - 1 else '"stop"'
    return b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":%s}]}\n\n' % reason.encode()


LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":9}}\n\ndata: [DONE]\n\n' % (2 * CHUNKS)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def body(writer: asyncio.StreamWriter) -> None:
    if KIND == "counted":
        data = b"".join(event(i) for i in range(CHUNKS)) + LAST
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        return
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    if KIND == "split":
        data = b"".join(event(i) for i in range(CHUNKS)) + LAST
        for at in range(0, len(data), 37):
            block = framed(data[at : at + 37])
            writer.write(block[:5])
            await writer.drain()
            await asyncio.sleep(0.001)
            writer.write(block[5:])
    elif APART == 0:
        block = b"".join(framed(event(0)) for _ in range(50))
        for _ in range(CHUNKS // 50):
            writer.write(block)
            await writer.drain()
        writer.write(framed(LAST))
    else:
        for i in range(CHUNKS):
            writer.write(framed(event(i)))
            await asyncio.sleep(APART)
            if KIND == "dying" and i == 1:
                writer.transport.abort()
                return
        writer.write(framed(LAST))
    writer.write(b"0\r\n\r\n")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
        if head.startswith(b"GET /health"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        elif head.startswith(b"GET"):
            text = b'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        else:
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            if KIND == "strict" and "ignore_eos" in asked:
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
            elif KIND == "refusing" or (KIND == "tiring" and next(ASKED) > 2):
                text = b'{"error": {"message": "no"}}'
                writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            else:
                assert asked["stream"]
                await body(writer)
        await writer.drain()
        if KIND == "closing" or b"connection: close" in head.lower():
            break
    writer.close()


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await serve(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", PORT)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
