"""A small fluent endpoint: answers the probes rightly, from a table. One process, real HTTP; faults are switched on by name.

python verify_fluent.py PORT [FAULT ...]
"""

import asyncio
import base64
import json
import re
import struct
import sys
import zlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from firstlight.verify.kinds import REWARDED, TRIPLES
from firstlight.verify.picture import FONT, MARGIN, SCALE
from firstlight.verify.probes import continuations, facts

FAULTS = set(sys.argv[2:])
CONTEXT = 4096
FACTS = {w: f.answer.pattern.split("|")[0].replace("\\b", "") for f in facts() for w in f.wordings}
LOST = facts()[2:5] if "forgetful" in FAULTS else facts()[1:] if "ignorant" in FAULTS else []
FACTS = {w: said for w, said in FACTS.items() if not any(w in f.wordings for f in LOST)}
NEXT = {c.text: c.answer.pattern[len("\\s*(?:") : -1].replace("\\", "") for c in continuations()}
running = 0


def words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def said(asked: str, limit: int) -> list[str]:
    """What a fluent model would say, as tokens."""
    if "weather in" in asked:
        return words("It is sunny, 31 degrees.")
    if "prime" in asked:
        return words("Yes.")
    if "person" in asked:
        return ['{"name": "Ann", "age": 31}']
    if "Which number is written" in asked:
        return words(seen(asked))
    if asked in FACTS:
        return words(f"The answer is {FACTS[asked]}.")
    if (known := re.findall(r"Number (\d+)\.", asked)) and "Numbers in order" not in asked:
        return words(f" {known[-1]}. Number")
    if asked.endswith("The code of the blue door is"):
        code = re.findall(r"blue door is (\d+)", asked)[-1]
        return words(f" {code}.")
    if "Weather words" in asked:
        return [" ☔", ", snow", " ❄️", " ⛄"]
    if last := re.search(r"(\d+),\s*$", asked):
        return [f" {int(last[1]) + 1 + i}," for i in range(limit)]
    for text, word in NEXT.items():
        if asked.endswith(text):
            return words(f" {word} and so on")
    return [f" word{(len(words(asked)) + i) * 7919 % 97}" for i in range(limit)]


def seen(asked: str) -> str:
    """Looks at the picture: decodes the PNG, reads its digits cell by cell, and names the background by its strongest channel."""
    if "blind" in FAULTS:
        return "I see the number 47 on a red background."
    raw = base64.b64decode(asked.split("data:image/png;base64,")[1].split(" ")[0])
    width, height = struct.unpack(">II", raw[16:24])
    data = zlib.decompress(raw[raw.index(b"IDAT") + 4 : raw.index(b"IEND") - 8])
    assert len(data) == height * (1 + 3 * width)
    lines = [data[y * (1 + 3 * width) + 1 : (y + 1) * (1 + 3 * width)] for y in range(height)]
    cells = ["".join("01"[line[3 * x] == 255 == line[3 * x + 1]] for x in range(MARGIN, width - MARGIN, SCALE)) for line in lines]
    rows = cells[MARGIN : height - MARGIN : SCALE]
    digits = [" ".join(r[x : x + 5] for r in rows) for x in range(0, len(rows[0]), 6)]
    number = "".join(n for d in digits for n, shape in FONT.items() if shape == d)
    names = ("blue", "green", "red") if "bgr" in FAULTS else ("red", "green", "blue")
    return f"The number {number} on a {names[max(range(3), key=lambda i: lines[0][i])]} background."


def row(token: str) -> dict[str, Any]:
    if "uniform" in FAULTS:
        return {"token": token, "logprob": -10.8, "top_logprobs": [{"token": f"{token}{i}", "logprob": -10.8} for i in range(5)]}
    if "nan" in FAULTS:
        return {"token": token, "logprob": float("nan"), "top_logprobs": []}
    others = [{"token": f" other{i}", "logprob": -3.0 - i} for i in range(4)]
    return {"token": token, "logprob": -0.1, "top_logprobs": [{"token": token, "logprob": -0.1}, *others]}


def problem(body: Any, chat: bool) -> str | None:
    if not isinstance(body, dict) or ("messages" if chat else "prompt") not in body:
        return "no input"
    if body.get("model") != "demo":
        return "no such model"
    if not isinstance(body.get("temperature", 1), int | float) or body.get("temperature", 1) < 0 or body.get("max_tokens", 1) < 0:
        return "bad value"
    return None


async def answer(request: Request) -> Response:
    chat = request.url.path.endswith("/chat/completions")
    if "locked" in FAULTS and request.headers.get("authorization") != f"Bearer {KEY}":
        return JSONResponse({"error": {"message": "no key"}}, 401)
    try:
        body = json.loads(await request.body())
    except ValueError:
        return JSONResponse({"error": {"message": "not JSON"}}, 400)
    if (bad := problem(body, chat)) and "lenient" not in FAULTS:
        return JSONResponse({"error": {"message": bad}}, 400)
    if chat and "no-template" in FAULTS:
        return JSONResponse({"error": {"message": "this model has no chat template"}}, 400)
    asked = body["messages"][-1]["content"] if chat else body["prompt"]
    asked = " ".join(p.get("text") or p["image_url"]["url"] for p in asked) if isinstance(asked, list) else asked
    asked = str(asked).removesuffix("\nAnswer:").rpartition("Question: ")[2] if "Question:" in str(asked) else str(asked)
    if len(words(asked)) > CONTEXT:
        return JSONResponse({"error": {"message": "too long"}}, 400)
    limit = int(body.get("max_tokens") or 64)
    seeded = str(body.get("seed", "")) if body.get("temperature", 1) else ""
    tokens = [f" s{seeded}w{i * 31 % 17}" for i in range(limit)] if seeded and "seedless" not in FAULTS else said(asked, limit)
    shy = "shy" in FAULTS and body.get("tool_choice") != "required"
    if body.get("tools") and len(body["messages"]) == 1 and not shy:
        return called(body)
    reason = "length" if len(tokens) >= limit else "stop"
    tokens = tokens[:limit]
    for stop in [] if "stopless" in FAULTS else body.get("stop") or []:
        if stop in "".join(tokens):
            tokens, reason = ["".join(tokens).partition(stop)[0]], "stop"
    used = {"prompt_tokens": len(words(asked)), "completion_tokens": len(tokens) * int(body.get("n", 1))}
    used["total_tokens"] = sum(used.values()) + ("miscount" in FAULTS)
    if body.get("stream"):
        return StreamingResponse(events(chat, tokens, reason, used, body), media_type="text/event-stream")
    one = choice(chat, "".join(tokens), reason)
    if body.get("logprobs") and "rowless" not in FAULTS:
        one["logprobs"] = {"content": [row(t) for t in tokens]}
    return with_nan({"choices": [{**one, "index": i} for i in range(int(body.get("n", 1)))], "usage": used})


def with_nan(body: Any) -> Response:
    return Response(json.dumps(body), media_type="application/json")


def choice(chat: bool, text: str, reason: str | None, key: str = "message") -> dict[str, Any]:
    content = {key: {"role": "assistant", "content": text}} if chat else {"text": text}
    ended = "ended-streaming" in FAULTS
    if chat and ({"thinks", "leaks-streaming"} & FAULTS or (ended and key == "message")):
        content[key]["reasoning_content"] = "Let me think about it."
    if chat and ("leaks" in FAULTS or (key == "delta" and (ended or "leaks-streaming" in FAULTS))):
        content[key]["content"] = f"<think>hm</think>{text}"
    return {"index": 0, "finish_reason": reason, **content}


CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}


def called(body: dict[str, Any]) -> Response:
    raw = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    if "no-parser" in FAULTS:
        return JSONResponse({"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'}}, 400)
    message = (
        {"content": raw}
        if "wrong-parser" in FAULTS
        else {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]}
    )
    if not body.get("stream"):
        return JSONResponse({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}], "usage": {}})
    message["tool_calls"] = [{"index": 0, **c} for c in message.get("tool_calls") or []]  # type: ignore[misc,attr-defined]
    event = {"choices": [{"index": 0, "finish_reason": "tool_calls", "delta": message}]}
    return Response(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")


async def events(chat: bool, tokens: list[str], reason: str, used: dict[str, int], body: dict[str, Any]) -> AsyncIterator[str]:
    global running
    running += 1
    try:
        if "other-stream" in FAULTS:
            tokens = [" London", " calling"]
        for i, token in enumerate(tokens):
            one = choice(chat, token, reason if i == len(tokens) - 1 else None, "delta")
            if body.get("logprobs"):
                one["logprobs"] = {"content": [row(token)]}
            yield f"data: {json.dumps({'choices': [one]})}\n\n"
            await asyncio.sleep(0.002)
        yield f"data: {json.dumps({'choices': [], 'usage': used})}\n\ndata: [DONE]\n\n"
    finally:
        if "sticky" not in FAULTS:
            running -= 1


KEY = "sk-test-not-a-secret"


async def models(request: Request) -> Response:
    if "locked" in FAULTS and request.headers.get("authorization") != f"Bearer {KEY}":
        return JSONResponse({"error": {"message": "no key"}}, 401)
    return JSONResponse({"data": [{"id": "demo", "owned_by": "fluent", "max_model_len": CONTEXT}]})


async def metrics(request: Request) -> Response:
    gauges = f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:kv_cache_usage_perc{{engine="0"}} 0.25\n'
    pool = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{CONTEXT}",engine="0"}} 1.0\n' if "roomy" in FAULTS else ""
    return PlainTextResponse(gauges + pool)


async def embed(request: Request) -> Response:
    inputs = (await request.json())["input"]
    inputs = [inputs] if isinstance(inputs, str) else inputs
    places = {text: (i, j) for i, triple in enumerate(TRIPLES) for j, text in enumerate(triple)}
    vectors = []
    for text in inputs:
        i, j = places[text]
        near = [float(k == i) + 0.1 * j for k in range(3)] if j < 2 else [float(k != i) for k in range(3)]
        vectors.append([0.0] * 3 if "zeros" in FAULTS else near)
    return JSONResponse({"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]})


async def pooling(request: Request) -> Response:
    reply = (await request.json())["messages"][-1]["content"]
    return JSONResponse({"data": [{"index": 0, "data": [float(any(reply == good for _, good, _ in REWARDED))]}]})


async def tokenize(request: Request) -> Response:
    body = await request.json()
    strings = ["<think>", *(["hm", "</think>"] if "marks-in-prompt" in FAULTS else [])] if "messages" in body else words(body["prompt"])
    return JSONResponse({"tokens": [zlib.crc32(s.encode()) + ("other-vocabulary" in FAULTS) for s in strings], "token_strs": strings})


async def health(request: Request) -> Response:
    return PlainTextResponse("ok")


POSTS = {"/v1/chat/completions": answer, "/v1/completions": answer, "/v1/embeddings": embed, "/pooling": pooling, "/tokenize": tokenize}
GETS = {"/v1/models": models, "/metrics": metrics, "/health": health}
routes = [Route(path, handler, methods=["POST"]) for path, handler in POSTS.items()]
routes += [Route(path, handler) for path, handler in GETS.items()]

if __name__ == "__main__":
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
