"""The fake engine's endpoint: OpenAI's shapes, and every way to get them wrong."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEFAULT_ANSWERS = {"capital of france": "The capital of France is Paris.", "2 + 2": "4", "2+2": "4"}


class Behaviour:
    """How the endpoint answers; every field can be changed while it runs.

    mode: ok | error (500) | garbage (not HTTP) | not-json | hang | empty | slow. health: the status of /health, or `hang`.
    answers: text contained in the prompt (lower case) -> answer; else `default`. first_seconds, token_seconds: delays.
    first_hangs: how many generation requests hang before the rest is served. metrics: vllm | llamacpp | none. stuck: counters stand still.
    """

    def __init__(self, **fields: Any) -> None:
        self.mode = "ok"
        self.health: int | str = 200
        self.answers: dict[str, str] = dict(DEFAULT_ANSWERS)
        self.default = "I am a fake engine and I repeat this sentence."
        self.first_seconds = 0.0
        self.token_seconds = 0.0
        self.first_hangs = 0
        self.metrics = "vllm"
        self.stuck = False
        self.running = 0
        self.generated = 0
        self.max_model_len = 4096
        self.model = "fake"
        self.key: str | None = None
        self.change(fields)

    @classmethod
    def of(cls, fields: dict[str, Any], model: str, key: str | None) -> Behaviour:
        return cls(**{"model": model, "key": key, **fields})

    def change(self, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if not hasattr(self, name):
                raise ValueError(f"unknown behaviour: {name}")
            setattr(self, name, value)

    def answer(self, prompt: str) -> str:
        low = prompt.lower()
        return next((text for part, text in self.answers.items() if part in low), self.default)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the script says what is logged."""

    @property
    def how(self) -> Behaviour:
        return self.server.behaviour

    def do_GET(self) -> None:
        if self.path == "/health":
            self._health()
        elif self.path == "/metrics" and self.how.metrics != "none":
            self._text(200, metrics_text(self.how), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            if self._allowed():
                card = {"id": self.how.model, "object": "model", "owned_by": "fake", "max_model_len": self.how.max_model_len}
                self._json(200, {"object": "list", "data": [card]})
        else:
            self._json(404, error("not found", 404))

    def _health(self) -> None:
        if self.how.health == "hang":
            time.sleep(3600)
        self._text(int(self.how.health), "", "text/plain")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._allowed() or self._misbehaved():
            return
        try:
            body = json.loads(raw)
            assert isinstance(body, dict)
        except (ValueError, AssertionError):
            self._json(400, error("the body is not a JSON object", 400))
            return
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            self._json(404, error("not found", 404))
        elif (problem := invalid(body, self.path, self.how)) is not None:
            self._json(problem[0], error(problem[1], problem[0]))
        else:
            self._generate(body)

    def _allowed(self) -> bool:
        if self.how.key is None or self.headers.get("Authorization") == f"Bearer {self.how.key}":
            return True
        self._json(401, error("Unauthorized", 401))
        return False

    def _misbehaved(self) -> bool:
        """Whether the mode answered (or never will)."""
        how = self.how
        if how.mode == "hang" or how.first_hangs > 0:
            how.first_hangs = max(0, how.first_hangs - 1)
            how.running += 1
            time.sleep(3600)
        if how.mode == "error":
            self._json(500, error("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500))
        elif how.mode == "garbage":
            self.wfile.write(b"\x00\x01\x02 this is not HTTP\r\n\r\n")
            self.close_connection = True
        elif how.mode == "not-json":
            self._text(200, "<html>hello</html>", "text/html")
        elif how.mode == "empty":
            self.close_connection = True
        return how.mode not in ("ok", "slow")

    def _generate(self, body: dict[str, Any]) -> None:
        chat = self.path == "/v1/chat/completions"
        prompt = "\n".join(str(m.get("content")) for m in body["messages"]) if chat else str(body["prompt"])
        pieces, reason = cut(self.how.answer(prompt), body)
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(pieces), "total_tokens": len(prompt.split()) + len(pieces)}
        time.sleep(self.how.first_seconds)
        if not self.how.stuck:
            self.how.generated += len(pieces)
        if body.get("stream"):
            self._stream(pieces, reason, usage, chat, body)
        else:
            time.sleep(self.how.token_seconds * len(pieces))
            self._json(200, completion(self.how.model, "".join(pieces), reason, usage, chat, body))

    def _stream(self, pieces: list[str], reason: str, usage: dict[str, int], chat: bool, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        kind, base = ("chat.completion.chunk" if chat else "text_completion"), {"id": "cmpl-fake", "created": 1, "model": self.how.model}
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            delta = {"delta": {"content": piece}} if chat else {"text": piece}
            choice = {"index": 0, **delta, "finish_reason": reason if last else None}
            self._event({**base, "object": kind, "choices": [choice]})
            time.sleep(self.how.token_seconds)
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**base, "object": kind, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._text(status, json.dumps(value), "application/json")

    def _text(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        super().__init__(address, Handler)

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def error(message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError" if code == 400 else "Error", "param": None, "code": code}}


def invalid(body: dict[str, Any], path: str, how: Behaviour) -> tuple[int, str] | None:
    """(status, message) as a strict server answers; None: in order."""
    if body.get("model") not in (None, how.model):
        return 404, f"The model `{body['model']}` does not exist."
    if path == "/v1/chat/completions" and not (isinstance(body.get("messages"), list) and body["messages"]):
        return 400, "messages: a non-empty list is required"
    if path == "/v1/completions" and "prompt" not in body:
        return 400, "prompt: field required"
    for name, low, high in (("max_tokens", 1, 1 << 20), ("temperature", 0, 2), ("top_p", 0, 1)):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high):
            return 400, f"{name}: must be between {low} and {high}"
    return None


def cut(text: str, body: dict[str, Any]) -> tuple[list[str], str]:
    """The answer in word tokens, ended by `stop` or `max_tokens`, and the finish reason."""
    stops = body.get("stop") or []
    ends = [at for stop in ([stops] if isinstance(stops, str) else stops) if (at := text.find(stop)) >= 0]
    text = text[: min(ends)] if ends else text
    words = text.split(" ")
    pieces = [word if number == 0 else f" {word}" for number, word in enumerate(words) if word or number]
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or len(pieces)
    if len(pieces) > limit:
        return pieces[:limit], "length"
    return pieces or [""], "stop"


def completion(model: str, text: str, reason: str, usage: dict[str, int], chat: bool, body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    if body.get("logprobs"):
        tokens = text.split(" ")
        if chat:
            choice["logprobs"] = {
                "content": [
                    {"token": t, "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": t, "logprob": -0.1, "bytes": None}]}
                    for t in tokens
                ]
            }
        else:
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [-0.1] * len(tokens),
                "top_logprobs": [{t: -0.1} for t in tokens],
                "text_offset": [0] * len(tokens),
            }
    return {
        "id": "cmpl-fake",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def metrics_text(how: Behaviour) -> str:
    if how.metrics == "llamacpp":
        return (
            f"llamacpp:tokens_predicted_total {how.generated}\nllamacpp:prompt_tokens_total 0\nllamacpp:requests_processing {how.running}\n"
        )
    label = '{engine="0",model_name="' + how.model + '"}'
    return (
        f"vllm:generation_tokens_total{label} {float(how.generated)}\nvllm:prompt_tokens_total{label} 0.0\n"
        f"vllm:num_requests_running{label} {float(how.running)}\nvllm:num_requests_waiting{label} 0.0\n"
        f"vllm:num_preemptions_total{label} 0.0\nvllm:kv_cache_usage_perc{label} 0.0\n"
    )
