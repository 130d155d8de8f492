"""The stall verdict: silence and no movement, against the phase's own expectation, with what was looked at."""

import pytest

from firstlight.watch.sampler import cached_bytes, family, gpu_bytes, io_bytes, mapped_bytes, network_bytes
from firstlight.watch.stall import Sample, Stall, judge
from firstlight.watch.symptoms import explain_wait


def samples(*, cpu: float = 0.0, io: float = 0.0, gpu: float = 0.0, network: float = 0.0) -> list[Sample]:
    """A minute of samples every 5 s, with these rates per second."""
    return [
        Sample(time=t, cpu_seconds=cpu * t, io_bytes=int(io * t), gpu_bytes=int(gpu * t), network_bytes=int(network * t))
        for t in (float(5 * i) for i in range(13))
    ]


@pytest.mark.parametrize(
    ("phase", "silent", "moving", "state"),
    [
        ("loading", 5, {}, Stall.MOVING),
        ("loading", 100, {"io": 5e8}, Stall.MOVING),
        ("loading", 100, {"network": 5e8}, Stall.MOVING),
        ("loading", 1000, {"io": 5e8}, Stall.MOVING),
        ("loading", 100, {}, Stall.QUIET),
        ("loading", 1000, {}, Stall.STALLED),
        ("compiling", 1000, {"cpu": 1.0}, Stall.MOVING),
        ("compiling", 1000, {}, Stall.STALLED),
        ("distributed-init", 60, {"cpu": 8.0}, Stall.QUIET),
        ("distributed-init", 300, {"cpu": 8.0}, Stall.STALLED),
        ("kv-allocation", 60, {"gpu": 1e9}, Stall.MOVING),
        ("capturing", 60, {"gpu": 1e7}, Stall.MOVING),
        ("profiling", 300, {"cpu": 0.9}, Stall.MOVING),
    ],
)
def test_verdicts(phase: str, silent: float, moving: dict[str, float], state: Stall) -> None:
    verdict = judge(samples(**moving), phase=phase, silent_seconds=silent)
    assert verdict.state is state
    if state is Stall.STALLED:
        assert len(verdict.looked_at) == 4
        assert phase in verdict.because


def test_a_slower_machine_may_be_silent_for_longer() -> None:
    assert judge(samples(), phase="loading", silent_seconds=400).state is Stall.STALLED
    assert judge(samples(), phase="loading", silent_seconds=400, earlier_seconds=300).state is Stall.QUIET


def test_without_samples_nothing_is_claimed() -> None:
    assert judge([], phase="loading", silent_seconds=100).state is Stall.QUIET
    assert judge([], phase="loading", silent_seconds=1000).state is Stall.UNKNOWN
    blind = [Sample(time=float(t)) for t in range(0, 60, 5)]
    assert judge(blind, phase="loading", silent_seconds=1000).state is Stall.UNKNOWN


def test_the_wait_between_processes_is_explained() -> None:
    assert "harmless" in explain_wait(judge(samples(cpu=1.0), phase="compiling", silent_seconds=90), "compiling")
    assert "hang" in explain_wait(judge(samples(cpu=8.0), phase="distributed-init", silent_seconds=300), "distributed-init")


def test_a_busy_processor_proves_nothing_once_a_wait_lasts_too_long() -> None:
    """A rank that waits in a collective spins; only compiling is work that nothing else shows."""
    for phase, state in (("capturing", Stall.STALLED), ("warming", Stall.STALLED), ("compiling", Stall.MOVING)):
        assert judge(samples(cpu=1.0), phase=phase, silent_seconds=700, waits=True).state is state
        assert judge(samples(cpu=1.0), phase=phase, silent_seconds=700).state is Stall.MOVING
    assert judge(samples(cpu=1.0), phase="capturing", silent_seconds=60, waits=True).state is Stall.MOVING


def test_facts_are_parsed() -> None:
    assert family("  1 0 5\n 10 1 7\n 11 10 3\n 12 11 2\n 99 1 50\n", 10) == {10: 7.0, 11: 3.0, 12: 2.0}
    assert family("1 0 5\n", 77) == {}
    assert io_bytes("rchar: 100\nwchar: 5\nsyscr: 9\nread_bytes: 4096\nrchar: 10\nwchar: 1\n") == 116
    assert io_bytes("") is None
    assert io_bytes("rchar: 100\nwchar: 5\n", ("rchar:",)) == 100
    assert mapped_bytes("Name:\tpython\nRssFile:\t    2048 kB\nRssFile:\t 1 kB\n") == 2049 << 10
    assert cached_bytes("4096\n   8192\n") == 12288
    assert (mapped_bytes(""), cached_bytes("")) == (None, None)
    assert gpu_bytes("10, 1024\n99, 2048\n", {10}) == 1 << 30
    assert gpu_bytes("4000, 1024\n", {10}) == 1 << 30
    assert gpu_bytes("No devices were found\n", {10}) is None
    assert (
        network_bytes(
            "Inter-|   Receive\n face |bytes\n  lo: 900 0 0 0 0 0 0 0 900 0 0 0 0 0 0 0\neth0: 100 0 0 0 0 0 0 0 23 0 0 0 0 0 0 0\n"
        )
        == 123
    )
