"""A service gets the GPUs of its run, whatever CUDA calls them."""

import pytest

from firstlight.app.servicing import _gpus
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.run import LaunchSpec

MACHINE = Machine(
    hostname="h", accelerators=[Accelerator(index=i, name="GPU", uuid=u) for i, u in enumerate(["MIG-1111-aaaa", "MIG-2222-bbbb"])]
)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, None),
        ("0, 2", ["0", "2"]),
        ("MIG-2222-bbbb", ["MIG-2222-bbbb"]),
        ("MIG-1111", ["MIG-1111-aaaa"]),
        ("MIG-9999", None),
        ("", None),
    ],
)
def test_by_index_uuid_or_its_beginning(visible: str | None, found: list[str] | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    spec = LaunchSpec(engine="vllm", argv=["x"], env=env, port=1, served_model_name="m")
    assert _gpus(spec, MACHINE) == found
