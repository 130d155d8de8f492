"""Findings about a folder as a whole: what should lie beside the weights, what should not, what is only half there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firstlight.catalog.architectures import find_architecture
from firstlight.core.checkpoint import ChatTemplate, KvCacheGroup, RemoteCode
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo
from firstlight.inspect.text import has_tokenizer

_UNFINISHED = (".incomplete", ".part", ".aria2", ".crdownload", ".download", ".tmp")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = ("training_args.bin", "optimizer", "scheduler", "rng_state", "random_states")


def folder_findings(
    files: Sequence[FileInfo],
    config: Mapping[str, Any],
    template: ChatTemplate,
    code: RemoteCode,
    kv: Sequence[KvCacheGroup],
    weights: bool,
) -> list[Finding]:
    """weights: whether safetensors could be read."""
    names = [f.path for f in files]
    found = [*_unfinished(files), *_pickles(files, weights)]
    if "config.json" not in names:
        found.append(
            _finding(
                "config-missing", Severity.BLOCKER, "there is no config.json", hint="name the folder that holds it, or download it again"
            )
        )
    found += _architecture(config, kv, weights)
    if not has_tokenizer(names) and weights:
        found.append(_finding("tokenizer-missing", Severity.WARNING, "there is no tokenizer here", hint="firstlight fetch, or --tokenizer"))
    elif not template.present and weights:
        found.append(_finding("chat-template-missing", Severity.NOTE, "there is no chat template: chat requests will fail or be guessed"))
    missing = [f for f in code.files if f not in names]
    if missing and weights:
        evidence = [f"auto_map in config.json names {name}" for name in missing[:5]]
        found.append(_finding("remote-code-missing", Severity.NOTE, "code that config.json names is not here", *evidence))
    return found


def _finding(code: str, severity: Severity, message: str, *evidence: str, hint: str | None = None) -> Finding:
    return Finding(code=code, severity=severity, message=message, evidence=list(evidence), hint=hint)


def _unfinished(files: Sequence[FileInfo]) -> Iterable[Finding]:
    """What downloaders leave while they are at it: huggingface_hub, wget, aria2, browsers."""
    left = [f for f in files if f.path.endswith(_UNFINISHED)]
    if left:
        evidence = [f"{f.path}: {f.size:,} bytes" for f in left[:5]] + ([f"and {len(left) - 5} more"] if len(left) > 5 else [])
        yield _finding(
            "download-unfinished",
            Severity.WARNING,
            "a download here is not finished",
            *evidence,
            hint="firstlight fetch goes on where it stopped",
        )


def _pickles(files: Sequence[FileInfo], weights: bool) -> Iterable[Finding]:
    pickles = [f for f in files if f.path.endswith(_PICKLES) and not any(n in f.path for n in _NOT_WEIGHTS) and "/" not in f.path]
    if pickles and not weights:
        evidence = [f"{f.path}: {f.size:,} bytes" for f in pickles[:5]]
        yield _finding(
            "pickle-only",
            Severity.WARNING,
            "the weights are pickles, which run code when they are loaded: they were not opened",
            *evidence,
            hint="look for a safetensors revision of the model",
        )


def _architecture(config: Mapping[str, Any], kv: Sequence[KvCacheGroup], weights: bool) -> Iterable[Finding]:
    """A note where files and fields tell all the same, a warning where something stays unknown."""
    names = config.get("architectures") or []
    if not config or find_architecture(names) is not None:
        return
    told = "the cache per token follows from its fields" if kv else "neither its cache nor its layers can be told"
    severity = Severity.NOTE if kv and weights else Severity.WARNING
    message = f"this architecture is not known here: {', '.join(names) or 'none named'}"
    yield _finding("architecture-unknown", severity, message, f"model_type: {config.get('model_type')}", told)
