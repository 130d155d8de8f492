"""A trusted run's next-token distributions, kept to compare other runs of the same checkpoint with."""

from msgspec import Struct


class ReferenceRow(Struct, frozen=True, kw_only=True):
    """One prompt's next token: the likeliest tokens and their logprobs (nats), most likely first."""

    prompt_tokens: int | None
    tokens: list[str]
    logprobs: list[float]


class Reference(Struct, frozen=True, kw_only=True):
    """taken: seconds since the epoch. rows: one a prompt, in order. tokens_digest: of the prompts' token ids; None: not to be had."""

    model: str
    taken: float
    prompts: list[str]
    rows: list[ReferenceRow]
    engine: str | None = None
    engine_version: str | None = None
    note: str | None = None
    tokens_digest: str | None = None
