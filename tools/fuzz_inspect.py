"""Coverage-guided fuzzing of the safetensors, GGUF and config readers. Not a part of CI: needs `pip install atheris`.

    python tools/fuzz_inspect.py safetensors|gguf|config [--seconds 600] [--corpus DIR] [--report FILE]

A crash is any exception that is no finding and no FirstlightError, any input over 1 s, any allocation over 64 MB more than the input.
The corpus starts from true headers, whole and in parts; libFuzzer's own options may follow after `--`.
"""

import argparse
import contextlib
import json
import os
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["firstlight.inspect"]):
    from firstlight.core.errors import FirstlightError
    from firstlight.inspect.agreement import agreement_findings
    from firstlight.inspect.config import normalise, parse_json
    from firstlight.inspect.derive.derive import expected_groups
    from firstlight.inspect.fold import Fold
    from firstlight.inspect.gguf import read_gguf
    from firstlight.inspect.gguf_config import gguf_config
    from firstlight.inspect.kv import attention_kind, kv_bytes_per_token, kv_cache_groups
    from firstlight.inspect.quant import kv_quantization, quant_spec
    from firstlight.inspect.safetensors import HeaderError, header_length, read_header

LIMIT = 64 << 20
SECONDS = 1.0


class TooMuch(Exception):
    """An input that costs more time or memory than it may."""


def safetensors(data: bytes) -> None:
    """The first two bytes say how much data follows the header."""
    extra, raw = int.from_bytes(data[:2], "little"), data[2:]
    size = len(raw) + extra
    with contextlib.suppress(HeaderError, FirstlightError):
        length = header_length(raw[:8], "f", size)
        fold = Fold(61)
        read_header(raw[8 : 8 + length], "f", size, fold)
        agreement_findings(quant_spec(None, None, fold.tensor_groups()), fold.tensor_groups(), False)


def gguf(data: bytes) -> None:
    extra, raw = int.from_bytes(data[:2], "little"), data[2:]
    with contextlib.suppress(FirstlightError):
        header = read_gguf(lambda o, n: raw[o : o + n], len(raw) + extra, "f")
        _config(gguf_config(header.values))


def config(data: bytes) -> None:
    value, _ = parse_json(data, "config.json")
    with contextlib.suppress(FirstlightError):
        _config(value)


def _config(value: object) -> None:
    one = normalise(value)
    groups = kv_cache_groups(one.fields)
    kv_bytes_per_token(groups)
    attention_kind(one.fields, groups)
    spec = quant_spec(one.quantization, None)
    kv_quantization(one.quantization, "q", None)
    expected_groups(one.fields, spec, one.quantization)


TARGETS: dict[str, Callable[[bytes], None]] = {"safetensors": safetensors, "gguf": gguf, "config": config}


def seeds(target: str) -> list[bytes]:
    """True inputs, small."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests/unit/inspect"))
    import gguf_made
    import inspect_made

    if target == "safetensors":
        raw, size = inspect_made.header_of(inspect_made.tiny_tensors())
        small, little = inspect_made.header_of(
            {"model.layers.61.mlp.experts.3.w1.weight": ("F8_E4M3", [2, 3]), "a.weight_scale_2": ("F32", [])}
        )
        return [
            size.to_bytes(4, "little")[:2] + len(raw).to_bytes(8, "little") + raw,
            little.to_bytes(2, "little") + len(small).to_bytes(8, "little") + small,
        ]
    if target == "gguf":
        made = [gguf_made.header(gguf_made.llama(), gguf_made.llama_tensors()[:n], order=o)[0] for o in "<>" for n in (0, 1, 19)]
        return [b"\xff\xff" + raw for raw in made] + [b"\0\0GGUF" + struct.pack("<IQQ", 2, 1, 0)]
    return [json.dumps(row["config"]).encode() for row in inspect_made.published()]


class Guard:
    """Runs one input under the limits and counts."""

    def __init__(self, target: Callable[[bytes], None]) -> None:
        self.target, self.runs, self.slowest, self.most = target, 0, 0.0, 0

    def __call__(self, data: bytes) -> None:
        self.runs += 1
        watched = self.runs % 16 == 0 or len(data) > 4096  # tracing costs more than most inputs
        if watched:
            tracemalloc.start()
        start = time.process_time()  # its own time: a busy machine is no fault of the input
        try:
            self.target(data)
        finally:
            spent = time.process_time() - start
            peak = tracemalloc.get_traced_memory()[1] if watched else 0
            tracemalloc.stop()
        self.slowest, self.most = max(self.slowest, spent), max(self.most, peak)
        if spent > SECONDS:
            raise TooMuch(f"{spent:.2f} s for {len(data)} bytes")
        if peak > LIMIT + len(data):
            raise TooMuch(f"{peak:,} bytes of memory for {len(data):,} bytes")


def main() -> None:
    own, libfuzzer = (
        (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :])
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args(own)
    corpus = given.corpus or Path(tempfile.mkdtemp(prefix="fuzz-inspect-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(given.target)):
        (corpus / f"seed-{number:03d}").write_bytes(seed)
    guard = Guard(TARGETS[given.target])
    options = [f"-max_total_time={given.seconds}", "-timeout=5", "-rss_limit_mb=1024", "-max_len=65536", f"-artifact_prefix={corpus}/"]
    started = time.time()

    def one(data: bytes) -> None:
        guard(data)
        if given.report and guard.runs % 2000 == 0:
            _report(given.report, given.target, guard, time.time() - started)

    atheris.Setup([sys.argv[0], *options, *libfuzzer, str(corpus)], one)
    atheris.Fuzz()


def _report(path: Path, target: str, guard: Guard, seconds: float) -> None:
    """Written as it runs: libFuzzer ends the process itself."""
    line = {
        "target": target,
        "inputs": guard.runs,
        "seconds": round(seconds),
        "slowest_seconds": round(guard.slowest, 3),
        "most_bytes": guard.most,
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(line) + "\n")
    os.replace(fresh, path)


if __name__ == "__main__":
    main()
