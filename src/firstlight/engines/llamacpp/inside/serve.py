"""llama.cpp's own HTTP server inside a Python environment that has xllamacpp, with llama-server's flags.

    python serve.py --model FILE.gguf --alias NAME --port 8000 [--ctx-size N] [--parallel N] …

The log is llama.cpp's native one. SIGTERM while the model loads ends at once; afterwards it lets the server end its loop.
A key comes from $LLAMA_API_KEY or --api-key-file, never from the command line. This file runs alone: it imports nothing of firstlight.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from types import FrameType
from typing import Any

DRAIN_SECONDS = 3.0
Setter = Callable[[Any, Any], None]


def _attribute(name: str) -> Setter:
    def set_it(params: Any, value: Any) -> None:
        setattr(params, name, value)

    return set_it


def _threads(holder: str) -> Setter:
    return lambda params, value: setattr(getattr(params, holder), "n_threads", value)


def _enum(attribute: str, enum: str, names: dict[str, str]) -> Setter:
    def set_it(params: Any, value: str) -> None:
        import xllamacpp

        setattr(params, attribute, getattr(getattr(xllamacpp, enum), names[value]))

    return set_it


def _cache_type(attribute: str) -> Setter:
    def set_it(params: Any, value: str) -> None:
        import xllamacpp

        setattr(params, attribute, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))

    return set_it


def _tensor_split(params: Any, value: str) -> None:
    shares = [float(part) for part in value.replace("/", ",").split(",")]
    params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))


def _template_file(params: Any, value: str) -> None:
    with open(value, encoding="utf-8") as file:
        params.chat_template = file.read()


def _mmproj(params: Any, value: str) -> None:
    params.mmproj.path = value


_FLASH = {"on": "LLAMA_FLASH_ATTN_TYPE_ENABLED", "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED", "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO"}
_SPLIT = {k: f"LLAMA_SPLIT_MODE_{k.upper()}" for k in ("none", "layer", "row", "tensor")}
_POOLING = {k: f"LLAMA_POOLING_TYPE_{k.upper()}" for k in ("none", "mean", "cls", "last", "rank")}
_REASONING = {k: f"COMMON_REASONING_FORMAT_{k.upper().replace('-', '_')}" for k in ("none", "auto", "deepseek", "deepseek-legacy")}
_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

VALUES: list[tuple[tuple[str, ...], type, tuple[str, ...] | None, Setter]] = [
    (("-c", "--ctx-size"), int, None, _attribute("n_ctx")),
    (("-np", "--parallel"), int, None, _attribute("n_parallel")),
    (("-ngl", "--gpu-layers", "--n-gpu-layers"), int, None, _attribute("n_gpu_layers")),
    (("-b", "--batch-size"), int, None, _attribute("n_batch")),
    (("-ub", "--ubatch-size"), int, None, _attribute("n_ubatch")),
    (("-n", "--predict", "--n-predict"), int, None, _attribute("n_predict")),
    (("-t", "--threads"), int, None, _threads("cpuparams")),
    (("-tb", "--threads-batch"), int, None, _threads("cpuparams_batch")),
    (("--threads-http",), int, None, _attribute("n_threads_http")),
    (("-ctk", "--cache-type-k"), str, _KV_TYPES, _cache_type("cache_type_k")),
    (("-ctv", "--cache-type-v"), str, _KV_TYPES, _cache_type("cache_type_v")),
    (("-fa", "--flash-attn"), str, tuple(_FLASH), _enum("flash_attn_type", "llama_flash_attn_type", _FLASH)),
    (("-sm", "--split-mode"), str, tuple(_SPLIT), _enum("split_mode", "llama_split_mode", _SPLIT)),
    (("-ts", "--tensor-split"), str, None, _tensor_split),
    (("-mg", "--main-gpu"), int, None, _attribute("main_gpu")),
    (("-mm", "--mmproj"), str, None, _mmproj),
    (("--rope-freq-base",), float, None, _attribute("rope_freq_base")),
    (("--rope-freq-scale",), float, None, _attribute("rope_freq_scale")),
    (("--chat-template",), str, None, _attribute("chat_template")),
    (("--chat-template-file",), str, None, _template_file),
    (("--pooling",), str, tuple(_POOLING), _enum("pooling_type", "llama_pooling_type", _POOLING)),
    (("--reasoning-format",), str, tuple(_REASONING), _enum("reasoning_format", "common_reasoning_format", _REASONING)),
    (("-cram", "--cache-ram"), int, None, _attribute("cache_ram_mib")),
    (("-to", "--timeout"), int, None, _attribute("timeout_read")),
    (("-lv", "--verbosity", "--log-verbosity"), int, None, _attribute("verbosity")),
]
SWITCHES: list[tuple[tuple[str, ...], str, bool]] = [
    (("--metrics",), "endpoint_metrics", True),
    (("--slots",), "endpoint_slots", True),
    (("--no-slots",), "endpoint_slots", False),
    (("--props",), "endpoint_props", True),
    (("--jinja",), "use_jinja", True),
    (("--no-jinja",), "use_jinja", False),
    (("--embeddings", "--embedding"), "embedding", True),
    (("--no-warmup",), "warmup", False),
    (("--warmup",), "warmup", True),
    (("-kvu", "--kv-unified"), "kv_unified", True),
    (("--swa-full",), "swa_full", True),
    (("--context-shift",), "ctx_shift", True),
    (("--no-context-shift",), "ctx_shift", False),
    (("-nkvo", "--no-kv-offload"), "no_kv_offload", True),
    (("--cont-batching",), "cont_batching", True),
    (("--no-cont-batching",), "cont_batching", False),
    (("--check-tensors",), "check_tensors", True),
    (("--no-webui", "--no-ui"), "ui", False),
]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="llama.cpp's server, embedded", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-key-file")
    parser.add_argument("--mlock", action="store_true")
    parser.add_argument("--no-mmap", action="store_true")
    for names, kind, choices, _ in VALUES:
        metavar = None if choices else kind.__name__.upper()
        parser.add_argument(*names, type=kind, choices=choices, dest=names[-1], metavar=metavar)
    for names, attribute, value in SWITCHES:
        parser.add_argument(*names, action="append_const", const=(attribute, value), dest="switches")
    return parser


def parameters(options: argparse.Namespace) -> Any:
    """CommonParams as llama-server would have made them from the same flags."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.api_keys = api_keys(options.api_key_file)
    _load_mode(params, options, xllamacpp.llama_load_mode)
    for names, _, _, setter in VALUES:
        if (value := getattr(options, names[-1])) is not None:
            setter(params, value)
    for attribute, value in options.switches or []:
        setattr(params, attribute, value)
    return params


def _load_mode(params: Any, options: argparse.Namespace, modes: Any) -> None:
    if options.mlock or options.no_mmap:
        name = "MLOCK" if options.mlock and options.no_mmap else "MMAP_MLOCK" if options.mlock else "NONE"
        params.load_mode = getattr(modes, f"LLAMA_LOAD_MODE_{name}")


def api_keys(path: str | None) -> list[str]:
    if path is None:
        return [key] if (key := os.environ.get("LLAMA_API_KEY", "")) else []
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def wait_for_end() -> int:
    """Sleeps until SIGTERM or SIGINT. Through a pipe: the kernel may give the signal to a thread of llama.cpp."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def nothing(number: int, frame: FrameType | None) -> None:
        """The wakeup descriptor carries the number."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, nothing)
    return os.read(reader, 1)[0]


def main() -> int:
    options = arguments().parse_args()
    if not os.path.isfile(options.model):
        print(f"error: no such file: {options.model}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for the whole load
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(options))
    except Exception as e:
        print(f"error: llama.cpp did not start: {type(e).__name__}: {e}", file=sys.stderr)
        return 1
    number = wait_for_end()
    say(f"ending on {signal.Signals(number).name}")
    if not drained(server.listening_address, options):
        say(f"answers are still under way after {DRAIN_SECONDS:g} s: not waiting for them")
        os._exit(0)  # the server's own end would wait for every one of them
    del server
    return 0


def say(text: str) -> None:
    """A line of log. Whoever read the log may be gone: that must not keep the process from ending."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode() + b"\n")


def drained(address: str, options: argparse.Namespace) -> bool:
    """Waits until no slot is at work, DRAIN_SECONDS at most; False where some still are, or where the slots are hidden."""
    keys = api_keys(options.api_key_file)
    request = urllib.request.Request(f"{address}/slots", headers={"Authorization": f"Bearer {keys[0]}"} if keys else {})
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(request, timeout=DRAIN_SECONDS) as answer:
                slots = json.load(answer)
        except (OSError, ValueError):
            return False
        if not any(slot.get("is_processing") for slot in slots):
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    sys.exit(main())
