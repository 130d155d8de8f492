"""Which files an engine needs, and why the others are left. Pure."""

import fnmatch
import re
from collections.abc import Sequence

from firstlight.core.errors import InputError
from firstlight.core.fetch import LeftOut
from firstlight.core.units import format_bytes
from firstlight.fetch.source import RemoteFile

Selection = tuple[list[RemoteFile], list[LeftOut]]
OTHER_RUNTIMES = (
    "original/",
    "metal/",
    "onnx/",
    "openvino/",
    "coreml/",
    "flax/",
    "tflite/",
    "mlx/",
    "runs/",
    "assets/",
    "images/",
    "figures/",
)
OTHER_FORMATS = {
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
    ".ot": "Rust",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
}
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SMALL = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".py", ".vocab", ".yaml", ".yml")
LEGAL = re.compile(r"(?i)(license|licence|notice|usage_policy|use_policy)[^/]*")
QUANTIZATION = re.compile(r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d[A-Z0-9_]*|BF16|F16|F32|FP16|MXFP4[A-Z0-9_]*|TQ\d_\d))(?=[-./]|$)")
PART = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
VARIANT = re.compile(r"\.(fp16|bf16|fp32|non_ema)(?=\.|-\d{5})")


def select(
    files: Sequence[RemoteFile], *, variant: str | None = None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Selection:
    """include: exactly these patterns; exclude: never these. Raises InputError (quantization-needed, -unknown, nothing-matches)."""
    reasons: dict[str, str] = {f.name: "not asked for" for f in files if include and not _matches(f.name, include)}
    if not include:
        reasons = _unneeded(files, variant)
    reasons.update({f.name: "excluded by you" for f in files if _matches(f.name, exclude)})
    kept = [f for f in files if f.name not in reasons]
    if not kept:
        raise InputError("nothing-matches", "no file of the model is left to fetch", evidence=(f"{len(files)} files in the source",))
    return kept, [LeftOut(name=f.name, size=f.size, because=reasons[f.name]) for f in files if f.name in reasons]


def order(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Small files first: config and index tell early what is wrong. Then by name, as the engine reads them."""
    return sorted(files, key=lambda f: (not f.name.endswith(SMALL), f.name))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, p + "*" if p.endswith("/") else p) for p in patterns)


def _unneeded(files: Sequence[RemoteFile], variant: str | None) -> dict[str, str]:
    names = [f.name for f in files]
    reasons = {n: reason for n in names if (reason := _never(n))}
    rest = [n for n in names if n not in reasons]
    safetensors = [n for n in rest if n.endswith(".safetensors")]
    ggufs = [n for n in rest if n.endswith(".gguf")]
    pickles = [n for n in rest if n.endswith(PICKLES)]
    if ggufs and (variant or not (safetensors or pickles)):
        reasons.update(_one_quantization(files, ggufs, variant))
        reasons.update({n: f"the GGUF {variant or ''} is the model".replace("  ", " ") for n in (*safetensors, *pickles)})
        return reasons
    if variant:
        raise InputError("quantization-unknown", f"the model has no GGUF file, so no {variant}", hint="leave the part after the colon away")
    reasons.update(dict.fromkeys((*ggufs, *(pickles if safetensors else ())), "the model is there as safetensors"))
    hf = any(re.fullmatch(r"model(-\d{5}-of-\d{5})?\.safetensors", n.rpartition("/")[2]) for n in safetensors)
    there = frozenset(safetensors)
    reasons.update({n: why for n in safetensors if (why := _doubled(n, there, hf=hf))})
    return reasons


def _never(name: str) -> str | None:
    """Why no engine reads this file; None when one may."""
    folder = next((p for p in OTHER_RUNTIMES if name.startswith(p) or f"/{p}" in name), None)
    if folder:
        return (
            f"{folder.rstrip('/')}: another runtime's copy"
            if folder not in ("runs/", "assets/", "images/", "figures/")
            else "not read by an engine"
        )
    for ending, runtime in OTHER_FORMATS.items():
        if name.endswith(ending):
            return f"{runtime} weights"
    base = name.rpartition("/")[2]
    if base in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
        return "training state"
    needed = base.endswith((*SMALL, ".safetensors", ".gguf", *PICKLES)) or LEGAL.fullmatch(base)
    return None if needed else "not read by an engine"


def _doubled(name: str, safetensors: frozenset[str], *, hf: bool) -> str | None:
    """Copies of the same weights beside the set that transformers and vLLM read. hf: that set is there under its usual names."""
    base = name.rpartition("/")[2]
    if hf and base.startswith("consolidated"):
        return "the same weights as model*.safetensors"
    if VARIANT.search(base) and VARIANT.sub("", name) in safetensors:
        return "another precision of the same weights"
    return None


def quantization(name: str) -> str | None:
    """`Q4_K_M` out of `Model-7B-Q4_K_M-00001-of-00002.gguf` or `Q4_K_M/….gguf`."""
    found = QUANTIZATION.findall(PART.sub("", name).removesuffix(".gguf"))
    return str(found[-1]).upper() if found else None


def _one_quantization(files: Sequence[RemoteFile], ggufs: Sequence[str], variant: str | None) -> dict[str, str]:
    """One quantization of many, with all its parts; a repository with only one needs no choice."""
    sizes = {f.name: f.size or 0 for f in files}
    models = [n for n in ggufs if not n.rpartition("/")[2].lower().startswith(("mmproj", "imatrix"))]
    by_kind: dict[str, list[str]] = {}
    for name in models:
        by_kind.setdefault(quantization(name) or PART.sub("", name), []).append(name)
    wanted = variant.upper() if variant else next(iter(by_kind), "") if len(by_kind) == 1 else None
    if wanted is None or wanted not in by_kind:
        kinds = sorted(by_kind, key=lambda k: sum(sizes[n] for n in by_kind[k]))
        code = "quantization-unknown" if wanted else "quantization-needed"
        message = f"the model has no {variant}" if wanted else f"the model comes in {len(by_kind)} quantizations"
        lines = tuple(f"{k}: {format_bytes(sum(sizes[n] for n in by_kind[k]))}" for k in kinds)
        raise InputError(code, message, evidence=lines, hint="name one after a colon, for example org/name:Q4_K_M")
    projector = _projector(ggufs)
    return {n: "another quantization" for n in ggufs if n not in by_kind[wanted] and n != projector}


def _projector(ggufs: Sequence[str]) -> str | None:
    """The image or audio encoder that goes with every quantization: the 16-bit one where there are several."""
    found = [n for n in ggufs if n.rpartition("/")[2].lower().startswith("mmproj")]
    return min(found, key=lambda n: (quantization(n) not in ("F16", "BF16"), n), default=None)
