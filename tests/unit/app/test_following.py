"""Where `attach` begins to look: at the engine's present life, or at the next one where this one is over."""

from types import SimpleNamespace
from typing import Any

import pytest

from firstlight.app.following import life
from firstlight.launch.client import SupervisorEvent


def client(*kinds: str, log: int = 900) -> Any:
    data = {"engine-started": {"log_offset": 100}}
    events = [SupervisorEvent(byte=10 * n, time=0.0, kind=kind, data=data.get(kind, {})) for n, kind in enumerate(kinds, 1)]
    host = SimpleNamespace(stat=lambda path: SimpleNamespace(size=log))
    return SimpleNamespace(past_events=lambda: events, host=host, folder="/run")


@pytest.mark.parametrize(
    ("kinds", "begins"),
    [
        ((), (0, 0)),
        (("supervisor-started", "engine-started", "ready"), (20, 100)),
        (("engine-started", "ready", "died", "restarting"), (40, 900)),
        (("engine-started", "ready", "died", "restarting", "engine-started"), (50, 100)),
        (("engine-started", "ready", "stopping", "engine-exited"), (30, 900)),
    ],
)
def test_an_earlier_life_is_not_shown_again(kinds: tuple[str, ...], begins: tuple[int, int]) -> None:
    assert life(client(*kinds)) == begins
