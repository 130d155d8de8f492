"""How much of a checkpoint is loaded, from samples: the largest of what was read, mapped and cached; GPU memory as the last resort."""

import pytest

from firstlight.watch.reading import Loaded, Reading, loaded
from firstlight.watch.stall import Sample

GB = 10**9


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"read_bytes": 5}, {"read_bytes": 2 * GB + 5}, Loaded(bytes=2 * GB, source="read by the processes")),
        ({"mapped_bytes": GB}, {"mapped_bytes": 4 * GB}, Loaded(bytes=3 * GB, source="mapped into the processes")),
        ({"read_bytes": 0, "cached_bytes": 0}, {"read_bytes": 10, "cached_bytes": GB}, Loaded(bytes=GB, source="in the page cache")),
        ({"read_bytes": 0}, {"read_bytes": 80 * GB}, Loaded(bytes=10 * GB, source="read by the processes")),
        ({"gpu_bytes": 0}, {"gpu_bytes": GB}, Loaded(bytes=GB, source="GPU memory, reserved or filled")),
        ({"read_bytes": 0, "gpu_bytes": 0}, {"read_bytes": 7, "gpu_bytes": 9 * GB}, Loaded(bytes=7, source="read by the processes")),
        ({"mapped_bytes": GB}, {"mapped_bytes": GB}, None),
        ({}, {}, None),
    ],
)
def test_the_signal_that_says_most(before: dict[str, int], after: dict[str, int], found: Loaded | None) -> None:
    assert loaded(Sample(time=0.0, **before), Sample(time=5.0, **after), 10 * GB) == found  # type: ignore[arg-type]


def test_it_counts_from_the_sample_before_loading_and_forgets_when_it_is_over() -> None:
    samples = [Sample(time=5.0 * i, read_bytes=GB * i) for i in range(5)]
    reading = Reading(10 * GB)
    assert reading.see(samples[:2], loading=False) is None
    assert reading.see(samples[:3], loading=True) == Loaded(bytes=GB, source="read by the processes")
    assert reading.see(samples[4:], loading=True) == Loaded(bytes=3 * GB, source="read by the processes")
    assert reading.see(samples, loading=False) is None
    assert reading.last is None


def test_a_checkpoint_of_unknown_size_has_no_progress() -> None:
    assert Reading(None).see([Sample(time=0.0, read_bytes=5)], loading=True) is None
