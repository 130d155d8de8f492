"""Servers that answer without sense, and proxies that spoil a good server's answers. Small real processes.

python servers.py KIND PORT UPSTREAM|- N [TEMPLATE]
"""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

KIND, PORT, UPSTREAM, AFTER, TEXT = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), (*sys.argv[5:], "")[0]
JUNK = ["qx", "zorb", "lun", "##", "vee", "7f", "]]", "mrak", "owt", "dzi", "::", "pell", "~", "gno", "eth"]


def words_of(body: dict[str, Any]) -> list[str]:
    """What a liar answers, as tokens."""
    asked = body["messages"][-1]["content"] if "messages" in body else body.get("prompt", "")
    limit = int(body.get("max_tokens") or 64)
    if KIND == "echo":
        return (str(asked).split(" ") or ["?"])[:limit]
    if KIND == "canned":
        return [
            "I",
            "am",
            "a",
            "helpful",
            "assistant.",
            "The",
            "capital",
            "of",
            "France",
            "is",
            "Paris.",
            "How",
            "can",
            "I",
            "help",
            "you",
            "today?",
        ][:limit]
    return ["!"] * limit


def reply(body: dict[str, Any], tokens: list[str], chat: bool, *, chunk: bool = False, last: bool = False) -> dict[str, Any]:
    joined = ("" if KIND == "bang" else " ").join(tokens)
    limit = int(body.get("max_tokens") or 64)
    reason = ("length" if len(tokens) >= limit else "stop") if last or not chunk else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {("delta" if chunk else "message"): {"role": "assistant", "content": joined}} if chat else {"text": joined}
    out = {"id": "x", "object": "chat.completion", "created": 1, "model": body.get("model"), "choices": [choice]}
    if not chunk or last:
        out["usage"] = {"prompt_tokens": 9, "completion_tokens": len(words_of(body)), "total_tokens": 9 + len(words_of(body))}
    return out


async def lie(request: Request) -> Response:
    try:
        body = json.loads(await request.body())
    except ValueError:
        return JSONResponse({"error": {"message": "not JSON"}}, 400)
    chat = request.url.path.endswith("/chat/completions")
    tokens = words_of(body)
    if KIND == "stall" and not body.get("stream"):
        await asyncio.sleep(3600)
    if not body.get("stream"):
        return JSONResponse(reply(body, tokens, chat))

    async def events() -> AsyncIterator[str]:
        for i, token in enumerate(tokens):
            own = token if KIND == "bang" or i == 0 else f" {token}"
            yield f"data: {json.dumps(reply(body, [own], chat, chunk=True, last=i == len(tokens) - 1))}\n\n"
            if KIND == "stall":
                await asyncio.sleep(3600)
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


client = httpx2.AsyncClient(timeout=120, trust_env=False)
waiting: list[tuple[asyncio.Future[bytes], bytes]] = []


async def forward(request: Request) -> Response:
    """Passes a request on and spoils what comes back: `garble` after N tokens, `crossed` between parallel requests."""
    raw = await request.body()
    url = UPSTREAM + request.url.path.removeprefix("/v1")
    if request.method == "GET":
        got = await client.get(url)
        return Response(got.content, got.status_code, media_type="application/json")
    raw = with_template(raw) if KIND == "template" else raw
    if _streams(raw):
        return StreamingResponse(spoiled_stream(url, raw), media_type="text/event-stream")
    got = await client.post(url, content=raw, headers={"content-type": "application/json"})
    content = got.content
    if KIND == "crossed":
        content = await crossed(content)
    if KIND == "garble" and got.status_code == 200:
        content = json.dumps(garbled(json.loads(content))).encode()
    return Response(content, got.status_code, media_type="application/json")


def with_template(raw: bytes) -> bytes:
    """The request as it would be if the engine had been started with another chat template."""
    try:
        body = json.loads(raw)
    except ValueError:
        return raw
    return json.dumps({**body, "chat_template": TEXT}).encode() if "messages" in body else raw


def _streams(raw: bytes) -> bool:
    """What is no JSON goes to the upstream, which refuses it."""
    try:
        return bool(json.loads(raw).get("stream"))
    except ValueError:
        return False


async def crossed(content: bytes) -> bytes:
    """Swaps the answers of two requests that are under way at the same time; a lone one gets its own."""
    if waiting:
        other, theirs = waiting.pop()
        other.set_result(content)
        return theirs
    mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    waiting.append((mine, content))
    try:
        return await asyncio.wait_for(mine, 0.3)
    except TimeoutError:
        waiting[:] = [w for w in waiting if w[0] is not mine]
        return content


def garbled(body: dict[str, Any]) -> dict[str, Any]:
    """Tokens after the Nth are junk, in the text and in the logprob rows alike, as a broken KV cache would make them."""
    for choice in body["choices"]:
        kept = choice.get("message", choice)
        key = "content" if "message" in choice else "text"
        words = (kept.get(key) or "").split(" ")
        keep = AFTER * 3 // 4
        kept[key] = " ".join(w if i < keep else random.choice(JUNK) for i, w in enumerate(words))
        rows = (choice.get("logprobs") or {}).get("content") or []
        for row in rows[AFTER:]:
            junk = " " + random.choice(JUNK)
            row |= {"token": junk, "logprob": -2.5, "bytes": list(junk.encode()), "top_logprobs": [{"token": junk, "logprob": -2.5}]}
        if len(rows) > AFTER:
            kept[key] = "".join(r["token"] for r in rows)
    return body


async def spoiled_stream(url: str, raw: bytes) -> AsyncIterator[str]:
    count = 0
    async with client.stream("POST", url, content=raw, headers={"content-type": "application/json"}) as got:
        async for line in got.aiter_lines():
            if KIND == "garble" and line.startswith("data: {"):
                event = json.loads(line[6:])
                count += 1
                for choice in event.get("choices") or []:
                    part = choice.get("delta", choice)
                    key = "content" if "delta" in choice else "text"
                    if count > AFTER and part.get(key):
                        part[key] = " " + random.choice(JUNK)
                line = f"data: {json.dumps(event)}"
            yield line + "\n"


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "demo", "object": "model", "created": 1, "owned_by": "liar"}]})


async def health(request: Request) -> Response:
    return PlainTextResponse("ok")


PROXY = KIND in ("garble", "crossed", "template")
routes = [Route("/health", health)]
routes += [Route("/v1/{path:path}", forward, methods=["GET", "POST"])] if PROXY else []
routes += [Route("/v1/models", models), *(Route(f"/v1/{p}", lie, methods=["POST"]) for p in ("chat/completions", "completions"))]

if __name__ == "__main__":
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=PORT, log_level="error")
