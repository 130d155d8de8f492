"""Builds the model of one rank on the meta device, with the engine's own classes: every shape is real, no byte is allocated."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from .settings import accepted


def build(config: Any, rank: int) -> Any:
    """The engine's model (a torch module) as rank `rank` would hold it. Raises whatever the engine raises."""
    import torch

    torch_utils = _first_with("set_default_torch_dtype", "vllm.utils.torch_utils", "vllm.model_executor.model_loader.utils")
    loader: Any = importlib.import_module("vllm.model_executor.model_loader.utils")
    with torch_utils(config.model_config.dtype), torch.device("meta"):
        return loader.initialize_model(vllm_config=config)


@contextlib.contextmanager
def as_rank(config: Any, rank: int) -> Iterator[None]:
    """The engine believes to be rank `rank` of its world; groups exist, nothing is ever sent."""
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    current: Any = importlib.import_module("vllm.config")
    parallel = config.parallel_config
    world = parallel.world_size
    config.parallel_config.rank = rank
    with current.set_current_vllm_config(config):
        state.init_distributed_environment(world, rank, "env://", 0, "fake")
        wanted = {
            "tensor_model_parallel_size": parallel.tensor_parallel_size,
            "pipeline_model_parallel_size": parallel.pipeline_parallel_size,
            "prefill_context_model_parallel_size": getattr(parallel, "prefill_context_parallel_size", 1),
            "decode_context_model_parallel_size": getattr(parallel, "decode_context_parallel_size", 1),
        }
        state.initialize_model_parallel(**accepted(state.initialize_model_parallel, **wanted))
        try:
            yield
        finally:
            state.destroy_model_parallel()
            state._WORLD = None
            config.compilation_config.static_forward_context.clear()


def fake_world(size: int, rank: int) -> None:
    """A process group of `size` that exists in this process alone."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=size)


def prepare_engine() -> None:
    """Once per process, after the engine was imported: its groups use the fake backend and start no communication threads,
    and it looks at model classes in this process (a child would find the environment's own release)."""
    import torch
    import torch.distributed as dist

    new_group = dist.new_group

    def group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        kept = {k: v for k, v in kwargs.items() if k in ("timeout", "group_desc")}
        return new_group(ranks, backend="fake", **kept)

    dist.new_group = group
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    state.in_the_same_node_as = lambda group, *args, **kwargs: [True] * dist.get_world_size()
    _quiet_groups(state.GroupCoordinator)
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda function: function()
    _experts_on_cpu()
    with contextlib.suppress(Exception):
        workspace: Any = importlib.import_module("vllm.v1.worker.workspace")
        workspace.init_workspace_manager(torch.device("meta"), 1)


def _quiet_groups(coordinator: Any) -> None:
    original = coordinator.__init__
    signature = inspect.signature(original)
    quiet = {"use_device_communicator": False, "use_message_queue_broadcaster": False, "torch_distributed_backend": "fake"}

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update({k: v for k, v in quiet.items() if k in signature.parameters})
        original(*bound.args, **bound.kwargs)

    coordinator.__init__ = init


def _experts_on_cpu() -> None:
    """Which expert lies on which rank is read back as numbers, so those small tables must be real ones."""
    import torch

    for place in ("vllm.model_executor.layers.fused_moe.layer", "vllm.model_executor.layers.fused_moe.expert_map_manager"):
        try:
            module: Any = importlib.import_module(place)
        except ImportError:
            continue
        for name in ("determine_expert_map", "determine_expert_placement_strategy"):
            function = getattr(module, name, None)
            if function is not None:
                setattr(module, name, _with_device(function, torch.device("cpu")))


def _with_device(function: Any, device: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device:
            return function(*args, **kwargs)

    return call


def _first_with(name: str, *places: str) -> Any:
    for place in places:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(place), name)
    raise ImportError(f"this release has no {name} where it is looked for")
