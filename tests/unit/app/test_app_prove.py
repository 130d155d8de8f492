"""From where on a death explains what the checks saw."""

import pytest

from firstlight.app.stages.prove import ready_at
from firstlight.launch.supervision import SupervisorEvent


def events(*kinds: str) -> list[SupervisorEvent]:
    return [SupervisorEvent(byte=10 * place, time=0.0, kind=kind) for place, kind in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    ("kinds", "byte"),
    [
        (("engine-started", "ready"), 20),
        (("engine-started", "ready", "died", "ended"), 20),  # it died between ready and the first check
        (("engine-started", "ready", "died", "restarting", "engine-started", "ready"), 60),
        (("engine-started",), 10),
        ((), 0),
    ],
)
def test_a_death_counts_from_the_last_ready_on(kinds: tuple[str, ...], byte: int) -> None:
    assert ready_at(events(*kinds)) == byte
