"""What is sent: profiles, and prompts of about the wanted length that no prefix cache has seen."""

import random

import msgspec
from msgspec import Struct

from firstlight.core.errors import UsageError
from firstlight.core.run import Endpoint

_TEXT = (
    "river stone light winter paper green market window garden music story simple number coffee morning engine silver bridge yellow forest "
    "letter doctor travel summer kitchen corner teacher island flower shadow"
)
_FRESH = random.SystemRandom()
WORDS = _TEXT.split()
TOKENS_PER_WORD = 1.15


class Profile(Struct, frozen=True, kw_only=True):
    """input_tokens is approximate (the server's usage tells the truth). shared_tokens: a common prefix, as agents send.

    seconds: the time one level may take to start new requests. levels: concurrencies; those above the planned one are dropped.
    context_share: input as a share of max_model_len instead of input_tokens. budget_seconds: no new level starts after it.
    """

    name: str
    input_tokens: int
    output_tokens: int
    seconds: float
    concurrency: int
    shared_tokens: int = 0
    context_share: float | None = None
    budget_seconds: float = 600.0


PROFILES = {
    p.name: p
    for p in (
        Profile(name="quick", input_tokens=64, output_tokens=32, seconds=0.8, concurrency=4, budget_seconds=3.0),
        Profile(name="single", input_tokens=512, output_tokens=128, seconds=20.0, concurrency=1),
        Profile(name="agents", input_tokens=512, output_tokens=256, shared_tokens=1536, seconds=20.0, concurrency=8),
        Profile(name="throughput", input_tokens=512, output_tokens=256, seconds=20.0, concurrency=32),
        Profile(name="long-context", input_tokens=8192, output_tokens=64, seconds=30.0, concurrency=2, context_share=0.5),
    )
}


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise UsageError("unknown-profile", f"no bench profile {name!r}", hint=f"one of {', '.join(PROFILES)}")
    return PROFILES[name]


def input_tokens(profile: Profile, endpoint: Endpoint) -> int:
    """About so many tokens a prompt has here, the shared ones not counted."""
    length = endpoint.max_model_len
    return round(profile.context_share * length) if profile.context_share and length else profile.input_tokens


def levels(planned: int) -> list[int]:
    """1, 2, 4, ... and the planned concurrency itself."""
    powers = [1 << i for i in range(planned.bit_length()) if 1 << i < planned]
    return [*powers, planned]


class Prompts:
    """An endless, seeded source of request bodies; no two share a prefix unless the profile says so."""

    def __init__(self, profile: Profile, model: str, *, chat: bool, input_tokens: int, seed: int, ignore_eos: bool = True) -> None:
        self._random = random.Random(seed)
        self._profile, self._model, self._chat = profile, model, chat
        self._shared = self._words(profile.shared_tokens)
        self._input_tokens = input_tokens
        self._endless = {"ignore_eos": True} if ignore_eos else {}

    def _words(self, tokens: int) -> str:
        return " ".join(self._random.choices(WORDS, k=round(tokens / TOKENS_PER_WORD)))

    def body(self) -> bytes:
        unique = f"{_FRESH.randrange(10**9):09d} {self._words(self._input_tokens)}"
        text = f"{self._shared}\n{unique}" if self._shared else unique
        asked = {"messages": [{"role": "user", "content": f"{text}\nGo on with this list."}]} if self._chat else {"prompt": text}
        fixed = {"max_tokens": self._profile.output_tokens, "temperature": 0, **self._endless}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode({"model": self._model, **asked, **fixed, **stream})
