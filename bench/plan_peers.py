"""Peers on the planner's rows, each in an environment of its own, none of which is firstlight's (see `bench/plan.py --peers`).

A peer gets the same shapes: a folder with config.json and one sparse safetensors file with a correct header, from disk (vramscout,
modelinfo, aiconfigurator) or from a hub on loopback (kvfit and hf-mem, which read only hubs). What it does not say is None.
"""

import contextlib
import json
import math
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plan_models import checkpoint, raw_config
from server import Hub

from firstlight.core.checkpoint import Checkpoint, QuantSpec
from firstlight.plan.numbers import experts_of
from firstlight.plan.resident import ELEMENT_BYTES

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "KimiK25ForConditionalGeneration",
    "glm4_moe": "Glm4MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_text": "Qwen3_5ForConditionalGeneration",
}
HEADER_TENSORS = 2_000  # peers that read headers take minutes and gigabytes on more: those rows are asked only of who reads the config
SECONDS = 240  # the slowest takes ten on an idle machine
KVFIT_GPUS = {"h100": "h100-80", "h200": "h200-141", "h200-141gb-sxm": "h200-141", "rtx-pro-6000-blackwell": "rtx-pro-6000-96"}
MODELINFO_GPUS = {"h100": "H100", "h200": "H200", "h200-141gb-sxm": "H200", "rtx-4090": "RTX4090", "rtx-3090": "RTX3090"}
AIC_SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "h200-141gb-sxm": "h200_sxm", "rtx-pro-6000-blackwell": "rtx_pro_6000_server"}
KVFIT = """
import sys, kvfit.hf as hf
hf.HF_BASE = sys.argv[1]
sys.argv = ["kvfit", *sys.argv[2:]]
import kvfit.cli
sys.exit(kvfit.cli.main())
"""
HF_MEM = """
import sys, httpx2
hub = httpx2.URL(sys.argv[1])
send = httpx2.AsyncHTTPTransport.handle_async_request
async def local(self, request):
    request.url = request.url.copy_with(scheme=hub.scheme, host=hub.host, port=hub.port)
    request.headers["host"] = f"{hub.host}:{hub.port}"
    return await send(self, request)
httpx2.AsyncHTTPTransport.handle_async_request = local
sys.argv = ["hf-mem", *sys.argv[2:]]
from hf_mem.cli import main
sys.exit(main())
"""
# One process for all questions: its tables take seconds to load.
AICONFIGURATOR = """
import contextlib, io, json, sys
from aiconfigurator.main import main
for line in sys.stdin:
    sys.argv, said = ["aiconfigurator", *json.loads(line)], io.StringIO()
    with contextlib.suppress(SystemExit, Exception), contextlib.redirect_stdout(said):
        main()
    print(json.dumps(said.getvalue()), file=sys.__stdout__, flush=True)
"""
Row = dict[str, Any]


class SparseHub(Hub):
    """A hub that does not hash: the files are hundreds of gigabytes of holes."""

    def sha256(self, path: Path) -> str:
        return "0" * 64

    def git_sha1(self, path: Path) -> str:
        return "0" * 40


class Said(NamedTuple):
    """What a peer says, GiB per GPU; None where it does not answer."""

    weights: float | None = None
    pool: float | None = None


class Asked(NamedTuple):
    """One question. venv: the peer's environment; hub: the loopback hub's address; repo: the model there; folder: the model on disk."""

    venv: Path
    row: Row
    hub: str
    repo: str
    folder: Path

    @property
    def total(self) -> float:
        return float(self.row.get("total_gib", 79.18))

    @property
    def utilization(self) -> float:
        return float(_flag(self.row, "--gpu-memory-utilization") or self.row.get("utilization", 0.9))

    @property
    def context(self) -> int:
        return int(_flag(self.row, "--max-model-len") or self.row.get("max_model_len", 8192))


def question_of(row: Row) -> str:
    """What a peer is asked about a row: equal questions are asked once."""
    q = Asked(Path(), row, "", "", Path())
    return f"{row['model']} tp{row['tp']} on {row['gpu']} of {q.total:g} GiB x {q.utilization:g}, {q.context} tokens"


def ask_all(venvs: list[Path], rows: list[Row]) -> dict[str, dict[str, Said]]:
    """Every peer that an environment has, on every row: its answers by question. None of them is asked about pipeline stages."""
    homes = {name: venv for name, (program, _) in PEERS.items() for venv in venvs if (venv / "bin" / program).exists()}
    said: dict[str, dict[str, Said]] = {name: {} for name in homes}
    with tempfile.TemporaryDirectory() as root, SparseHub(Path(root)) as hub:
        for row in rows:
            repo, question = f"org/{row['model'].replace('/', '-')}", question_of(row)
            folder, model = Path(root) / repo / "main", checkpoint(row["model"])
            headers = sum(g.count for g in model.tensor_groups) <= HEADER_TENSORS
            if not folder.exists():
                write_folder(model, raw_config(row["model"]), folder, headers=headers)
            for name, venv in homes.items():
                if question not in said[name] and row.get("pp", 1) == 1 and (headers or name == "aiconfigurator"):
                    said[name][question] = PEERS[name][1](Asked(venv, row, hub.url, repo, folder))
    return said


def write_folder(model: Checkpoint, raw: Row | None, folder: Path, *, headers: bool) -> None:
    """config.json and, with headers, one sparse safetensors file."""
    folder.mkdir(parents=True)
    config: Row = raw or dict(model.config, torch_dtype="bfloat16")
    if raw is None:
        config["architectures"] = model.architectures or [ARCHITECTURES.get(config["model_type"], "Unknown")]
        if model.quantization:
            config["quantization_config"] = _quantization(model.quantization)
    (folder / "config.json").write_text(json.dumps(config))
    if not headers:
        return
    header, offset = dict[str, Any](), 0
    for group in model.tensor_groups:
        size = int(math.prod(group.shape) * ELEMENT_BYTES[group.dtype])
        experts = range(group.count // max(len(group.layers), 1)) if "{expert}" in group.pattern else range(1)
        for layer in group.layers or [0]:
            for expert in experts:
                name = group.pattern.replace("{layer}", str(layer)).replace("{expert}", str(expert))
                header[name] = {"dtype": group.dtype, "shape": group.shape, "data_offsets": [offset, offset + size]}
                offset += size
    raw_header = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw_header)) + raw_header)
        file.truncate(8 + len(raw_header) + offset)


def _quantization(spec: QuantSpec) -> Row:
    """As the method's own files say it."""
    ignored = {"ignore": spec.ignore, "modules_to_not_convert": spec.ignore}
    if spec.method == "compressed-tensors":
        number: Row = {"num_bits": 8, "type": "float", "symmetric": True}
        groups = {
            "weights": number | {"strategy": "channel", "dynamic": False},
            "input_activations": number | {"strategy": "token", "dynamic": True},
        }
        more: Row = {"format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"], **groups}}}
    elif spec.format == "fp8-block":
        more = {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    else:
        more = {"quant_algo": "NVFP4"} if spec.format == "nvfp4" else {}
    return {"quant_method": spec.method, **ignored, **more}


def _run(argv: list[str]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    return ""


def _flag(row: Row, name: str) -> str | None:
    args = row.get("args", [])
    return args[args.index(name) + 1] if name in args else None


def _kvfit(q: Asked) -> Said:
    argv = [str(q.venv / "bin" / "python"), "-c", KVFIT, q.hub, q.repo, "--hardware", KVFIT_GPUS.get(q.row["gpu"], "h100-80")]
    argv += ["--device-memory-gib", str(q.total), "--gpus", str(q.row["tp"]), "--nodes", "1", "--tp", str(q.row["tp"])]
    argv += ["--context", str(q.context), "--utilization", str(q.utilization), "--kv-dtype", "bf16", "--json"]
    try:
        layout = json.loads(_run(argv))["concurrency"]["best_any_fabric"]["layout"]
        weights = float(layout["weights_per_rank_gib"])
    except (ValueError, KeyError, TypeError):
        return Said()
    return Said(weights, q.total * q.utilization - weights)


def _vramscout(q: Asked) -> Said:
    argv = [str(q.venv / "bin" / "vramscout"), str(q.folder), "--engine", "vllm", "--tp", str(q.row["tp"]), "--kv-dtype", "bf16", "--json"]
    argv += ["--vram-gib", str(q.total), "--gpu-memory-utilization", str(q.utilization), "--context", str(min(q.context, 8192))]
    try:
        found = json.loads(_run(argv))
        parts = found["parts_gib"]
        return Said(float(parts["Model weights / rank"]), float(found["spare_gib"]) + float(parts["KV cache"]))
    except (ValueError, KeyError, TypeError):
        return Said()


def _modelinfo(q: Asked) -> Said:
    """One GPU only, and only the cards that it knows by name."""
    if q.row["tp"] > 1 or q.row["gpu"] not in MODELINFO_GPUS:
        return Said()
    argv = [str(q.venv / "bin" / "modelinfo"), str(q.folder / "model.safetensors"), "--vllm", "--gpu", MODELINFO_GPUS[q.row["gpu"]]]
    lines = _run([*argv, "--gpu-util", str(q.utilization)]).splitlines()
    weights = next((line.split("-")[-1] for line in lines if "Static Weights" in line), None)
    pool = next((line.split("=")[-1] for line in lines if "KV Pool" in line), None)
    return Said(_gib(weights), _gib(pool))


def _gib(text: str | None) -> float | None:
    """`256.57 MB (BF16)`; what it calls GB are GiB."""
    words = (text or "").split()
    return float(words[0]) / (1024 if words[1] == "MB" else 1) if len(words) > 1 else None


def _hf_mem(q: Asked) -> Said:
    """The whole model's bytes: divided by the GPUs, since it says nothing per GPU and nothing of a pool."""
    argv = [str(q.venv / "bin" / "python"), "-W", "ignore", "-c", HF_MEM, q.hub, "--model-id", q.repo, "--json-output"]
    try:
        return Said(float(json.loads(_run(argv))["memory"]) / (1 << 30) / q.row["tp"])
    except (ValueError, KeyError, TypeError):
        return Said()


def _aiconfigurator(q: Asked) -> Said:
    """Its memory breakdown for one request of 8,192 tokens; the pool is what the rest of it leaves. Only the systems that it has."""
    system = AIC_SYSTEMS.get(q.row["gpu"])
    if system is None:
        return Said()
    argv = ["cli", "estimate", "--no-color", "--model-path", str(q.folder), "--system", system]
    argv += ["--backend", "vllm", "--estimate-mode", "static", "--isl", "8191", "--osl", "1", "--batch-size", "1"]
    argv += ["--tp-size", str(q.row["tp"]), "--kvcache-quant-mode", "bfloat16", "--detail", "memory"]
    if experts_of(checkpoint(q.row["model"]).config):
        argv += ["--moe-tp-size", str(q.row["tp"]), "--moe-ep-size", "1"]
    words = [line.split() for line in _asked_once_more(q.venv, argv).splitlines()]
    parts = {w[0]: float(w[1]) for w in words if len(w) > 2 and w[2] == "GiB" and w[0] in AIC_PARTS}
    if "weights" not in parts:
        return Said()
    return Said(parts["weights"], q.total * q.utilization - sum(v for k, v in parts.items() if k != "kvcache"))


@cache
def _aiconfigurator_process(venv: Path) -> "subprocess.Popen[str]":
    """Ends when this process does and its stdin closes."""
    argv = [str(venv / "bin" / "python"), "-W", "ignore", "-c", AICONFIGURATOR]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _asked_once_more(venv: Path, argv: list[str]) -> str:
    process = _aiconfigurator_process(venv)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(argv) + "\n")
    process.stdin.flush()
    return str(json.loads(process.stdout.readline() or '""'))


AIC_PARTS = frozenset({"weights", "kvcache", "activations", "nccl", "others"})
# name -> (the program that its package installs, how it is asked)
PEERS: dict[str, tuple[str, Callable[[Asked], Said]]] = {
    "kvfit": ("kvfit", _kvfit),
    "vramscout": ("vramscout", _vramscout),
    "modelinfo": ("modelinfo", _modelinfo),
    "hf-mem": ("hf-mem", _hf_mem),
    "aiconfigurator": ("aiconfigurator", _aiconfigurator),
}
