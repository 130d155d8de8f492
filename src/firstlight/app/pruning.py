"""Which compile caches may go: those that were named or are old enough, and that no engine uses now."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from firstlight.app.output import say
from firstlight.app.reconcile import reconcile
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.ports import Host
from firstlight.core.run import TERMINAL, LaunchSpec
from firstlight.launch.caches import Cache, list_caches, refuse_strange, stale


def refuse_unclear(paths: Sequence[str], days: float | None, *, every: bool) -> None:
    """Raises UsageError `which-caches`, `bad-age`."""
    if not paths and days is None and not every:
        raise UsageError("which-caches", "nothing says what may go", hint="name a path, or say --older-than DAYS or --all")
    if every and (paths or days is not None):
        raise UsageError("which-caches", "--all leaves nothing to choose", hint="--all alone, or a path or --older-than DAYS without it")
    if days is not None and not days >= 0:
        raise UsageError("bad-age", f"--older-than cannot be {days:g}", hint="days, 0 or more")


def chosen_caches(host: Host, root: str, paths: Sequence[str], days: float | None, *, every: bool) -> list[Cache]:
    """What may go; those in use are left, and said. Raises UsageError `not-a-cache`, and `cache-in-use` where one was named."""
    known = list_caches(host, root=root)
    named = frozenset(p.rstrip("/") for p in paths)
    refuse_strange(named, known)
    used = _in_use(host)
    chosen = []
    for cache in known:
        if not (cache.path in named or every or (days is not None and stale(cache, days))):
            continue
        users = [name for name, places in used.items() if any(os.path.commonpath([cache.path, p]) == cache.path for p in places)]
        if not users:
            chosen.append(cache)
        elif cache.path in named:
            hint = f"firstlight down {users[0]} ends it"
            raise UsageError("cache-in-use", f"{users[0]!r} runs with this cache", evidence=(cache.path,), hint=hint)
        else:
            say(f"left: {cache.path}, with which {', '.join(users)} runs")
    return chosen


def _in_use(host: Host) -> dict[str, list[str]]:
    """Name of each run on the host that is not over -> absolute paths in its engine's environment."""
    found: dict[str, list[str]] = {}
    for folder, run in RunStore().scan()[0]:
        if run.host != host.name or run.state in TERMINAL:
            continue
        try:
            if reconcile(folder).state in TERMINAL:
                continue
            specs = [folder.try_load(LaunchSpec, "launch.json"), *_rehearsed(folder)]
        except FirstlightError:
            continue  # what cannot be read cannot be asked
        found[run.name] = [value for spec in specs if spec is not None for value in spec.env.values() if value.startswith("/")]
    return found


def _rehearsed(folder: RunFolder) -> list[LaunchSpec]:
    """The starts of a rehearsal, which meet the launch's own caches."""
    found = []
    for path in folder.path.glob("rehearsal/*/supervise.json"):
        with suppress(OSError, ValueError, KeyError, msgspec.ValidationError):
            found.append(msgspec.convert(json.loads(path.read_bytes())["spec"], LaunchSpec))
    return found
