"""The JSON contract field by field, on plans of every verdict; every planning flag in every spelling."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from plan_models import checkpoint

from firstlight.app.group import run
from firstlight.app.plan_options import planning_of, planning_options
from firstlight.core.checkpoint import RemoteCode
from firstlight.core.errors import Exit
from firstlight.core.intent import Pins
from firstlight.core.schema import encode

FIGURE = {"low", "mid", "high", "rung", "because"}
BUDGET = {"total", "usable", "weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom"}
PREDICTED = {"load_seconds", "decode_tokens_per_second_upper_bound", "ready_seconds"}
FIGURES = {"kv_tokens", "max_model_len_that_fits", "max_concurrency"}
CANDIDATE = {
    "engine", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "enable_expert_parallel", "nodes", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
    "kv_cache_memory_bytes", "kv_cache_dtype", "args", "env", "overlay", "per_gpu", "ranks", "kv_bytes_per_token", "predicted", *FIGURES,
}  # fmt: skip
RTX = ("--gpu", "8xrtx-pro-6000-blackwell", "--engine", "vllm@0.16.0")
H100 = ("--gpu", "8xh100-80gb-sxm", "--engine", "vllm@0.28.0")
CASES: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "pinned": ("kimi-k2.5-nvfp4", (*RTX, "-tp", "8", "--max-model-len", "131072", "--gpu-memory-utilization", "0.95"), Exit.OK, "fits"),
    "search": ("qwen3-32b", H100, Exit.OK, "fits"),
    "throughput": ("deepseek-v3", ("--gpu", "8xh200-141gb-sxm", "--engine", "vllm", "--for", "throughput"), Exit.OK, "fits"),
    "two nodes": ("deepseek-v3", (*H100, "--nodes", "2"), Exit.OK, "fits"),
    "uneven stages": ("kimi-k2.5-nvfp4", ("--gpu", "8xh200-141gb-sxm", "--engine", "vllm", "-tp", "4", "-pp", "2"), Exit.OK, "fits"),
    "pinned KV": ("llama-3.1-8b", (*H100, "--kv-cache-memory-bytes", "16GiB"), Exit.OK, "fits"),
    "does not fit": ("kimi-k2.5-nvfp4", (*RTX, "-tp", "8", "--max-model-len", "262144"), Exit.NOTHING_FEASIBLE, "does-not-fit"),
    "nowhere": ("deepseek-v3", ("--gpu", "2xrtx-4090", "--engine", "vllm"), Exit.NOTHING_FEASIBLE, "does-not-fit"),
    "blocked": ("qwen3-235b-a22b-fp8", (*H100, "-tp", "8"), Exit.PREFLIGHT_BLOCKED, "blocked"),
    "llama.cpp": ("llama-3.1-8b", ("--gpu", "1xrtx-4090", "--engine", "llamacpp"), Exit.OK, "fits"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_field_of_the_contract_is_there(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, args, code, verdict = CASES[case]
    path = tmp_path / "c.json"
    path.write_bytes(encode(checkpoint(model)))
    assert run(["plan", "-o", "json", "--checkpoint", str(path), *args]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["verdict"]) == ("PlanSet", verdict)
    assert {"best", "alternatives", "rejected", "findings"} <= document.keys()
    for candidate in [document["best"], *document["alternatives"]]:
        holds_the_contract(candidate)
    for rejected in document["rejected"]:
        assert {"layout", "code", "because"} <= rejected.keys()
        assert all(rejected.values())
    if verdict != "fits":
        assert [f["severity"] for f in document["findings"]].count("blocker") >= 1


def holds_the_contract(candidate: dict[str, Any]) -> None:
    assert candidate.keys() >= CANDIDATE
    assert candidate["engine"].keys() == {"name", "version"}
    assert all(isinstance(word, str) for word in candidate["args"])
    for budget in [candidate["per_gpu"], *(rank["per_gpu"] for rank in candidate["ranks"])]:
        assert budget.keys() == BUDGET
        for figure in budget.values():
            is_a_figure(figure)
    assert candidate["predicted"].keys() == PREDICTED
    for figure in candidate["predicted"].values():
        is_a_figure(figure)
        assert figure["because"]
    for name in FIGURES:
        is_a_figure(candidate[name])


def is_a_figure(figure: dict[str, Any]) -> None:
    """Ordered ends, or unknown with its reason; never a number without a rung."""
    assert figure.keys() == FIGURE
    assert figure["rung"] == "computed"
    if figure["mid"] is None:
        assert figure["low"] is None
        assert figure["because"]
    elif figure["low"] is not None:
        assert figure["low"] <= figure["mid"] <= figure["high"]


def test_ranks_are_told_apart_where_stages_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(encode(checkpoint("kimi-k2.5-nvfp4")))
    run(["plan", "-o", "json", "--checkpoint", str(path), *CASES["uneven stages"][1]])
    best = json.loads(capsys.readouterr().out)["best"]
    assert [rank["ranks"] for rank in best["ranks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    first, last = (rank["per_gpu"]["weights"]["mid"] for rank in best["ranks"])
    assert first != last
    assert best["per_gpu"] in [rank["per_gpu"] for rank in best["ranks"]]  # the rank that binds


def test_a_model_with_remote_code_carries_its_flag_and_its_parsers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    path = tmp_path / "c.json"
    path.write_bytes(encode(msgspec.structs.replace(checkpoint("kimi-k2.5-nvfp4"), trust_remote_code=RemoteCode(needed=True))))
    run(["plan", "-o", "json", "--checkpoint", str(path), *CASES["pinned"][1]])
    args = " ".join(json.loads(capsys.readouterr().out)["best"]["args"])
    assert "--trust-remote-code" in args
    assert "--tool-call-parser kimi_k2" in args
    assert "--reasoning-parser kimi_k2" in args


VALUES = {
    "tensor_parallel_size": ("4", 4),
    "pipeline_parallel_size": ("2", 2),
    "data_parallel_size": ("2", 2),
    "decode_context_parallel_size": ("4", 4),
    "enable_expert_parallel": (None, True),
    "nodes": ("2", 2),
    "max_model_len": ("128K", 131072),
    "max_num_seqs": ("64", 64),
    "max_num_batched_tokens": ("8k", 8000),
    "gpu_memory_utilization": ("0.95", 0.95),
    "kv_cache_memory_bytes": ("16GiB", 16 << 30),
    "kv_cache_dtype": ("fp8_e4m3", "fp8_e4m3"),
    "dtype": ("bfloat16", "bfloat16"),
    "enforce_eager": (None, True),
    "mm_encoder_tp_mode": ("data", "data"),
    "language_model_only": (None, True),
    "speculative_config": ('{"method":"mtp"}', {"method": "mtp"}),
    "block_size": ("64", 64),
}
SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "decode_context_parallel_size": "-dcp",
    "enable_expert_parallel": "-ep",
    "nodes": "--nnodes",
    "kv_cache_memory_bytes": "--kv-cache-memory",
}


def test_the_table_of_flags_is_whole() -> None:
    assert set(VALUES) == set(Pins.__struct_fields__)


@pytest.mark.parametrize("after", [False, True], ids=["ours", "after --"])
@pytest.mark.parametrize("spelling", ["dashes", "underscores", "equals", "short"])
@pytest.mark.parametrize("field", VALUES)
def test_every_flag_in_every_spelling(field: str, spelling: str, after: bool) -> None:
    """Before `--` as ours, after it as the engine's: the plan is the same."""
    text, value = VALUES[field]
    flag = {"underscores": f"--{field}", "short": SHORT.get(field, f"--{field}")}.get(spelling, "--" + field.replace("_", "-"))
    words = [flag] if text is None else [f"{flag}={text}"] if spelling == "equals" else [flag, text]
    assert getattr(pins_of(*(["--", *words] if after else words)), field) == value


def pins_of(*args: str) -> Pins:
    from firstlight.plan.wish import wish_of

    out: list[Pins] = []

    @click.command()
    @click.argument("model")
    @planning_options
    def command(model: str, **options: Any) -> None:
        out.append(wish_of(planning_of(options, model=model).intent, []).pins)

    result = CliRunner().invoke(command, ["m", *args], standalone_mode=False, catch_exceptions=False)
    if result.exception:
        raise result.exception
    return out[0]
