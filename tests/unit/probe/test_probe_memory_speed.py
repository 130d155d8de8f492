"""Memory's speed: bytes moved over the shortest round, and what is not a measurement."""

import pytest

from firstlight.probe.facts.memspeed import MEMORY_SPEED, parse_memory_speed
from firstlight.probe.local import LocalHost
from firstlight.probe.machine import probe_machine


def test_this_host_copies_memory() -> None:
    speed = MEMORY_SPEED.parse(LocalHost().run(MEMORY_SPEED.argv, timeout=30).text)
    assert speed is not None
    assert 1e8 < speed < 1e13


@pytest.mark.parametrize(
    "text", ["", "268435456", "Traceback (most recent call last):", "0 0.1", "1 0", "firstlight: no answer within 15 s"]
)
def test_what_is_no_measurement_is_unknown(text: str) -> None:
    assert parse_memory_speed(text) is None


def test_bytes_over_seconds() -> None:
    assert parse_memory_speed("268435456 0.0268435456\n") == 10_000_000_000


def test_it_is_measured_only_where_it_was_asked_for() -> None:
    assert probe_machine(LocalHost()).memory_bandwidth_bytes_per_second is None
    assert probe_machine(LocalHost(), measure_reads=True).memory_bandwidth_bytes_per_second is not None
