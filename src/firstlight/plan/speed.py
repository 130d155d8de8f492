"""Time bounds: how long weights take to arrive, how fast one request can decode at best, when the endpoint answers."""

from firstlight.core.figures import Figure
from firstlight.core.plan import Predicted
from firstlight.core.units import gib
from firstlight.plan.figures import unknown
from firstlight.plan.host import later, load_seconds
from firstlight.plan.layouts import Layout
from firstlight.plan.numbers import experts_of, top_k_of
from firstlight.plan.resident import StageWeights
from firstlight.plan.situation import Situation

ALL_REDUCE_SECONDS = {"nvlink": 6e-6, "pcie": 20e-6}  # one small all-reduce, by link; grows with the logarithm of the ranks
POINT_TO_POINT_SECONDS = 30e-6
STAGE_SECONDS = 400e-6  # scheduling a step on one more pipeline stage
STARTUP_SECONDS = (40.0, 65.0, 90.0)  # imports, configuration, communication, before the first weight byte (vLLM 0.25 on H200)
WARMUP_SECONDS = (25.0, 40.0, 90.0)  # compilation, graph capture, kernel warm-up
EAGER_WARMUP_SECONDS = (5.0, 10.0, 25.0)


def predict(s: Situation, layout: Layout, stages: list[StageWeights], *, enforce_eager: bool) -> Predicted:
    load = load_seconds(s.checkpoint, s.machine)
    warm = EAGER_WARMUP_SECONDS if enforce_eager else WARMUP_SECONDS
    low, mid, high = (start + w for start, w in zip(STARTUP_SECONDS, warm, strict=True))
    return Predicted(
        load_seconds=load,
        decode_tokens_per_second_upper_bound=decode_bound(s, layout, stages),
        ready_seconds=later(load, (low, mid, high), "imports, weights, compilation and graph capture, first time"),
    )


def decode_bound(s: Situation, layout: Layout, stages: list[StageWeights]) -> Figure:
    """One request's tokens per second if nothing but weights moved and only all-reduces waited: an upper bound, never a promise."""
    if not s.bandwidth:
        return unknown("the GPU's memory bandwidth is not known")
    touched = [touched_bytes(s, layout, stage) for stage in stages]
    read = sum(touched) / s.bandwidth
    seconds = read + communication_seconds(s, layout)
    if seconds <= 0:
        return unknown("no weights are known that a token would read")
    bound = round(1 / seconds, 1)
    because = f"{gib(max(touched))} touched per token and GPU, {communication_seconds(s, layout) * 1e3:.1f} ms of communication"
    return Figure(low=round(bound * 0.35, 1), mid=round(bound * 0.65, 1), high=bound, because=because + "; real servers reach 35 to 65 %")


def touched_bytes(s: Situation, layout: Layout, stage: StageWeights) -> float:
    """Bytes of one rank that one token reads: all but the embedding table, of the routed experts only the chosen ones."""
    config = s.checkpoint.config
    experts = experts_of(config)
    routed = stage.by_role.get("routed_experts", 0)
    idle = stage.by_role.get("embedding", 0) + stage.by_role.get("vision", 0) + stage.by_role.get("projector", 0)
    rest = stage.tensors - routed - idle
    top_k = top_k_of(config)
    if not experts:
        return rest
    if layout.enable_expert_parallel:
        local = max(experts // layout.expert_ways, 1)
        return rest + routed * min(max(top_k / layout.expert_ways, 1), local) / local
    return rest + routed * top_k / experts


def communication_seconds(s: Situation, layout: Layout) -> float:
    """Two collectives a layer over the ranks that share it (experts: over TP x DP), one hop between stages."""
    config, layers = s.checkpoint.config, s.checkpoint.num_hidden_layers or 0
    experts = experts_of(config)
    ranks = layout.expert_ways if experts else layout.tensor_parallel_size
    each = ALL_REDUCE_SECONDS["nvlink" if s.has_nvlink else "pcie"] * max(ranks - 1, 0).bit_length() ** 0.5
    if ranks > len(s.gpus):
        each += POINT_TO_POINT_SECONDS
    if experts and layout.data_parallel_size > 1:
        each *= 2  # gather tokens of the other replicas, scatter them back
    hops = (layout.pipeline_parallel_size - 1) * (POINT_TO_POINT_SECONDS + STAGE_SECONDS)
    return (2 * layers * each if ranks > 1 else 0.0) + hops
