"""Parallel layouts: how GPUs share a model, and which layouts a model's shapes allow."""

from msgspec import Struct


class Layout(Struct, frozen=True, kw_only=True):
    """vLLM's parallel sizes. world: GPUs that it takes."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    nodes: int = 1

    @property
    def world(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ways(self) -> int:
        """Ranks that share a layer's experts: vLLM flattens TP over DP for them."""
        return self.tensor_parallel_size * self.data_parallel_size

    def __str__(self) -> str:
        parts = [f"tp{self.tensor_parallel_size}"]
        parts += [f"pp{self.pipeline_parallel_size}"] if self.pipeline_parallel_size > 1 else []
        parts += [f"dp{self.data_parallel_size}"] if self.data_parallel_size > 1 else []
        parts += [f"dcp{self.decode_context_parallel_size}"] if self.decode_context_parallel_size > 1 else []
        parts += ["ep"] if self.enable_expert_parallel else []
        parts += [f"{self.nodes} nodes"] if self.nodes > 1 else []
        return " ".join(parts)


def stage_layers(layers: int, stages: int) -> list[range]:
    """Layer ranges of each pipeline stage: a remainder goes to the stages before the last, as vllm/distributed/utils.py does."""
    each, rest = divmod(layers, stages)
    sizes = [each] * stages
    for i in range(2, rest + 2):
        sizes[-i] += 1
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
