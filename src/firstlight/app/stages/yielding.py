"""What the user said after `--` yields to a constraint that replaces it: the engine takes the last word."""

from collections.abc import Sequence

import msgspec

from firstlight.core.intent import Intent
from firstlight.core.plan import Constraint


def yielded(intent: Intent, constraints: Sequence[Constraint]) -> Intent:
    """The intent without what a remedy replaces: flags after `--` and variables of `--env` would win over the plan's own."""
    fields = {c.field.lstrip("-").replace("-", "_") for c in constraints}
    names = {c.field.removeprefix("env.") for c in constraints if c.field.startswith("env.")}
    env = {name: value for name, value in intent.env.items() if name not in names}
    return msgspec.structs.replace(intent, extra_args=without_flags(intent.extra_args, fields), env=env)


def without_flags(args: Sequence[str], fields: set[str]) -> list[str]:
    """`args` without the named flags and their values, in any spelling (`--a-b 1`, `--a_b=1`)."""
    kept: list[str] = []
    dropping = False
    for word in args:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in fields
            if dropping:
                dropping = "=" not in word
                continue
        elif word.startswith("-") and not word[1:2].isdigit():
            dropping = False
        if not dropping:
            kept.append(word)
    return kept
