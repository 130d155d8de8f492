"""A Hugging Face folder: config.json and its companions, and the headers of the weights when they are there."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from firstlight.core.checkpoint import Checkpoint, MoeSpec
from firstlight.core.errors import InputError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect import text
from firstlight.inspect.agreement import agreement_findings
from firstlight.inspect.companions import folder_findings
from firstlight.inspect.config import EMPTY, Config, integer, normalise, parse_json
from firstlight.inspect.field_types import checked_quantization, wrong_type
from firstlight.inspect.headers import Weights, read_weights
from firstlight.inspect.kv import attention_kind, kv_bytes_per_token, kv_cache_groups
from firstlight.inspect.quant import kv_quantization, quant_spec
from firstlight.inspect.safetensors import not_readable
from firstlight.inspect.sums import bytes_by_dtype, bytes_by_role, parameters

_JSON = ("config.json", "hf_quant_config.json", "generation_config.json", "tokenizer_config.json")
_TEXT = ("chat_template.jinja", "chat_template.json", "README.md")
_LIMITS = {"config.json": 32 << 20, "hf_quant_config.json": 32 << 20, "README.md": 16 << 20}


class _Small(NamedTuple):
    """The small files. values: parsed JSON; raw: texts as they stand."""

    values: dict[str, Any]
    raw: dict[str, bytes]
    findings: list[Finding]


def inspect_folder(source: Source, files: Sequence[FileInfo]) -> Checkpoint:
    """Raises InputError when neither the config nor any weights can be read."""
    small = _read_small(source, files)
    config = normalise(small.values["config.json"]) if "config.json" in small.values else EMPTY
    weights = read_weights(source, files, integer(config.fields, "num_hidden_layers"))
    findings = [*small.findings, *config.findings, *weights.findings]
    if not config.fields and not weights.groups:
        raise _unreadable(source, findings)
    return _checkpoint(source, files, small, config, weights, findings)


def _read_small(source: Source, files: Sequence[FileInfo]) -> _Small:
    """One round of reads for all of them: over a network they come together."""
    there = {f.path: f for f in files if f.path in _JSON or f.path in _TEXT}
    result = _Small({}, {}, [])
    wanted = [f for f in there.values() if f.size <= _LIMITS.get(f.path, 32 << 20) and f.kind == "file"]
    for f in there.values():
        if f not in wanted:
            result.findings.append(_too_large(f))
    for f, raw in zip(wanted, source.read_many([(f.path, 0, f.size) for f in wanted]), strict=True):
        if f.path in _TEXT:
            result.raw[f.path] = raw
            continue
        value, finding = parse_json(raw, f.path)
        if finding is None and f.path != "config.json" and not isinstance(value, dict):
            finding = wrong_type(f.path, "", "an object", value)
        if finding is not None:
            result.findings.append(finding)
        else:
            result.values[f.path] = value
    return result


def _too_large(f: FileInfo) -> Finding:
    if found := not_readable(f, "a small file"):
        return found[0]
    evidence = [f"expected: at most {_LIMITS.get(f.path, 32 << 20):,} bytes, found: {f.size:,}"]
    return Finding(
        code="json-too-large", severity=Severity.BLOCKER, message=f"{f.path} is far too large for what it should be", evidence=evidence
    )


def _unreadable(source: Source, findings: list[Finding]) -> InputError:
    first = findings[0] if findings else None
    return InputError(
        first.code if first else "not-a-checkpoint",
        first.message if first else f"{source.ref} holds no config and no weights that can be read",
        evidence=tuple(first.evidence) if first else (),
        hint=first.hint if first else None,
    )


def _checkpoint(
    source: Source, files: Sequence[FileInfo], small: _Small, config: Config, weights: Weights, findings: list[Finding]
) -> Checkpoint:
    fields = config.fields
    hf_quant = _hf_quant(small.values.get("hf_quant_config.json"), findings)
    kv = kv_cache_groups(fields)
    quant = quant_spec(config.quantization, hf_quant, weights.groups)
    groups = weights.groups
    if not groups:
        from firstlight.inspect.derive.derive import expected_groups  # only here: most checkpoints have their weights

        groups, reason = expected_groups(fields, quant, config.quantization)
        findings += absent(fields, groups, reason, unread=len(weights.files))
    sizes = bytes_by_dtype(groups)
    names = [f.path for f in files]
    tokenizer_config = _table(small.values.get("tokenizer_config.json"))
    template = text.chat_template(small.raw, tokenizer_config)
    code = text.remote_code(config.raw, tokenizer_config, names)
    findings += folder_findings(files, fields, template, code, kv, bool(weights.groups))
    if weights.groups:
        findings += agreement_findings(quant, groups, bool(config.quantization or hf_quant))
    return Checkpoint(
        ref=source.ref,
        format="safetensors" if weights.groups else "config-only",
        path=source.root,
        revision=source.revision,
        name=name_of(source),
        architectures=fields.get("architectures") or [],
        model_type=_text(config.raw.get("model_type")) or fields.get("model_type"),
        config=fields,
        num_hidden_layers=integer(fields, "num_hidden_layers"),
        hidden_size=integer(fields, "hidden_size"),
        attention=attention_kind(fields, kv),
        max_position_embeddings=integer(fields, "max_position_embeddings"),
        vocab_size=integer(fields, "vocab_size"),
        moe=moe_spec(fields),
        tensor_count=sum(g.count for g in groups) or None,
        shards=len(weights.files) or None,
        tensor_bytes=weights.tensor_bytes if weights.groups else sum(sizes.values()) or None,
        file_bytes=sum(f.size for f in weights.files) or None,
        parameters=parameters(groups, fields),
        bytes_by_dtype=sizes,
        bytes_by_role=bytes_by_role(groups),
        tensor_groups=groups,
        quantization=quant,
        kv_cache_quantization=kv_quantization(config.quantization, config.quantization_path, hf_quant),
        kv_cache_groups=kv,
        kv_bytes_per_token=kv_bytes_per_token(kv),
        modalities=text.modalities(config.raw),
        tokenizer=text.tokenizer_spec(names, tokenizer_config, integer(fields, "vocab_size")),
        chat_template=template,
        generation_config=_table(small.values.get("generation_config.json")),
        trust_remote_code=code,
        license=text.license_of(small.raw.get("README.md")),
        files={f.path: f.size for f in files},
        findings=findings,
    )


def name_of(source: Source) -> str:
    """What the model is called: the last part of the reference, without revision, extension or part number."""
    ref = source.ref.rstrip("/").removeprefix("hf://")
    if source.root is None:
        ref = ref.partition("@")[0]  # a revision may have slashes
    last = (source.root or ref).rstrip("/") if ref in (".", "..") else ref
    return last.rpartition("/")[2].partition("@")[0].removesuffix(".gguf") or "model"


def moe_spec(fields: Mapping[str, Any]) -> MoeSpec | None:
    experts = integer(fields, "num_experts")
    if not experts or experts < 2:
        return None
    shared = integer(fields, "n_shared_experts")
    if shared is None:
        width = integer(fields, "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
        shared = 1 if width else None
    return MoeSpec(
        num_experts=experts,
        num_experts_per_tok=integer(fields, "num_experts_per_tok"),
        shared=shared,
        moe_intermediate_size=integer(fields, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
        first_dense_layers=integer(fields, "first_k_dense_replace"),
    )


def absent(fields: Mapping[str, Any], groups: Sequence[Any], reason: str | None, unread: int = 0) -> list[Finding]:
    """No weights: said as a warning, and where the tensor groups come from as a note. unread: weight files that say nothing."""
    message = "there are no weights here, only their description"
    if unread:
        message = f"none of the {unread} weight files can be read" if unread > 1 else "the weight file cannot be read"
    found = [Finding(code="weights-absent", severity=Severity.WARNING, message=message, hint="firstlight fetch ORG/NAME brings them")]
    if groups:
        note = "sizes and shapes are those of the published layout, not read from files"
        family = ", ".join(fields.get("architectures") or [])
        found.append(
            Finding(
                code="tensors-derived", severity=Severity.NOTE, message=f"the tensors are derived from config.json ({family})", note=note
            )
        )
    elif reason:
        found.append(
            Finding(code="tensors-unknown", severity=Severity.WARNING, message="the size of the weights is not known", evidence=[reason])
        )
    return found


def _hf_quant(value: Any, findings: list[Finding]) -> dict[str, Any] | None:
    """ModelOpt's own file, its body checked."""
    if not isinstance(value, dict):
        return None
    body = value.get("quantization")
    if isinstance(body, dict):
        return value | {"quantization": checked_quantization(body, "hf_quant_config.json", "quantization", findings)}
    if body is not None:
        findings.append(wrong_type("hf_quant_config.json", "quantization", "an object", body))
    return value


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
