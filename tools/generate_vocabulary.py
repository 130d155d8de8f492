"""What each vLLM release has names for: architectures, parsers, quantization methods, flags, and what it requires.

Reads unpacked wheels (FOLDER/vllm-VERSION/{vllm,*.dist-info}) as text, imports nothing, and writes the catalog's vocabulary.json.
`--check` regenerates and compares instead. Usage: python tools/generate_vocabulary.py FOLDER [--check]
"""

import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "src/firstlight/catalog/engines/vllm/vocabulary.json"
REQUIRED = ("transformers", "torch", "flashinfer-python", "compressed-tensors")


def release_key(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def literal_names(path: Path, pattern: str) -> set[str]:
    """String keys of module-level dicts whose name matches; nothing where the file is absent."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body if path.exists() else []:
        target, value = assigned(node)
        if target and re.fullmatch(pattern, target) and value is not None:
            dicts = [n for n in ast.walk(value) if isinstance(n, ast.Dict)][:1]
            names |= {k.value for d in dicts for k in d.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    return names


def assigned(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return None, None


def serve_flags(code: Path) -> set[str]:
    """Flags of `vllm serve`: option strings of its parsers, and the fields of its front end's dataclasses."""
    names: set[str] = set()
    front = (code / f"entrypoints/{folder}/cli_args.py" for folder in ("openai", "launchers", "common"))
    for path in (code / "engine/arg_utils.py", *front):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                names |= {a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")}
            elif isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                fields = [f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
                names |= {"--" + f.replace("_", "-") for f in fields}
    return names


def quantization_methods(folder: Path) -> set[str]:
    text = (folder / "__init__.py").read_text("utf-8")
    found = re.search(r"QuantizationMethods = Literal\[(.*?)\n\]", text, re.S)
    plain = re.sub(r"#.*", "", found[1]) if found else ""
    return set(re.findall(r'"([^"]+)"', plain))


def capabilities(folder: Path) -> dict[str, int]:
    """get_name's and get_min_capability's literals of each QuantizationConfig class."""
    found: dict[str, int] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                name, minimum = returned(node, "get_name"), returned(node, "get_min_capability")
                if isinstance(name, str) and isinstance(minimum, int):
                    found[name] = minimum
    return found


def returned(node: ast.ClassDef, method: str) -> Any:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == method:
            values = [r.value for r in ast.walk(item) if isinstance(r, ast.Return)]
            return values[0].value if len(values) == 1 and isinstance(values[0], ast.Constant) else None
    return None


def requirements(folder: Path) -> dict[str, str]:
    text = next(folder.glob("*.dist-info/METADATA")).read_text("utf-8")
    found = {}
    for name in REQUIRED:
        row = re.search(rf"^Requires-Dist: {name}\s*([^;\n]*)(?:;|$)", text, re.M)
        if row:
            found[name] = row[1].strip().strip("()")
    return found


def one_release(folder: Path) -> dict[str, Any]:
    code, layers = folder / "vllm", folder / "vllm/model_executor/layers/quantization"
    registry = code / "model_executor/models/registry.py"
    return {
        "architectures": literal_names(registry, r"_(?!PREVIOUSLY|OOT|VLLM|TRANSFORMERS_BACKEND)\w*_MODELS"),
        "tool_parsers": literal_names(code / "tool_parsers/__init__.py", r"_TOOL_PARSERS_TO_REGISTER"),
        "reasoning_parsers": literal_names(code / "reasoning/__init__.py", r"_REASONING_PARSERS_TO_REGISTER"),
        "quantization": quantization_methods(layers),
        "flags": serve_flags(code),
        "min_capability": {f"{n}={c}" for n, c in capabilities(layers).items()},
        "requires": requirements(folder),
    }


def spans(present: Iterable[int], count: int, versions: list[str]) -> str:
    """`0.16.0` (from then on) or `0.14.1..0.20.2`, several joined by commas."""
    runs: list[list[int]] = []
    for i in sorted(present):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(versions[a] + ("" if b == count - 1 else f"..{versions[b]}") for a, b in runs)


def build(root: Path) -> dict[str, Any]:
    folders = sorted(root.glob("vllm-*"), key=lambda p: release_key(p.name))
    versions = [p.name.removeprefix("vllm-") for p in folders]
    found = [one_release(p) for p in folders]
    document: dict[str, Any] = {"generator": "vocabulary/1", "source": "the wheels' own sources", "releases": versions}
    for part in ("architectures", "tool_parsers", "reasoning_parsers", "quantization", "min_capability", "flags"):
        names = sorted(set().union(*(f[part] for f in found)))
        document[part] = {n: spans([i for i, f in enumerate(found) if n in f[part]], len(found), versions) for n in names}
    document["requires"] = {v: f["requires"] for v, f in zip(versions, found, strict=True)}
    return document


def main() -> int:
    document = build(Path(sys.argv[1]))
    text = json.dumps(document, indent=0, sort_keys=False) + "\n"
    if "--check" in sys.argv:
        same = OUT.read_text("utf-8") == text
        print("the same" if same else f"{OUT} differs from what the wheels say")
        return 0 if same else 1
    OUT.write_text(text, "utf-8")
    print({k: len(v) for k, v in document.items() if isinstance(v, dict | list)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
