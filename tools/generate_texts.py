"""Collects what vLLM's sources say when they fail, so that a pasted message without frames still names its place.

    python tools/generate_texts.py PACKAGE/vllm [PACKAGE/vllm ...] [SITE/transformers ...]
    (unpacked releases, the oldest first, then its libraries)

Writes src/firstlight/catalog/engines/vllm/texts.txt. Kept is a digest of how the longest fixed part of each raise and assert begins, where
it is long enough to be nobody else's and all places that print it are known by one rule of rules/components.toml; and the names of the
engine's classes (not of models), with which Python says whose attribute is missing.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import diagnose_texts

from firstlight.catalog.rules import builtin_rules
from firstlight.catalog.texts import digest_of

FILE = Path(__file__).parents[1] / "src" / "firstlight" / "catalog" / "engines" / "vllm" / "texts.txt"
HOLE = "\x00"
NOT_IN_A_SERVER = re.compile(
    r"^transformers/(?:models|pipelines|generation|exporters|distributed|commands|trainer|data|onnx|testing)"
    r"|^huggingface_hub/(?:cli|inference|commands)|^triton/(?:experimental|tools)|^compressed_tensors/offload"
    r"|^ray/(?:dashboard|autoscaler|data|train|tune|rllib|serve|air|workflow|llm|cloudpickle|scripts|job_submission|thirdparty_files)"
    r"|^flashinfer/(?:data|cute_dsl|testing|aot|__main__|experimental|moe_ep|prims_ts|\w+_kernels|diffusion_ops|trace|cake_\w+)"
    r"|^ray/(?:experimental|dag)|^mooncake/(?:reshard|structured)|^peft/(?:tuners/(?!lora|tuners_utils)|optimizers)|^lmcache/(?:cli|experimental|tools)"
    r"|^torch/(?!_inductor/|_dynamo/|distributed/(?:\w+\.py|c10d_logger|device_mesh|rendezvous))"
    r"|^sglang/(?!srt/)|^sglang/srt/(?:entrypoints|function_call|parser|tracing|batch_overlap|debug_utils)"
    r"|^vllm_omni/(?:diffusion|model_executor|benchmarks|examples|assets|experimental)"
)
OF_MODELS = re.compile(r"/models/|/configs/|^(?!vllm/)")
Places = dict[str, dict[str, None]]
PLACED = sorted((r for r in builtin_rules() if r.places), key=lambda r: -r.priority)


def code_of(place: str) -> str | None:
    return next((r.code for r in PLACED if any(p.search(place) for p in r.places)), None)


def place_of(text: diagnose_texts.Text) -> str:
    """The file, with the function where that says more (what loads weights)."""
    return f"{text.path}:{text.function}" if "load" in text.function else f"{text.path}:"


def own_part(message: str) -> str | None:
    """The digest of the longest fixed part of a message, None where it could be anybody's."""
    part = max(re.split(f"[{HOLE}\n]", message), key=len).strip()
    words = part.count(" ") + 1
    return digest_of(part) if (len(part) >= 24 and words >= 4) or (len(part) >= 32 and words >= 3) else None


def collect(packages: Sequence[Path]) -> tuple[Places, Places]:
    """Digests of messages, and names of classes, each with the places that have it, the newest last. A file that did not change is
    read once."""
    texts: Places = {}
    names: Places = {}
    seen: set[tuple[str, str]] = set()
    for package in packages:
        for path, source in diagnose_texts.sources_of(package):
            key = (path, hashlib.sha256(source.encode()).hexdigest())
            if key in seen or NOT_IN_A_SERVER.search(path):
                continue
            seen.add(key)
            tree = ast.parse(source)
            for text in diagnose_texts.texts_in(tree, path, source):
                if text.kind != "logged" and (part := own_part(text.message)):
                    texts.setdefault(part, {})[place_of(text)] = None
            for name in class_names(tree) if not OF_MODELS.search(path) else ():
                names.setdefault(name, {})[f"{path}:"] = None
    return texts, names


def class_names(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in tree.body if isinstance(node, ast.ClassDef) and len(node.name) >= 8)


def unambiguous(places: Places) -> Iterator[tuple[str, str]]:
    """(place, what it alone has) where all its places are known by one rule."""
    for what, found in places.items():
        found = {p: None for p in found if p.startswith("vllm/")} or found  # plugins and forks say much of vLLM's again
        codes = {code_of(place) for place in found}
        if len(codes) == 1 and None not in codes:
            yield list(found)[-1], what


def main() -> None:
    diagnose_texts.sample = lambda name: HOLE
    texts, names = collect([Path(p) for p in sys.argv[1:]])
    by_place: dict[str, list[str]] = {}
    for place, part in unambiguous(texts):
        by_place.setdefault(place, []).append(f" {part}")
    for place, name in unambiguous(names):
        by_place.setdefault(place, []).append(f"\t{name}")
    lines = ["# Made by tools/generate_texts.py from vLLM 0.4.3 to 0.33.0 and its libraries: places, what only they print, classes."]
    for place in sorted(by_place):
        lines += [place, *sorted(by_place[place])]
    FILE.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(texts)} texts and {len(names)} classes found, {len(by_place)} places, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
