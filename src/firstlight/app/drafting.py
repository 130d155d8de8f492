"""The external drafter that a speculative config names: looked at as the model is, headers or a config only."""

from typing import Any, NamedTuple

import msgspec

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.intent import Intent
from firstlight.core.plan import PlanSet
from firstlight.core.ports import Host

FLAGS = ("--speculative-config", "--speculative_config")


class Drafter(NamedTuple):
    """checkpoint: None where none is named or it could not be read; unread: why."""

    checkpoint: Checkpoint | None = None
    unread: str | None = None


def look_at_drafter(intent: Intent, target: Checkpoint, host: Host) -> Drafter:
    """From a folder, the cache or the hub, like the model. One that cannot be read is no error: the plan says that it is not counted.

    Raises UsageError `bad-flag-value` for a config after `--` that is none.
    """
    from firstlight.app.looking import read_checkpoint
    from firstlight.plan.draft import external

    spec = speculation(intent)
    name = external(spec, target)
    if spec is None or name is None:
        return Drafter()
    revision = spec.get("revision")
    where = f"{name}@{revision}" if isinstance(revision, str) and revision and host.stat(name) is None else name
    try:
        return Drafter(read_checkpoint(where, host))
    except FirstlightError as e:
        return Drafter(unread=f"{e.code}: {e.message}")


def speculation(intent: Intent) -> dict[str, Any] | None:
    """The speculative config among the pins, or among the engine's own flags."""
    from firstlight.plan.flags import pins_from_args

    if intent.pins.speculative_config is not None or not any(a.partition("=")[0] in FLAGS for a in intent.extra_args):
        return intent.pins.speculative_config
    return pins_from_args(intent.extra_args).speculative_config


def with_reason(found: PlanSet, drafter: Drafter) -> PlanSet:
    """The plan, its `draft-not-counted` with why the drafter could not be read."""
    if drafter.unread is None:
        return found
    told = [
        msgspec.structs.replace(f, evidence=[drafter.unread, *f.evidence]) if f.code == "draft-not-counted" else f for f in found.findings
    ]
    return msgspec.structs.replace(found, findings=told)
