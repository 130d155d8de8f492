"""The utilization that cures a KV cache which profiling promised and the GPU does not have: exact where the log tells, else half."""

from pathlib import Path
from typing import Any

import pytest

from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.remedies import utilization_after_profiling, utilization_halfway, utilization_without

# A run of ours on an H200 whose attention backend kept 33 GiB that the profile did not count.
LOG = Path(__file__).parents[2] / "rules" / "oom-kv-allocation" / "hit-3.log"


def utilizations(log: bytes) -> list[Any]:
    return [r.change["gpu_memory_utilization"] for r in diagnose(log).remedies if r.change]


def test_free_memory_after_profiling_gives_the_most_that_fits() -> None:
    # 139.8 GiB: 62.29 free, 4.21 come again as activations, 1 kept back -> 57.08 instead of 82.74
    assert utilizations(LOG.read_bytes()) == [0.73]


def test_without_that_line_half_of_the_pool_is_tried() -> None:
    quiet = b"\n".join(line for line in LOG.read_bytes().splitlines() if b" DEBUG " not in line)
    # five tensors of 16.55: two of them and the 12.65 that were free, less 1
    assert utilizations(quiet) == [0.64]


@pytest.mark.parametrize("pool", [40.0, 57.0])
def test_a_pool_that_fits_is_not_lowered(pool: float) -> None:
    with pytest.raises(ValueError, match="no utilization"):
        utilization_after_profiling(0.92, 128.62, pool, 62.29, 4.21)


def test_a_pool_of_one_tensor_takes_what_is_free() -> None:
    assert utilization_halfway(0.9, 10.0, 10.0, 6.0, 24.0) == 0.69


def test_what_was_missing_and_half_a_gib_more() -> None:
    assert utilization_without(0.92, 2.0, 0.5, 80.0) == 0.89


def test_nothing_left_is_no_remedy() -> None:
    with pytest.raises(ValueError, match="no utilization"):
        utilization_halfway(0.2, 20.0, 20.0, 0.1, 24.0)
