"""`--gpus` reaches CUDA as the GPUs that were meant."""

from typing import Any

import pytest

from firstlight.app.visible import on_gpus
from firstlight.core.intent import Intent
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.run import LaunchSpec


def gpu(index: int, **more: Any) -> Accelerator:
    return Accelerator(index=index, name="GPU", uuid=f"GPU-{index}", **more)


def part(index: int, uuid: str | None) -> Accelerator:
    return Accelerator(index=index, name="GPU MIG 3g.40gb", uuid=uuid, mig=True, mig_profile="3g.40gb")


WHOLE = [gpu(n) for n in range(4)]
# The second GPU is whole; the first one's second part has the same index as it.
MIXED = [part(0, "MIG-a"), part(1, "MIG-b"), gpu(1), gpu(2)]


def shown(gpus: list[int] | None, machine: list[Accelerator], env: dict[str, str] | None = None, **inherited: str) -> dict[str, str]:
    spec = LaunchSpec(engine="vllm", argv=["vllm"], port=8000, env={"OTHER": "1"})
    found = on_gpus(spec, Machine(hostname="h", accelerators=machine, environment=inherited), Intent(model="m", gpus=gpus, env=env or {}))
    return {k: v for k, v in found.env.items() if k.startswith("CUDA")}


@pytest.mark.parametrize(
    ("gpus", "machine", "visible"),
    [
        ([0, 1], WHOLE, {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ([3, 1], WHOLE, {"CUDA_VISIBLE_DEVICES": "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (None, WHOLE, {}),
        ([0], MIXED, {"CUDA_VISIBLE_DEVICES": "MIG-a"}),
        ([1], MIXED[:2], {"CUDA_VISIBLE_DEVICES": "MIG-b"}),
        ([2], MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-2"}),
        (None, MIXED, {"CUDA_VISIBLE_DEVICES": "MIG-a"}),
        ([0], [part(0, None)], {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ([0], [gpu(0, vendor="amd")], {}),
        ([7], WHOLE, {}),
    ],
)
def test_the_gpus_that_were_meant(gpus: list[int] | None, machine: list[Accelerator], visible: dict[str, str]) -> None:
    assert shown(gpus, machine) == visible


def test_the_users_own_word_stands() -> None:
    assert shown([0], WHOLE, {"CUDA_VISIBLE_DEVICES": "2"}) == {}
    assert shown([0], WHOLE, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert shown(None, MIXED, CUDA_VISIBLE_DEVICES="MIG-b") == {}
    assert shown([1], WHOLE, CUDA_VISIBLE_DEVICES="3")["CUDA_VISIBLE_DEVICES"] == "1"
