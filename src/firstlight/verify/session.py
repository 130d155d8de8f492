"""What the checks share: the client, what was claimed, what was learned so far, the clock."""

import asyncio
import math
import random
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from firstlight.core.run import Endpoint
from firstlight.verify.answers import Answer, TokenRow
from firstlight.verify.client import Api

T = TypeVar("T")
SHORT, THINKING = 24, 1536


class Claims(Struct, frozen=True, kw_only=True):
    """What the model or its flags promise; only what is promised is tested.

    kind: chat | base | embedding | reward, None: found out by asking. tool_parser, reasoning_parser: the engine's flags, for naming them.
    template_tools: only the model's chat template speaks of tools, no flag does. concurrency: parallel requests the plan promised.
    """

    kind: str | None = None
    tools: bool = False
    template_tools: bool = False
    tool_parser: str | None = None
    reasoning: bool = False
    reasoning_parser: str | None = None
    json_schema: bool = False
    vision: bool = False
    concurrency: int | None = None

    def asks(self, name: str, *, thorough: bool) -> bool:
        """Whether the check of this name would ask anything; checks of no claim do."""
        tools = self.tools or (self.template_tools and thorough)
        claimed = {"tools": tools, "reasoning": self.reasoning, "json-schema": self.json_schema, "vision": self.vision}
        return claimed.get(name, True)


class Outcome(Struct, frozen=True, kw_only=True):
    """passed None: not applicable here, `note` says why. for_time, needs_seconds: as in CheckResult."""

    passed: bool | None
    evidence: list[str] = []
    note: str | None = None
    for_time: bool = False
    needs_seconds: float | None = None


class Session:
    """One verification. has_chat, has_completions, thinking: learned while asking; None until known.

    thorough: the full profile, which may ask for more. seconds_per_token, seconds_per_read: so far, of a token written and of one read.
    """

    def __init__(
        self, api: Api, endpoint: Endpoint, claims: Claims, *, parallel: int = 4, deadline: float = math.inf, thorough: bool = False
    ) -> None:
        self.api = api
        self.endpoint = endpoint
        self.claims = claims
        self.parallel = parallel
        self.deadline = deadline
        self.thorough = thorough
        self.engine = endpoint.engine
        self.engine_version = endpoint.engine_version
        self.max_model_len = endpoint.max_model_len
        self.has_chat: bool | None = False if claims.kind == "base" else None
        self.has_completions: bool | None = None
        self.thinking = False
        self.has_logprobs: bool | None = None
        self.continuations_hold: bool | None = None
        self.seconds_per_token: float | None = None
        self.seconds_per_read: float | None = None
        self.seen: list[str] = []
        self.rows: dict[str, TokenRow] = {}
        self.pair: tuple[Answer, Answer] | None = None
        self._random = random.SystemRandom()

    async def ask(self, question: str, *, max_tokens: int = SHORT, **options: Any) -> Answer:
        """A question in the way this model takes it: as a chat turn, or as a text to continue for base models."""
        if self.has_chat is False:
            return self._kept(await self.api.complete(f"Question: {question}\nAnswer:", max_tokens=max_tokens, **_greedy(options)))
        messages = [{"role": "user", "content": question}]
        limit = THINKING if self.thinking else max_tokens
        answer = await self.api.chat(messages, max_tokens=limit, **_greedy(options))
        if not self.thinking and _still_thinking(answer):
            self.thinking = True
            answer = await self.api.chat(messages, max_tokens=THINKING, **_greedy(options))
        return self._kept(answer)

    async def go_on(self, text: str, *, max_tokens: int = 3, **options: Any) -> Answer:
        """Continues a text, greedily unless told otherwise."""
        return self._kept(await self.api.complete(text, max_tokens=max_tokens, **_greedy(options)))

    async def story(self, max_tokens: int, **options: Any) -> Answer:
        """Free text, sampled as the options say."""
        if self.has_completions:
            return await self.go_on("Once upon a time there was a fox who", max_tokens=max_tokens, **options)
        return await self.ask("Tell a short story about a fox.", max_tokens=max_tokens, **options)

    def logprob_options(self, top: int, *, chat: bool | None = None) -> dict[str, Any]:
        """How this request form asks for logprobs: a count in /completions, a switch and a count in chat."""
        in_chat = not self.has_completions if chat is None else chat
        return {"logprobs": True, "top_logprobs": top} if in_chat else {"logprobs": top}

    def endless(self) -> dict[str, Any]:
        """The option to write on past the end of a text, for engines known to have it; others may refuse what they do not know."""
        return {"ignore_eos": True} if self.engine in ("vllm", "llamacpp", "sglang") else {}

    def reading(self, answer: Answer) -> Answer:
        """Keeps the pace of reading: the slowest seen over long prompts with next to nothing written; others came from a cache."""
        read = answer.usage.prompt_tokens or 0
        if answer.ok and read >= 128:
            self.seconds_per_read = max(self.seconds_per_read or 0.0, answer.seconds / read)
        return answer

    def seconds_left(self) -> float:
        return self.deadline - now()

    def affordable(self, tokens: int, *, least: int = 24) -> int:
        """As many of `tokens` as the time left allows at the pace seen so far, and at least `least`."""
        if not self.seconds_per_token or math.isinf(self.deadline):
            return tokens
        return max(least, min(tokens, int(self.seconds_left() / self.seconds_per_token)))

    def fresh(self) -> int:
        """A number that no prefix cache has seen."""
        return self._random.randrange(10**8, 10**9)

    def _kept(self, answer: Answer) -> Answer:
        if answer.ok:
            self.seen.append(answer.whole)
            used = answer.usage.completion_tokens or 0
            self.seconds_per_token = answer.seconds / used if used >= 16 else self.seconds_per_token
        return answer

    async def together(self, work: Iterable[Coroutine[Any, Any, T]], *, limit: int | None = None) -> list[T]:
        """Runs coroutines at most `limit` (default: `parallel`) at a time, results in order. The first that fails ends them all."""
        jobs = list(work)
        gate = asyncio.Semaphore(limit or self.parallel)

        async def one(job: Coroutine[Any, Any, T]) -> T:
            async with gate:
                return await job

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(job)) for job in jobs]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            for job in jobs:
                job.close()  # those that never began; for the others it does nothing
        return [t.result() for t in tasks]


def _greedy(options: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 0, **options}


def _still_thinking(answer: Answer) -> bool:
    """Cut off inside its reasoning: the answer proper has not begun."""
    opened = "<think>" in answer.text and "</think>" not in answer.text
    return answer.ok and answer.finish_reason == "length" and (opened or (bool(answer.reasoning) and not answer.text.strip()))


def now() -> float:
    return time.monotonic()
