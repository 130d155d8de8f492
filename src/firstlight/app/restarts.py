"""Restarts after death: who is asked before, and what the record says of those that were."""

import sys
from collections.abc import Sequence
from time import localtime, strftime

from firstlight.core.ports import Host
from firstlight.launch.client import SupervisorEvent

MODULE = "firstlight.app.restarting"


def before_restart(host: Host, folder: str) -> list[str]:
    """The command that names the cause of a death. On another host it is asked of the Python there, which may not have firstlight."""
    return [sys.executable if host.is_local else "python3", "-m", MODULE, folder]


def hooks_told(events: Sequence[SupervisorEvent]) -> list[str]:
    """A line for each time that the user's `--on-event` command failed."""
    failed = [event for event in events if event.kind == "hook-failed"]
    return [f"told of {event.data.get('event')}, it failed: {event.data.get('problem')}" for event in failed]


def told(events: Sequence[SupervisorEvent]) -> list[str]:
    """A line for each death that was followed by a restart or by the decision against one: when, why, what was done."""
    lines = []
    for event in events:
        if event.kind not in ("diagnosed", "not-diagnosed"):
            continue
        data = event.data
        why = f"{data.get('code')}: {data.get('title')}" if event.kind == "diagnosed" else f"cause unknown ({data.get('because')})"
        done = "started again" if data.get("restart") else f"left down: {data.get('because')}"
        lines.append(f"{strftime('%Y-%m-%d %H:%M:%S', localtime(event.time))} {why}; {done}")
    return lines
