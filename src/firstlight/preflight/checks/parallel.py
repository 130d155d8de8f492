"""Whether the model's dimensions divide by the layout."""

from collections.abc import Callable, Iterator

from firstlight.catalog.engines import memory_terms
from firstlight.core.findings import Finding
from firstlight.preflight.check import Check, blocker, remark
from firstlight.preflight.context import Context


def heads(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    config, tp = context.checkpoint.config, context.tensor_parallel_size
    count, kv = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(count, int) and count % tp:
        yield blocker(
            "tp-heads-not-divisible",
            f"{count} attention heads cannot be split over {tp} GPUs",
            evidence=[f"config.json: num_attention_heads {count}", f"tensor_parallel_size {tp}"],
            hint=f"--tensor-parallel-size {_near(tp, lambda n: count % n == 0)}, or --pipeline-parallel-size {tp}",
        )
    elif isinstance(kv, int) and not context.is_mla and kv % tp and tp % kv:
        yield blocker(
            "tp-heads-not-divisible",
            f"{kv} KV heads can be neither split over {tp} GPUs nor repeated evenly",
            evidence=[f"config.json: num_key_value_heads {kv}", f"tensor_parallel_size {tp}"],
            hint=f"--tensor-parallel-size {_near(tp, lambda n: kv % n == 0 or n % kv == 0)}",
        )


def _near(tp: int, fits: Callable[[int], bool]) -> str:
    """The nearest sizes that fit, one below and one above."""
    below = [n for n in range(1, tp) if fits(n)][-1:]
    above = [n for n in range(tp + 1, 2 * tp + 1) if fits(n)][:1]
    return " or ".join(str(n) for n in [*below, *above]) or "1"


def quantization_blocks(context: Context) -> Iterator[Finding]:
    """FP8 with block scales: up to 0.28 each GPU's slice must be whole blocks."""
    assert context.checkpoint is not None
    quantization = context.checkpoint.quantization
    if quantization is None or quantization.format != "fp8-block" or context.tensor_parallel_size == 1 or not context.release:
        return
    if not memory_terms(context.version).quant_block_must_divide:
        return
    size = quantization.group_size
    block = max(size) if isinstance(size, list) and size else size if isinstance(size, int) else 128
    tp = context.tensor_parallel_size
    heads = context.checkpoint.config.get("num_attention_heads") or 0
    for name, width in _split_widths(context):
        if width % tp or (width // tp) % block:
            experts = name.startswith("moe") and not (context.candidate and context.candidate.enable_expert_parallel)
            cures = [f"--tensor-parallel-size {_whole(width, block, tp, heads)}", *(["--enable-expert-parallel"] if experts else [])]
            yield blocker(
                "tp-quant-block-not-divisible",
                f"{name} {width} split over {tp} GPUs is not a whole number of {block}-wide FP8 blocks",
                evidence=[f"{width} / {tp} = {width / tp:g}, block {block}", f"{context.named} refuses it; from 0.29 on it loads"],
                hint="; or ".join([*cures, "`firstlight engines install vllm@0.29.0` or newer"]),
            )


def _whole(width: int, block: int, tp: int, heads: int) -> str:
    return _near(tp, lambda n: width % n == 0 and (width // n) % block == 0 and heads % n == 0)


def _split_widths(context: Context) -> list[tuple[str, int]]:
    assert context.checkpoint is not None
    config, moe = context.checkpoint.config, context.checkpoint.moe
    whole_experts = bool(context.candidate and context.candidate.enable_expert_parallel)
    names = ["intermediate_size"] if moe is None or moe.first_dense_layers else []
    names += ["moe_intermediate_size"] if moe is not None and not whole_experts else []
    names += ["shared_expert_intermediate_size"] if moe is not None else []
    return [(n, config[n]) for n in names if isinstance(config.get(n), int) and config[n] > 0]


def experts(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    assert context.candidate is not None
    moe, c = context.checkpoint.moe, context.candidate
    ranks = c.tensor_parallel_size * c.data_parallel_size
    if moe is not None and c.enable_expert_parallel and moe.num_experts % ranks:
        yield remark(
            "experts-uneven",
            f"{moe.num_experts} experts do not divide by {ranks} GPUs: some hold one more than others",
            evidence=[f"experts {moe.num_experts}, expert-parallel ranks {ranks}"],
        )


def context_parallel(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    assert context.candidate is not None
    dcp, tp = context.candidate.decode_context_parallel_size, context.tensor_parallel_size
    kv = 1 if context.is_mla else context.checkpoint.config.get("num_key_value_heads")
    if dcp > 1 and isinstance(kv, int) and (tp % dcp or tp // kv < dcp):
        yield blocker(
            "dcp-tp-le-kv-heads",
            f"decode context parallelism of {dcp} needs each KV head {dcp} times, and {tp} GPUs hold it {max(1, tp // kv)} times",
            evidence=[f"tensor_parallel_size {tp}, KV heads {kv}, decode_context_parallel_size {dcp}"],
            hint=f"--decode-context-parallel-size {max(1, tp // kv)}",
        )


def enough_gpus(context: Context) -> Iterator[Finding]:
    assert context.machine is not None
    if context.device != "cuda":
        return
    have = len(context.gpus)
    if have < context.world_size:
        total, selection = len(context.machine.accelerators), context.variables.get("CUDA_VISIBLE_DEVICES")
        chosen = context.intent.gpus if context.intent else None
        evidence = [f"GPUs on the machine: {total}", f"needed: {context.world_size}"]
        evidence += [f"CUDA_VISIBLE_DEVICES={selection}"] if selection is not None and chosen is None else []
        evidence += [f"--gpus {','.join(map(str, chosen))}"] if chosen is not None else []
        yield blocker(
            "world-size-too-large",
            f"the layout needs {context.world_size} GPUs and {have} can be used",
            evidence=evidence,
            hint=f"--tensor-parallel-size {max(1, have)}" if have >= total or chosen is not None else "unset CUDA_VISIBLE_DEVICES",
        )


CHECKS = (
    Check("heads", ("checkpoint", "candidate"), heads, engines=("vllm", "sglang")),
    Check("quantization-blocks", ("checkpoint", "candidate"), quantization_blocks, engines=("vllm",)),
    Check("experts", ("checkpoint", "candidate"), experts, engines=("vllm",)),
    Check("decode-context-parallel", ("checkpoint", "candidate"), context_parallel, engines=("vllm",)),
    Check("enough-gpus", ("machine", "candidate"), enough_gpus, engines=("vllm", "sglang")),
)
