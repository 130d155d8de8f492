"""Which GPUs an engine is shown: the ones that were probed and planned for, by names that CUDA cannot take for others."""

import msgspec

from firstlight.core.intent import Intent
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.run import LaunchSpec

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def on_gpus(spec: LaunchSpec, machine: Machine, intent: Intent) -> LaunchSpec:
    """The launch with the GPUs of `--gpus` alone. What the user set himself by `--env` stands.

    An index is nvidia-smi's, which CUDA shares only in PCI order (its default puts the fastest first). A MIG device has no index that CUDA
    knows: its uuid is given, and where nothing was chosen, that of the first, since CUDA shows one device of all at most.
    """
    chosen = _chosen(machine, intent)
    if not chosen or VARIABLE in intent.env:
        return spec
    by_uuid = any(a.mig_profile for a in machine.accelerators) and all(a.uuid for a in chosen)
    names = [a.uuid or str(a.index) if by_uuid else str(a.index) for a in chosen]
    order = {} if ORDER in intent.env or by_uuid else {ORDER: "PCI_BUS_ID"}
    return msgspec.structs.replace(spec, env={**spec.env, VARIABLE: ",".join(names), **order})


def _chosen(machine: Machine, intent: Intent) -> list[Accelerator]:
    """In the order in which they were named; empty where CUDA's own choice is the right one."""
    nvidia = [a for a in machine.accelerators if a.vendor == "nvidia"]
    if intent.gpus is not None:
        known = {a.index: a for a in reversed(nvidia)}
        return [known[i] for i in intent.gpus if i in known]
    first = next((a for a in nvidia if a.mig_profile and a.uuid), None)
    return [first] if first is not None and not machine.environment.get(VARIABLE) else []
