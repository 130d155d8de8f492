"""Which of an engine's own failure texts `diagnose` can name: every raise, assert and logged error of its Python sources, as logs.

    python bench/diagnose_texts.py --package PATH/vllm [--package PATH/vllm ...] [--list none|family|specific] [--json FILE]

Each text is printed the way a start prints it (the process's prefix, the frames of the place that raises it, the wrappers behind it), once
whole and once as it is mostly pasted: the last line alone. Counted is which share is named by a rule that knows the message or the place
(specific), by a family (a rule that yields, or is below every other), or not at all. Whether a name is right, this does not say.
"""

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firstlight.diagnose.decide import decide
from firstlight.diagnose.log import read
from firstlight.diagnose.showing import template

LEFT_OUT = re.compile(
    r"/(?:third_party|benchmarks|tests|profiler|usage|assets|collect_env|vllm_flash_attn|kernels|ir|cute_utils|triton_utils|grpc)(?:/|\.py)"
    r"|entrypoints/(?:openai/(?!cli_args|api_server|parser_manager)|pooling|serve|anthropic|sagemaker|mcp|speech|generate|cli/(?!serve|main))"
    r"|/(?:tool_parsers|reasoning|parser|renderers|tool_server)/|/(?:xpu|tpu|_aiter|rocm)\w*\.py|scalar_type\.py|sampling_params|pooling_params"
)
COMPONENTS = (
    ("config", r"/config/|/engine/arg_utils|/envs\.py|entrypoints/cli|utils/argparse|cli_args"),
    ("platform", r"/platforms/"),
    ("quantization", r"layers/quantization/"),
    ("moe", r"layers/fused_moe/"),
    ("attention", r"attention"),
    ("loader", r"model_loader/"),
    ("models", r"model_executor/models/"),
    ("layers", r"model_executor/|/nn/"),
    ("lora", r"/lora/"),
    ("distributed", r"/distributed/"),
    ("kv cache", r"v1/core/|kv_cache|kv_offload|simple_kv"),
    ("compile", r"/compilation/"),
    ("speculative", r"spec_decode"),
    ("multimodal", r"/multimodal/|transformers_utils/process"),
    ("tokenizer", r"/tokenizers/|tokenizer"),
    ("hub and config files", r"/transformers_utils/"),
    ("worker", r"v1/worker/|/worker/|/model_runner"),
    ("executor", r"executor"),
    ("engine", r"/engine/"),
    ("structured output", r"structured_output|guided"),
    ("plugins", r"/plugins/"),
)
IN_A_STEP = re.compile(
    r"_?forward\w*|apply\w*|execute_model|call|__call__|embed\w*|get_multimodal_embeddings|get_mm\w*|_?parse_\w*|_process_\w+_input"
    r"|compute_logits|pooler|generate|encode\w*|decode\w*|chat|beam_search|score|classify|step|schedule|update_from_output|sample\w*|iter_mm\w*"
    r"|extract_\w+|adjust_request|add_request|abort\w*|_?validate_(?:params|prompt|request|chat|lora|structured|logprobs|singleton)\w*"
)
API = ("config", "hub and config files", "tokenizer", "multimodal", "plugins")
CORE = ("kv cache", "engine", "executor", "structured output")


class Text(NamedTuple):
    """One way in which a source file says that it fails. kind: raise, assert or logged."""

    kind: str
    path: str
    function: str
    line: int
    type: str
    message: str
    code: str


def sample(name: str) -> str:
    """A value for a placeholder, by what its name says that it is."""
    low = name.lower()
    for words, value in (
        (r"dtype", "torch.bfloat16"),
        (r"path|file|dir|folder|root", "/srv/models/kestrel"),
        (r"capab", "86"),
        (r"url|addr|host|endpoint", "192.0.2.9"),
        (r"shape", "torch.Size([128, 96])"),
        (r"supported|valid|allowed|choices|options|available|list|keys|names", "['alpha', 'beta']"),
        (r"size|num|len|rank|count|idx|index|max|min|port|bytes|tokens|dim|bits|limit|blocks|version|id\b|head|world|tp|pp|dp", "48"),
        (r"\be\b|err|exc", "kestrel failed"),
        (r"arch", "KestrelForCausalLM"),
        (r"__name__|type|cls|class", "Kestrel"),
    ):
        if re.search(words, low):
            return value
    return "kestrel"


def literal(node: ast.expr | None) -> str | None:
    """The text of a message with its placeholders filled in; None where the text is not in the source."""
    match node:
        case ast.Constant(value=str(value)):
            return re.sub(r"%(?:\((\w+)\))?[-+ 0#]*\d*(?:\.\d+)?[sdrfgxi]", lambda m: sample(m[1] or "num"), value)
        case ast.JoinedStr(values=values):
            parts = [
                str(v.value) if isinstance(v, ast.Constant) else sample(ast.unparse(v.value)) if isinstance(v, ast.FormattedValue) else ""
                for v in values
            ]
            return "".join(parts)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            a, b = literal(left), literal(right) if isinstance(node.op, ast.Add) else ""
            return None if a is None and not b else (a or "kestrel") + (b or "")
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            text = literal(inner)
            return None if text is None else re.sub(r"\{(\w*)[^}]*\}", lambda m: sample(m[1] or "num"), text)
    return None


def sources_of(package: Path) -> Iterator[tuple[str, str]]:
    """Path and source of the files of a package that run in a server."""
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package.parent).as_posix()
        if not LEFT_OUT.search("/" + path):
            yield path, file.read_text("utf-8-sig", "replace")


def texts_of(package: Path) -> Iterator[Text]:
    for path, source in sources_of(package):
        yield from texts_in(ast.parse(source), path, source)


def texts_in(tree: ast.Module, path: str, source: str) -> Iterator[Text]:
    yield from _in_tree(tree, path, source.split("\n"), "<module>")


def _in_tree(node: ast.AST, path: str, lines: list[str], function: str) -> Iterator[Text]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if found := _text(child):
            kind, type_, message = found
            yield Text(kind, path, function, child.lineno, type_, message, lines[child.lineno - 1].strip())
        yield from _in_tree(child, path, lines, inside)


def _text(node: ast.AST) -> tuple[str, str, str] | None:
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_])):
            message = literal(first)
            return ("raise", name, message) if message and name not in ("HTTPException", "StopIteration") else None
        case ast.Assert(msg=ast.expr() as said):
            message = literal(said)
            return ("assert", "AssertionError", message) if message else None
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr="error" | "critical" | "exception"), args=[first, *_]):
            message = literal(first)
            return ("logged", "ERROR", message) if message else None
    return None


def component(path: str) -> str:
    return next((name for name, regex in COMPONENTS if re.search(regex, "/" + path)), "other")


def process_of(text: Text) -> tuple[str, str, str]:
    """Prefix of the process that reaches this place at a start, the source its traceback is logged from, and the line before it."""
    name = component(text.path)
    if name in API or name == "other":
        return "(APIServer pid=61)", "", ""
    if name in CORE:
        return "(EngineCore pid=80)", "core.py:1165", "EngineCore failed to start."
    return "(Worker_TP1 pid=93)", "multiproc_executor.py:935", "WorkerProc failed to start."


def whole(text: Text) -> str:
    """A start that fails there, as the engine prints it."""
    prefix, source, opening = process_of(text)
    site = "/opt/venv/lib/python3.12/site-packages/"
    head = f"{prefix} ERROR 10-12 08:00:31 [{source}] " if source else f"{prefix} "
    if text.kind == "logged":
        name = text.path.rsplit("/", 1)[-1]
        body = [f"{prefix} ERROR 10-12 08:00:31 [{name}:{text.line}] {line}" for line in text.message.split("\n")]
    else:
        outer = "vllm/v1/worker/gpu_worker.py" if source else "vllm/entrypoints/cli/main.py"
        frames = [f'  File "{site}{outer}", line 210, in start', "    self.start()"]
        at = [f'  File "{site}{text.path}", line {text.line}, in {text.function}', f"    {text.code}"]
        body = [head + line for line in [opening, "Traceback (most recent call last):", *frames, *at, *said(text).split("\n")] if line]
    start = "(APIServer pid=61) INFO 10-12 08:00:00 [api_utils.py:273] non-default args: {'model_tag': '/srv/models/kestrel'}"
    end = "(APIServer pid=61) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    return "\n".join([start, *body, *([end] if source else [])]) + "\n"


def said(text: Text) -> str:
    return f"{text.type}: {text.message}"


def pasted(text: Text) -> str:
    """What is left of it in most posts: its last lines."""
    prefix, source, _ = process_of(text)
    head = f"{prefix} ERROR 10-12 08:00:31 [{source or text.path.rsplit('/', 1)[-1] + ':' + str(text.line)}] "
    return "\n".join(head + line for line in (text.message if text.kind == "logged" else said(text)).split("\n")) + "\n"


def named(log: str) -> tuple[str, str]:
    """How the log's failure is named (specific, family, none), and the code."""
    decision = decide(read(log.encode(), None, None), 1)
    rule = decision.first.rule if decision.first else None
    if rule is None or rule.role != "cause":
        return "none", "-"
    return ("family" if rule.yields or rule.priority < -3 else "specific"), rule.code


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", type=Path, nargs="+", required=True)
    parser.add_argument("--list", choices=("none", "family", "specific", "all"))
    parser.add_argument("--form", choices=("whole", "pasted"), default="whole")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--reachable", action="store_true", help="leave out what only a request or a step of the model reaches")
    options = parser.parse_args()
    texts: dict[tuple[str, str], Text] = {}
    by_package: dict[str, set[tuple[str, str]]] = {}
    for package in options.package:
        for text in texts_of(package):
            if options.reachable and (text.kind == "logged" or IN_A_STEP.fullmatch(text.function)):
                continue
            key = (text.path.rsplit("/", 1)[-1] + text.type, template(text.message))
            texts[key] = text
            by_package.setdefault(str(package), set()).add(key)
    table: dict[str, dict[str, Counter[str]]] = {"whole": {}, "pasted": {}}
    answers: dict[str, dict[tuple[str, str], str]] = {"whole": {}, "pasted": {}}
    for key, text in texts.items():
        for form, log in (("whole", whole(text)), ("pasted", pasted(text))):
            how, code = named(log)
            answers[form][key] = how
            table[form].setdefault(component(text.path), Counter())[how] += 1
            if form == options.form and options.list in (how, "all"):
                print(f"{how}\t{code}\t{component(text.path)}\t{text.path}:{text.function}\t{text.kind}\t{said(text)[:240]!r}")
    result = {form: show(form, rows) for form, rows in table.items()}
    for form, found in answers.items() if len(by_package) > 1 else ():
        show(form, {name: Counter(found[key] for key in keys) for name, keys in by_package.items()})
    if options.json:
        options.json.write_text(json.dumps({"texts": len(texts), **result}, indent=1) + "\n")


def show(form: str, rows: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    total = sum(rows.values(), Counter[str]())
    for name, row in [*sorted(rows.items(), key=lambda r: -sum(r[1].values())), ("all", total)]:
        every = sum(row.values())
        shares = "  ".join(f"{kind} {row[kind]:5} ({100 * row[kind] / every:3.0f} %)" for kind in ("specific", "family", "none"))
        print(f"# {form:7} {name:22} {every:5} texts  {shares}")
    return {name: dict(row) for name, row in rows.items()} | {"all": dict(total)}


if __name__ == "__main__":
    main()
