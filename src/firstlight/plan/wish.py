"""What is asked of a plan: the intent's pins, what constraints and the engine's own flags add to them, and what they forbid."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.plan import Candidate, Constraint
from firstlight.plan.flags import checked, pins_from_args

CONCURRENCY = {"single-user": 1, "agents": 8, "throughput": 64, "long-context": 1}
_PIN_FIELDS = frozenset(f.name for f in msgspec.structs.fields(Pins))


class Wish(Struct, frozen=True, kw_only=True):
    """pins: what must hold as it stands. limits: constraints that a layout is tested against.

    flags, env: what constraints add for the engine.
    """

    pins: Pins = Pins()
    purpose: str | None = None
    context: int | None = None
    concurrency: int | None = None
    limits: list[Constraint] = []
    flags: list[str] = []
    env: dict[str, str] = {}
    user_env: dict[str, str] = {}
    extra_args: list[str] = []
    trust_remote_code: bool | None = None

    @property
    def max_model_len(self) -> int | None:
        """The context that must fit: pinned, or wanted. None: the planner chooses (vLLM's `-1` and `auto` too)."""
        pinned = self.pins.max_model_len
        return pinned if pinned and pinned > 0 else self.context

    def cap(self, field: str, value: int) -> int:
        """`value` after every `<=` and `>=` limit on that field."""
        for limit in self.limits:
            if limit.field == field and limit.op == "<=":
                value = min(value, int(limit.value))
            elif limit.field == field and limit.op == ">=":
                value = max(value, int(limit.value))
        return value

    def cap_fraction(self, field: str, value: float) -> float:
        for limit in self.limits:
            if limit.field == field and limit.op in ("<=", ">="):
                value = min(value, float(limit.value)) if limit.op == "<=" else max(value, float(limit.value))
        return value

    def broken_by(self, candidate: Candidate) -> Constraint | None:
        """The first limit that this layout does not keep; None when all hold."""
        return next((c for c in self.limits if not _holds(c, getattr(candidate, c.field, None))), None)


def wish_of(intent: Intent, constraints: Sequence[Constraint], engine: str = "vllm") -> Wish:
    """Flags after `--` and the intent's own pins, which must not contradict each other, then constraints with `==`, which win.

    Raises UsageError `bad-flag-value`, `flag-given-twice`.
    """
    values = _pinned(intent, engine)
    flags: list[str] = []
    env: dict[str, str] = {}
    limits: list[Constraint] = []
    for constraint in constraints:
        field = _field(constraint.field)
        if constraint.op != "==":
            limits.append(msgspec.structs.replace(constraint, field=field))
        elif field in _PIN_FIELDS:
            values[field] = constraint.value
        elif field.startswith("env."):
            env[field.removeprefix("env.")] = str(constraint.value)
        else:
            flags += _as_flag(constraint.field, constraint.value)
    return Wish(
        pins=checked(msgspec.convert(values, Pins)),
        purpose=intent.purpose,
        context=_positive("--context", intent.context),
        concurrency=_positive("--concurrency", intent.concurrency) or (CONCURRENCY.get(intent.purpose) if intent.purpose else None),
        limits=limits,
        flags=flags,
        env=env,
        user_env=intent.env,
        extra_args=intent.extra_args,
        trust_remote_code=intent.trust_remote_code,
    )


def _pinned(intent: Intent, engine: str) -> dict[str, Any]:
    """What the user named, by field. Flags after `--` are the engine's: only vLLM's are planning flags under the same names."""
    own = {k: v for k, v in msgspec.structs.asdict(intent.pins).items() if v is not None}
    if engine != "vllm":
        return own
    theirs = {k: v for k, v in msgspec.structs.asdict(pins_from_args(intent.extra_args)).items() if v is not None}
    twice = [k for k in own if k in theirs and own[k] != theirs[k]]
    if twice:
        flag = "--" + twice[0].replace("_", "-")
        raise UsageError("flag-given-twice", f"{flag} is {own[twice[0]]} here and {theirs[twice[0]]} after `--`", hint="give it once")
    return theirs | own


def _positive(flag: str, value: int | None) -> int | None:
    """Raises UsageError `bad-flag-value` for what is no number of tokens or requests."""
    if value is not None and not 1 <= value <= 1 << 40:
        raise UsageError("bad-flag-value", f"{flag} cannot be {value}", hint="a positive number")
    return value


def _field(name: str) -> str:
    """`--max-model-len` and `max-model-len` are the field `max_model_len`; environment names keep their case."""
    return name if name.startswith("env.") else name.removeprefix("--").replace("-", "_")


def _as_flag(name: str, value: Any) -> list[str]:
    flag = "--" + _field(name).replace("_", "-")
    if value is None or value is False:
        return []
    return [flag] if value is True else [flag, str(value)]


def _holds(limit: Constraint, value: Any) -> bool:
    if value is None:
        return True
    if limit.op == "<=":
        return bool(value <= limit.value)
    if limit.op == ">=":
        return bool(value >= limit.value)
    return limit.op != "!=" or value != limit.value
